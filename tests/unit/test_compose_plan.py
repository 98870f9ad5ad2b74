"""The plan of compose_project, over what real Composes and a real engine said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible.module_utils.voices.compose import (
    Remote,
    images_to_look_up,
    keepers,
    plan_absent,
    plan_stopped,
)
from ansible.module_utils.voices.compose_state import Actual, Image, parse_container, sha256

from tests.support.compose_fixture import VERSIONS, Recorded, changes, steps

NETWORK = "voices-tiny_default"
NEWER = "sha256:" + "9" * 64


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """A seat's container under each Compose."""
    return Recorded(request.param)


@pytest.fixture
def latest() -> Recorded:
    """Under one Compose, where they do not differ."""
    return Recorded()


def test_three_composes_were_recorded() -> None:
    assert VERSIONS == ["2.20.1", "2.24.7", "2.40.3"]


@pytest.mark.parametrize("service", ["engine", "rich"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_just_made_needs_nothing(version: str, service: str) -> None:
    plan = Recorded(version, service).plan()
    assert (plan.actions, plan.up, plan.will_start, plan.write) == ((), False, False, False)


@pytest.mark.parametrize("service", ["engine", "rich"])
@pytest.mark.parametrize("version", VERSIONS)
def test_no_field_is_misread(version: str, service: str) -> None:
    """Were a field read wrongly from Compose or from the engine, it would be named here beside the unknown change."""
    recorded = Recorded(version, service)
    before = recorded.hashes.split()[1][:12]
    recorded.new_hash()
    assert changes(recorded.plan()) == [("service definition", before, "f" * 12)]


def set_key(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda definition: definition.__setitem__(key, value)


def update(key: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    def change(definition: dict[str, Any]) -> None:
        if isinstance(definition[key], list):  # Compose 2.24.7 prints what the file has
            definition[key] = dict(entry.split("=", 1) for entry in definition[key])
        definition[key] = {**definition[key], **values}

    return change


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], list[tuple[str, Any, Any]]]] = {
    "image": (set_key("image", "voices-test:two"), [("image", "voices-test:one", "voices-test:two")]),
    "command": (set_key("command", ["sleep", "1 0"]), [("command", None, "sleep '1 0'")]),
    "command as text": (set_key("command", "sleep '1 0'"), [("command", None, "sleep '1 0'")]),
    "entrypoint": (set_key("entrypoint", ["sh"]), [("entrypoint", None, "sh")]),
    "environment": (update("environment", THREADS="2"), [("environment THREADS", "1", "2")]),
    "environment with $": (update("environment", THREADS="a$$b"), [("environment THREADS", "1", "a$b")]),
    "environment added": (update("environment", NEW="x"), [("environment NEW", None, "x")]),
    "environment of the image": (update("environment", EXTRA="2"), [("environment EXTRA", "1", "2")]),
    "label": (update("labels", **{"voices.flags": "bbb"}), [("labels voices.flags", "aaa", "bbb")]),
    "label of the image": (update("labels", **{"voices.test": "mine"}), [("labels voices.test", "one", "mine")]),
    "user": (set_key("user", "7:7"), [("user", "1000:1000", "7:7")]),
    "user dropped": (lambda definition: definition.pop("user"), [("user", "1000:1000", None)]),
    "restart": (set_key("restart", "on-failure:3"), [("restart", "unless-stopped", "on-failure:3")]),
    "restart dropped": (lambda definition: definition.pop("restart"), [("restart", "unless-stopped", "no")]),
    "shm": (set_key("shm_size", "1g"), [("shm_size", "128 MiB", "1024 MiB")]),
    "shm in bytes": (set_key("shm_size", "268435456"), [("shm_size", "128 MiB", "256 MiB")]),
    "read only": (set_key("read_only", False), [("read_only", "true", "false")]),
    "capabilities": (set_key("cap_add", ["SYS_NICE"]), [("cap_add", None, "SYS_NICE")]),
    "security": (set_key("security_opt", ["no-new-privileges"]), [("service definition", None, "f" * 12)]),
    "health": (update("healthcheck", timeout="6s"), [("healthcheck timeout", "5s", "6s")]),
    "health off": (
        set_key("healthcheck", {"disable": True}),
        [
            ("healthcheck test", "CMD sh -c 'echo looked; test -d /tmp'", "NONE"),
            ("healthcheck interval", "0.3s", None),
            ("healthcheck timeout", "5s", None),
            ("healthcheck retries", "3", None),
        ],
    ),
    "mount dropped": (
        set_key("volumes", []),
        [("mounts /data", "/srv/voices/seats/tiny/data (read-only)", None)],
    ),
    "mount made writable": (
        lambda definition: definition["volumes"][0].pop("read_only"),
        [("mounts /data", "/srv/voices/seats/tiny/data (read-only)", "/srv/voices/seats/tiny/data")],
    ),
    "logging": (
        set_key("logging", {"driver": "local", "options": {}}),
        [("logging", "json-file max-file=3 max-size=10m", "local")],
    ),
    "gpu": (
        set_key(
            "deploy",
            {
                "resources": {
                    "reservations": {"devices": [{"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}]}
                }
            },
        ),
        [("devices", None, "nvidia 0 gpu")],
    ),
    "device": (set_key("devices", ["/dev/dri"]), [("devices", None, "/dev/dri:/dev/dri:rwm")]),
    "memory": (set_key("mem_limit", "8g"), [("mem_limit", None, "8192 MiB")]),
    "ipc": (set_key("ipc", "host"), [("ipc", "private", "host")]),
    "host network": (
        lambda definition: (definition.pop("networks"), definition.__setitem__("network_mode", "host")),
        [("network_mode", NETWORK, "host"), ("networks", NETWORK, None)],
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_named(recorded: Recorded, edit: str) -> None:
    change, expected = EDITS[edit]
    recorded.edit(change)
    plan = recorded.plan()
    found = changes(plan)
    if expected[0][0] in ("command", "service definition"):  # what was there before is not the point
        found = [(why, None, after) for why, _, after in found]
    assert found == expected
    assert plan.touched == ("engine",) and plan.up and plan.will_start
    assert plan.remove == (), "Compose recreates: what runs goes on until the new container is made"


@pytest.mark.parametrize(
    ("device", "request_seen"),
    [
        (
            {"driver": "nvidia", "device_ids": ["GPU-1"], "capabilities": ["gpu"]},
            {"Driver": "nvidia", "Count": 0, "DeviceIDs": ["GPU-1"], "Capabilities": [["gpu"]], "Options": None},
        ),
        (
            {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]},
            {"Driver": "nvidia", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}},
        ),
        (
            {"driver": "nvidia", "count": 1, "capabilities": ["utility", "gpu"]},
            {"Driver": "nvidia", "Count": 1, "DeviceIDs": None, "Capabilities": [["gpu", "utility"]]},
        ),
    ],
)
def test_a_reserved_gpu_is_read_from_both_sides(
    latest: Recorded, device: dict[str, Any], request_seen: dict[str, Any]
) -> None:
    """The engine's side is as its API (1.41) documents it: the recordings come from a machine without a GPU."""
    latest.edit(set_key("deploy", {"resources": {"reservations": {"devices": [device]}}}))
    latest.inspect["HostConfig"]["DeviceRequests"] = [request_seen]
    assert [why for why, _, _ in changes(latest.plan())] == ["service definition"]
    latest.inspect["HostConfig"]["DeviceRequests"] = [{**request_seen, "Count": 2, "DeviceIDs": None}]
    assert [why for why, _, _ in changes(latest.plan())] == ["devices"]


def test_a_secret_in_the_environment_is_a_digest(recorded: Recorded) -> None:
    recorded.edit(update("environment", HF_TOKEN="hf_another-token"))
    ((why, before, after),) = changes(recorded.plan())
    assert why == "environment HF_TOKEN"
    assert [len(str(value)) for value in (before, after)] == [len("sha256:") + 8] * 2
    assert "no-one-may-see" not in str(recorded.plan()) and "another" not in str(recorded.plan().actions)


def test_a_secret_in_the_command_is_a_digest(latest: Recorded) -> None:
    latest.edit(set_key("command", ["serve", "--api-key", "s3cret-key", "--token=hf_a-token-that-no-one-may-see"]))
    ((_, _, after),) = changes(latest.plan())
    assert "s3cret-key" not in after and "no-one-may-see" not in after
    assert after.startswith("serve --api-key sha256:")


# ------------------------------------------------------------------------------------------------------ containers


def test_the_first_run(recorded: Recorded) -> None:
    plan = recorded.plan(Actual(images={"voices-test:one": Image("sha256:1")}))
    assert steps(plan) == [
        ("create", "compose.yaml", ""),
        ("create", f"network {NETWORK}", ""),
        ("create", "engine", ""),
    ]
    assert plan.write and plan.up and plan.will_start and not plan.keep_previous


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("running", []),
        ("restarting", []),
        ("exited", [("start", "engine", "exited")]),
        ("created", [("start", "engine", "created")]),
        ("paused", [("resume", "engine", "paused")]),
        ("dead", [("recreate", "engine", "state")]),
    ],
)
def test_a_container_in_each_state(latest: Recorded, state: str, expected: list[tuple[str, str, str]]) -> None:
    container = latest.container(state=state)
    plan = latest.plan(latest.actual(container))
    assert steps(plan) == expected
    assert plan.will_start is any(do in ("start", "recreate") for do, _, _ in expected)
    assert plan.remove == ((container.id,) if state == "dead" else ())
    assert plan.resume == ((container.id,) if state == "paused" else ())


@pytest.mark.parametrize("health", ["starting", "unhealthy"])
def test_a_container_that_is_not_healthy_is_no_action(latest: Recorded, health: str) -> None:
    assert latest.plan(latest.actual(latest.container(health=health))).actions == ()


def test_a_paused_container_that_differs_is_resumed_and_recreated(latest: Recorded) -> None:
    latest.edit(set_key("user", "7"))
    plan = latest.plan(latest.actual(latest.container(state="paused")))
    assert steps(plan)[1:] == [("recreate", "engine", "user")]
    assert plan.resume and plan.touched


def test_orphans_go_and_what_a_person_runs_stays(latest: Recorded) -> None:
    orphan = latest.container(id="o" * 64, name="voices-tiny-old-1", service="old")
    oneoffs = [
        latest.container(id=service * 8, name=f"voices-tiny-{service}-run-1", service=service, oneoff=True)
        for service in ("engine", "old")
    ]
    plan = latest.plan(latest.actual(latest.container(), orphan, *oneoffs))
    assert steps(plan) == [("remove", "old", "orphan")]
    assert plan.remove == (orphan.id,)
    assert not plan.will_start and not plan.up


def test_two_orphans_of_one_service_are_told_apart(latest: Recorded) -> None:
    orphans = [latest.container(id=one * 64, name=f"voices-tiny-old-{one}", service="old") for one in "12"]
    plan = latest.plan(latest.actual(latest.container(), *orphans))
    assert [what for _, what, _ in steps(plan)] == ["container voices-tiny-old-1", "container voices-tiny-old-2"]


def test_what_an_interrupted_recreate_left_goes(latest: Recorded) -> None:
    old = latest.container()
    new = latest.container(id="n" * 64, name=f"{old.id[:12]}_{old.name}", state="created", hash="f" * 64)
    for order in ((old, new), (new, old)):
        plan = latest.plan(latest.actual(*order))
        assert steps(plan) == [("remove", f"container {new.name}", "left by an interrupted run")]
        assert plan.remove == (new.id,)


def test_only_the_unstarted_half_of_a_recreate_is_there(latest: Recorded) -> None:
    half = latest.container(name=f"{'0' * 12}_voices-tiny-engine-1", state="created")
    plan = latest.plan(latest.actual(half))
    assert [do for do, _, _ in steps(plan)] == ["remove", "create"]
    assert plan.remove == (half.id,) and plan.rename == ()


def test_a_running_container_under_another_name_gets_its_name(latest: Recorded) -> None:
    other = latest.container(name="mine")
    plan = latest.plan(latest.actual(other))
    assert [(a.do, a.what, a.before, a.after) for a in plan.actions] == [
        ("rename", "engine", "mine", "voices-tiny-engine-1")
    ]
    assert plan.rename == ((other.id, "voices-tiny-engine-1"),)
    assert not plan.will_start
    assert keepers(latest.desired(), latest.actual(other)) == {"engine": other}


def test_a_disconnected_network_needs_a_removal_first(latest: Recorded) -> None:
    """Compose 2.24.7 leaves such a container as it is."""
    latest.inspect["NetworkSettings"]["Networks"] = {}
    plan = latest.plan()
    assert changes(plan) == [("network", None, NETWORK)]
    assert plan.remove == (latest.container().id,)


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("internal", True, False, True),
        ("driver", "macvlan", "bridge", "macvlan"),
        ("driver_opts", {"mtu": 9000}, {}, {"mtu": "9000"}),
        ("labels", {"a": "b"}, {}, {"a": "b"}),
        ("ipam", {"config": [{"subnet": "10.9.0.0/24"}]}, None, ["10.9.0.0/24"]),
    ],
)
def test_a_network_that_differs_takes_its_containers_along(
    latest: Recorded, key: str, value: Any, before: Any, after: Any
) -> None:
    latest.config["networks"]["default"][key] = value
    plan = latest.plan()
    network, service = plan.actions
    assert (network.do, network.what, network.after) == ("recreate", f"network {NETWORK}", after)
    assert before is None or network.before == before
    assert (service.do, service.what, service.why) == ("recreate", "engine", "network")
    assert plan.remove_networks == (NETWORK,) and plan.remove == (latest.container().id,)


def test_options_that_the_engine_gives_every_network_do_not_count(latest: Recorded) -> None:
    latest.networks[NETWORK]["Options"] = {"com.docker.network.driver.mtu": "1400"}
    assert latest.plan().actions == ()


def test_an_external_network_is_nobodys_to_make(latest: Recorded) -> None:
    latest.config["networks"]["default"]["external"] = True
    assert latest.plan(latest.actual(networks={})).actions == ()


def test_a_namespace_that_is_no_longer_shared() -> None:
    rich = Recorded(service="rich")
    rich.edit(lambda definition: definition.pop("ipc"))
    assert changes(rich.plan()) == [("ipc", "host", None)]


# ---------------------------------------------------------------------------------------------------------- images


def test_an_image_rebuilt_under_its_name(latest: Recorded) -> None:
    plan = latest.plan(latest.actual(images={"voices-test:one": Image("sha256:" + "a" * 64)}))
    ((why, before, after),) = changes(plan)
    assert (why, after) == ("image id", "a" * 12)
    assert before == latest.inspect["Image"].partition(":")[2][:12]


def test_either_name_of_an_image_will_do(latest: Recorded) -> None:
    """An image store may know an image by another id than the one that Compose noted."""
    latest.inspect["Config"]["Labels"]["com.docker.compose.image"] = "sha256:" + "b" * 64
    for image_id in ("sha256:" + "b" * 64, latest.inspect["Image"]):
        assert latest.plan(latest.actual(images={"voices-test:one": Image(image_id)})).actions == ()


def test_which_images_a_registry_is_asked_for(latest: Recorded) -> None:
    desired, here, missing = latest.desired(), latest.actual(), latest.actual(images={})
    asked = {
        (pull, known): images_to_look_up(desired, actual, pull)
        for pull in ("missing", "always", "never")
        for known, actual in ((True, here), (False, missing))
    }
    one = ["voices-test:one"]
    assert asked == {
        ("missing", True): [],
        ("missing", False): one,
        ("always", True): one,
        ("always", False): one,
        ("never", True): [],
        ("never", False): [],
    }


def test_a_missing_image_is_pulled_only_when_it_is_needed(latest: Recorded) -> None:
    missing = latest.actual(images={})
    assert latest.plan(missing, voices_test__one=Remote(NEWER)).actions == ()
    latest.edit(set_key("user", "7"))
    plan = latest.plan(missing, voices_test__one=Remote(NEWER))
    assert steps(plan) == [
        ("pull", "voices-test:one", "missing"),
        ("write", "compose.yaml", ""),
        ("recreate", "engine", "user"),
    ]
    assert plan.pull


def test_a_stopped_container_whose_image_is_gone_is_made_anew(latest: Recorded) -> None:
    stopped = latest.container(state="exited")
    plan = latest.plan(latest.actual(stopped, images={}), voices_test__one=Remote(NEWER))
    assert [(do, why) for do, _, why in steps(plan)] == [("pull", "missing"), ("recreate", "image digest")]
    assert plan.remove == (stopped.id,)


def test_a_newer_image_in_the_registry(latest: Recorded) -> None:
    known = Image(latest.inspect["Image"], ("sha256:" + "8" * 64,))
    actual = latest.actual(images={"voices-test:one": known})
    assert latest.plan(actual, "always", voices_test__one=Remote(known.digests[0])).actions == ()
    plan = latest.plan(actual, "always", voices_test__one=Remote(NEWER))
    assert [(a.do, a.why, a.before, a.after) for a in plan.actions] == [
        ("pull", "newer in the registry", "8" * 12, "9" * 12),
        ("recreate", "image digest", "8" * 12, "9" * 12),
    ]


def test_a_pull_for_another_image_name_has_one_reason(latest: Recorded) -> None:
    latest.edit(set_key("image", "voices-test:two"))
    plan = latest.plan(voices_test__two=Remote(NEWER))
    assert changes(plan) == [("image", "voices-test:one", "voices-test:two")]
    assert steps(plan)[0] == ("pull", "voices-test:two", "missing")


# ------------------------------------------------------------------------------------------------------------ file


def test_the_file_is_written_when_its_text_differs(latest: Recorded) -> None:
    latest.content += "# a verdict\n"
    ours = latest.actual(written=(sha256(latest.data["content"]),))
    assert steps(latest.plan(ours)) == [("write", "compose.yaml", "")]
    assert not latest.plan(ours).up
    by_hand = replace(ours, text="services: {}")
    assert steps(latest.plan(by_hand)) == [("write", "compose.yaml", "edited by hand")]
    unknown = replace(by_hand, written=())
    assert steps(latest.plan(unknown)) == [("write", "compose.yaml", "")]


def test_the_previous_file_is_kept_when_it_was_healthy(latest: Recorded) -> None:
    old_hash = latest.container().hash
    latest.edit(set_key("user", "7"))
    healthy = latest.actual(text_hashes={"engine": old_hash})
    assert latest.plan(healthy).keep_previous
    assert not latest.plan(latest.actual(text_hashes={"engine": "0" * 64})).keep_previous
    assert not latest.plan(latest.actual(text_hashes={})).keep_previous
    sick = latest.container(health="unhealthy")
    assert not latest.plan(latest.actual(sick, text_hashes={"engine": old_hash})).keep_previous
    stopped = latest.container(state="exited")
    assert not latest.plan(latest.actual(stopped, text_hashes={"engine": old_hash})).keep_previous
    noted = latest.actual(stopped, known_healthy=sha256(latest.data["content"]))
    assert latest.plan(noted).keep_previous


# -------------------------------------------------------------------------------------------------- stop and remove


def test_stopped_stops_what_runs(latest: Recorded) -> None:
    states = ("running", "restarting", "paused", "exited", "created")
    containers = [latest.container(id=state, name=state, service=state, state=state) for state in states]
    plan = plan_stopped(latest.actual(*containers))
    assert plan.stop == ("running", "restarting", "paused")
    assert steps(plan) == [("stop", state, "") for state in plan.stop]
    assert not plan.up and not plan.will_start


def test_absent_removes_all(latest: Recorded) -> None:
    oneoff = latest.container(id="p" * 64, name="voices-tiny-engine-run-1", oneoff=True, state="exited")
    plan = plan_absent(latest.actual(latest.container(), oneoff, leftover_files=True))
    assert steps(plan) == [
        ("stop", "engine", ""),
        ("remove", "engine", ""),
        ("remove", "container voices-tiny-engine-run-1", ""),
        ("remove", f"network {NETWORK}", ""),
        ("remove", "compose.yaml", ""),
    ]
    assert plan_absent(Actual()).actions == ()


def test_a_container_without_labels_or_state_is_read() -> None:
    """What is being removed may lack anything."""
    container = parse_container({"Id": "x", "Name": "/x"})
    assert (container.state, container.health, container.published, container.networks) == ("", "", set(), [])
