"""What compose_project refuses, over what a real Compose and a real engine said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible.module_utils.voices.compose import Remote, plan_absent
from ansible.module_utils.voices.compose_checks import Answers, check, check_down, questions
from ansible.module_utils.voices.compose_config import Port
from ansible.module_utils.voices.compose_state import Actual, Neighbour, parse_neighbour
from ansible.module_utils.voices.plan import VoicesError

from tests.support.compose_fixture import PLACE, PROJECT, Recorded

NETWORK = "voices-tiny_default"


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def message(
    recorded: Recorded,
    actual: Actual | None = None,
    answers: Answers | None = None,
    *,
    pull: str = "missing",
    directory: str = PLACE,
    remote: dict[str, Remote] | None = None,
    expected: tuple[str, ...] = (),
) -> str:
    """The refusal, or an empty text."""
    actual = actual or recorded.actual()
    plan = recorded.plan(actual, pull)
    try:
        check(
            recorded.desired(),
            actual,
            plan,
            answers or Answers(),
            directory=directory,
            pull=pull,
            remote=remote or {},
            expected_paths=expected,
        )
    except VoicesError as error:
        assert str(error).startswith(f"project {PROJECT}: ") and str(error).endswith(". Nothing was changed")
        return str(error)
    return ""


def first_run(recorded: Recorded, **changes: Any) -> Actual:
    """Nothing is there but the image."""
    return Actual(images=recorded.actual().images, **changes)


def port_of(recorded: Recorded) -> int:
    return int(recorded.definition["ports"][0]["published"])


def test_nothing_stands_in_the_way(recorded: Recorded) -> None:
    assert message(recorded) == ""
    assert message(recorded, first_run(recorded)) == ""


def test_what_the_host_is_asked(recorded: Recorded) -> None:
    desired, actual = recorded.desired(), first_run(recorded)
    asked = questions(desired, actual, recorded.plan(actual))
    assert asked.ports == (Port("127.0.0.1", port_of(recorded)),)
    assert asked.paths == ("/srv/voices/seats/tiny/data",)
    assert not asked.devices and not asked.volumes


def test_a_running_container_asks_nothing(recorded: Recorded) -> None:
    asked = questions(recorded.desired(), recorded.actual(), recorded.plan())
    assert (asked.ports, asked.paths) == ((), ())


def test_our_own_port_is_not_asked_for(recorded: Recorded) -> None:
    recorded.edit(lambda definition: definition.__setitem__("user", "7"))
    assert questions(recorded.desired(), recorded.actual(), recorded.plan()).ports == ()
    stopped = recorded.container(state="exited", inspect={**recorded.inspect, "NetworkSettings": {"Ports": {}}})
    actual = recorded.actual(stopped)
    assert questions(recorded.desired(), actual, recorded.plan(actual)).ports != ()


def test_all_the_paths_of_a_rich_service() -> None:
    rich = Recorded(service="rich")
    actual = first_run(rich)
    assert questions(rich.desired(), actual, rich.plan(actual)).paths == (
        "/srv/voices/seats/tiny/compose",
        "/srv/voices/seats/tiny/secret",
        "/dev/null",
        "/dev/zero",
    )


@pytest.mark.parametrize(
    ("theirs", "taken"),
    [
        (Port("127.0.0.1", 0), True),
        (Port("0.0.0.0", 0), True),  # noqa: S104 - compared with
        (Port("::", 0), True),
        (Port("", 0), True),
        (Port("127.0.0.2", 0), False),
        (Port("127.0.0.1", 0, "udp"), False),
        (Port("127.0.0.1", 1), False),
    ],
)
def test_a_port_of_another_container(recorded: Recorded, theirs: Port, taken: bool) -> None:
    port = port_of(recorded)
    other = Neighbour("lab-web-1", "lab", frozenset({replace(theirs, port=theirs.port or port)}))
    said = message(recorded, first_run(recorded, neighbours=(other,)))
    expected = f"port 127.0.0.1:{port} of service engine is taken by container lab-web-1 (project lab)"
    assert (expected in said) is taken, said
    assert bool(said) is taken


def test_a_port_of_a_process(recorded: Recorded) -> None:
    port = Port("127.0.0.1", port_of(recorded))
    said = message(recorded, first_run(recorded), Answers(holders={port: "pid 7 (user ann): python -m http.server"}))
    assert f"port {port} of service engine is taken by pid 7 (user ann): python -m http.server: stop it" in said
    assert message(recorded, answers=Answers(holders={port: "pid 7"})) == "", "it runs: nothing is started"


def test_two_services_on_one_port(recorded: Recorded) -> None:
    recorded.config["services"]["second"] = {**recorded.definition, "container_name": "second"}
    recorded.hashes += f"second {'e' * 64}\n"
    assert "services engine and second both publish port" in message(recorded, first_run(recorded))


def test_a_name_of_others(recorded: Recorded) -> None:
    theirs = Neighbour("voices-tiny-engine-1", "")
    said = message(recorded, first_run(recorded, neighbours=(theirs,)))
    assert "service engine is to be container voices-tiny-engine-1, and that name is taken by container" in said
    assert "(not made by Compose): remove or rename that container" in said
    assert "port " not in said, "it publishes none"


def test_a_missing_path_and_one_that_is_yet_to_be_made(recorded: Recorded) -> None:
    missing = Answers(missing=frozenset({"/srv/voices/seats/tiny/data"}))
    said = message(recorded, first_run(recorded), missing)
    assert "mount /data of service engine: /srv/voices/seats/tiny/data does not exist on this host" in said
    for parent in ("/srv/voices/seats/tiny/data", "/srv/voices/seats/tiny/", "/srv"):
        assert message(recorded, first_run(recorded), missing, expected=(parent,)) == ""
    assert message(recorded, first_run(recorded), missing, expected=("/srv/voices/seats/tin",)) != ""


def test_an_image_that_is_not_there(recorded: Recorded) -> None:
    nothing = Actual()
    assert "image voices-test:one is not on this host, and pull is never" in message(recorded, nothing, pull="never")
    refused = {"voices-test:one": Remote(error="connection refused")}
    said = message(recorded, nothing, remote=refused)
    assert "image voices-test:one is not on this host and cannot be pulled: connection refused: correct" in said
    assert message(recorded, nothing, remote={"voices-test:one": Remote("sha256:1")}) == ""
    assert message(recorded, recorded.actual(images={}), pull="never") == "", "it runs, whatever became of the image"
    always = message(recorded, pull="always", remote=refused)
    assert "image voices-test:one is to be pulled and cannot be pulled: connection refused" in always


@pytest.mark.parametrize(
    ("answers", "fine"),
    [
        (Answers(runtimes=frozenset({"runc"})), False),
        (Answers(runtimes=frozenset({"runc", "nvidia"})), True),
        (Answers(runtimes=frozenset({"runc"}), cdi=("nvidia.com/gpu=0", "nvidia.com/gpu=all")), True),
        (Answers(runtimes=frozenset({"runc"}), cdi=("vendor.com/nic=0",)), False),
    ],
)
def test_nvidia(recorded: Recorded, answers: Answers, fine: bool) -> None:
    device = {"driver": "nvidia", "device_ids": ["GPU-1"], "capabilities": ["gpu"]}
    recorded.definition["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    actual = first_run(recorded)
    assert questions(recorded.desired(), actual, recorded.plan(actual)).devices
    said = message(recorded, actual, answers)
    assert (said == "") is fine
    if not fine:
        assert "service engine reserves NVIDIA devices, and this engine has no NVIDIA runtime (it has runc)" in said
        assert "nvidia-container-toolkit" in said


def test_the_nvidia_runtime_by_name(recorded: Recorded) -> None:
    recorded.definition["runtime"] = "nvidia"
    cdi = Answers(runtimes=frozenset({"runc"}), cdi=("nvidia.com/gpu=0",))
    assert "no NVIDIA runtime" in message(recorded, first_run(recorded), cdi)


def test_another_directory(recorded: Recorded) -> None:
    said = message(recorded, directory="/srv/other")
    assert f"container voices-tiny-engine-1 carries this project's name, but was made from {PLACE}" in said
    assert "not from /srv/other: take that project away there" in said


def test_networks_of_others(recorded: Recorded) -> None:
    for labels, whose in (
        ({}, "was not made by Compose"),
        ({"com.docker.compose.project": "lab"}, "belongs to project lab"),
    ):
        networks = {NETWORK: {"Name": NETWORK, "Driver": "bridge", "Labels": labels}}
        said = message(recorded, first_run(recorded, networks=networks))
        assert f"network {NETWORK} {whose}: choose another name, or declare it external" in said


def test_a_missing_external_network_and_volume(recorded: Recorded) -> None:
    recorded.config["networks"]["default"]["external"] = True
    recorded.config["volumes"] = {"cache": {"name": "lab-cache", "external": True}}
    said = message(recorded, first_run(recorded))
    assert f"the external network {NETWORK} does not exist" in said
    assert "the external volume lab-cache does not exist: make it (docker volume create lab-cache)" in said
    assert questions(recorded.desired(), first_run(recorded), recorded.plan()).volumes


def test_a_guest_on_a_network_that_has_to_go(recorded: Recorded) -> None:
    recorded.networks[NETWORK]["Containers"]["g" * 64] = {"Name": "guest"}
    assert message(recorded) == ""
    recorded.config["networks"]["default"]["internal"] = True
    said = message(recorded)
    assert f"network {NETWORK} has to go and is in use outside the project by container guest" in said
    actual = recorded.actual()
    with pytest.raises(VoicesError, match=f"docker network disconnect {NETWORK} guest"):
        check_down(PROJECT, actual, plan_absent(actual), PLACE)


def test_down_from_another_directory(recorded: Recorded) -> None:
    actual = recorded.actual()
    with pytest.raises(VoicesError, match="was made from"):
        check_down(PROJECT, actual, plan_absent(actual), "/srv/other")
    check_down(PROJECT, actual, plan_absent(actual), PLACE)


def test_all_at_once(recorded: Recorded) -> None:
    theirs = Neighbour("voices-tiny-engine-1", "lab", frozenset({Port("", port_of(recorded))}))
    missing = Answers(missing=frozenset({"/srv/voices/seats/tiny/data"}))
    said = message(recorded, Actual(neighbours=(theirs,)), missing, pull="never")
    assert [
        part for part in ("name is taken", "is taken by", "does not exist", "pull is never") if part not in said
    ] == []


def test_a_neighbour_is_read_from_the_engines_list() -> None:
    recorded = Recorded()
    neighbour = parse_neighbour(recorded.data["summary"])
    assert str(neighbour) == "container voices-tiny-engine-1 (project voices-tiny)"
    assert neighbour.published == {Port("127.0.0.1", port_of(recorded))}
    assert recorded.container().published == neighbour.published
