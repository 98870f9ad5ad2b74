"""What check mode says of an edit is what the real run then does, and the check leaves the engine alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker_project import PREFIX, SECRET, SERVE, Project, compose_command, free_port, make_image

HEALTH_CHECKS = ("exec_create", "exec_start", "exec_die", "health_status")


def predicted(project: Project, **changes: Any) -> dict[str, Any]:
    """Check, then run, and hold the two together; returns the real run's result. A second run of both finds nothing."""
    before = project.state()
    began = time.time()
    checked = project.run(check=True, **changes)
    time.sleep(0.2)  # an event that the check caused would be there by now
    seen = [event for event in project.events(began, time.time()) if not event.split()[1].startswith(HEALTH_CHECKS)]
    assert seen == []
    assert project.state() == before
    real = project.run(**changes)
    for key in ("actions", "reasons", "diff", "will_start", "changed", "previous"):
        assert checked[key] == real[key], key
    for check in (True, False):
        again = project.run(check=check, **changes)
        assert (again["changed"], again["actions"], again.get("diff", [])) == (False, [], [])
    return real


def steps(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(do, what, why) of each action."""
    return [(action["do"], action["what"], action["why"]) for action in result["actions"]]


def values(result: dict[str, Any]) -> list[tuple[Any, Any]]:
    """(before, after) of what is done to engine."""
    return [(action["before"], action["after"]) for action in result["actions"] if action["what"] == "engine"]


def set_in(*path: str, value: Any) -> Callable[[Project], None]:
    """An edit of one key of the service."""

    def edit(project: Project) -> None:
        place = project.service
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return edit


def drop_environment(project: Project) -> None:
    del project.service["environment"]["OLD"]


def add_mount(project: Project) -> None:
    (project.root / "more").mkdir()
    project.service["volumes"].append(project.mount(project.root / "more", "/more"))


NEW_COMMAND = ["sh", "-c", SERVE.replace("echo up", "echo new").replace("$", "$$")]
RECREATES: dict[str, tuple[Callable[[Project], None], list[str], Any]] = {
    "image tag": (set_in("image", value=f"{PREFIX}:two"), ["image"], [(f"{PREFIX}:one", f"{PREFIX}:two")]),
    "command": (set_in("command", value=NEW_COMMAND), ["command"], None),
    "environment value": (set_in("environment", "THREADS", value="2"), ["environment THREADS"], [("1", "2")]),
    "environment key removed": (drop_environment, ["environment OLD"], [("yes", None)]),
    "secret value": (
        set_in("environment", "HF_TOKEN", value="hf_another-token"),
        ["environment HF_TOKEN"],
        [
            (
                f"sha256:{sha256(SECRET.encode()).hexdigest()[:8]}",
                f"sha256:{sha256(b'hf_another-token').hexdigest()[:8]}",
            )
        ],
    ),
    "mount added": (add_mount, ["mounts /more"], None),
    "label changed": (set_in("labels", "voices.flags", value="bbb"), ["labels voices.flags"], [("aaa", "bbb")]),
    "healthcheck changed": (
        set_in("healthcheck", "interval", value="400ms"),
        ["healthcheck interval"],
        [("0.3s", "0.4s")],
    ),
    "user": (set_in("user", value="1001:1001"), ["user"], [("1000:1000", "1001:1001")]),
    "restart policy": (set_in("restart", value="on-failure:2"), ["restart"], [("unless-stopped", "on-failure:2")]),
    "shm size": (set_in("shm_size", value="64m"), ["shm_size"], [("128 MiB", "64 MiB")]),
    "capabilities": (set_in("cap_drop", value=["NET_RAW"]), ["cap_drop"], [("ALL", "NET_RAW")]),
    "writable root": (set_in("read_only", value=False), ["read_only"], [("true", "false")]),
    "log rotation": (set_in("logging", "options", "max-size", value="5m"), ["logging"], None),
    "stop grace period": (set_in("stop_grace_period", value="7s"), ["stop_grace_period"], [(None, "7s")]),
    "a field unknown to the plan": (
        set_in("sysctls", value={"net.core.somaxconn": "64"}),
        ["service definition"],
        None,
    ),
}


@pytest.mark.parametrize("edit", RECREATES)
def test_an_edit_recreates_once_and_says_why(running: Project, edit: str) -> None:
    change, why, before_after = RECREATES[edit]
    old = running.one()["Id"]
    change(running)
    result = predicted(running)
    assert steps(result) == [("write", "compose.yaml", ""), *(("recreate", "engine", field) for field in why)]
    if before_after is not None:
        assert values(result) == before_after
    assert result["will_start"]
    assert running.one()["Id"] != old
    assert SECRET not in str(result)


def test_the_first_run(project: Project) -> None:
    result = predicted(project)
    network = f"network {project.name}_default"
    assert steps(result) == [("create", "compose.yaml", ""), ("create", network, ""), ("create", "engine", "")]
    assert project.one()["State"]["Health"]["Status"] == "healthy"
    assert SECRET not in str(result)


def test_a_changed_port(running: Project) -> None:
    before, running.port = running.port, free_port()
    running.service["ports"] = [f"127.0.0.1:{running.port}:8000"]
    result = predicted(running)
    assert steps(result)[1:] == [("recreate", "engine", "ports")]
    assert values(result) == [(f"127.0.0.1:{before}->8000/tcp", f"127.0.0.1:{running.port}->8000/tcp")]
    assert running.one()["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostPort"] == str(running.port)


def test_several_edits_are_one_recreate(running: Project) -> None:
    running.service["environment"]["THREADS"] = "8"
    running.service["user"] = "1002"
    assert steps(predicted(running))[1:] == [
        ("recreate", "engine", "environment THREADS"),
        ("recreate", "engine", "user"),
    ]


def test_an_orphan_service(running: Project) -> None:
    running.definition["services"]["helper"] = {"image": f"{PREFIX}:one", "command": ["sleep", "1000"], "init": True}
    assert steps(predicted(running))[1:] == [("create", "helper", "")]
    engine = running.run(check=True)["containers"][0]["id"]
    del running.definition["services"]["helper"]
    result = predicted(running)
    assert steps(result) == [("write", "compose.yaml", ""), ("remove", "helper", "orphan")]
    assert not result["will_start"]
    assert running.one()["Id"] == engine


def test_a_container_that_was_stopped_by_hand(running: Project) -> None:
    before = running.one()["Id"]
    running.api.stop(before, timeout=3)
    result = predicted(running)
    assert steps(result) == [("start", "engine", "exited")]
    assert result["will_start"]
    assert running.one()["Id"] == before
    assert running.one()["State"]["Health"]["Status"] == "healthy"


def test_a_container_that_was_removed_by_hand(running: Project) -> None:
    running.api.remove_container(running.one()["Id"], force=True)
    assert steps(predicted(running)) == [("create", "engine", "")]


def test_a_container_that_was_paused_by_hand_goes_on(running: Project) -> None:
    before = running.one()
    running.api.pause(before["Id"])
    result = predicted(running)
    assert steps(result) == [("resume", "engine", "paused")]
    assert not result["will_start"]
    assert running.one()["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_a_container_that_was_renamed_by_hand(running: Project) -> None:
    before = running.one()
    running.api.rename(before["Id"], f"{running.name}-mine")
    result = predicted(running)
    assert steps(result) == [("rename", "engine", "")]
    assert running.one()["Name"] == before["Name"]
    assert running.one()["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_compose_yaml_edited_by_hand_is_drift_and_is_put_right(running: Project) -> None:
    before = running.one()["Id"]
    file = running.directory / "compose.yaml"
    file.write_text(file.read_text().replace("THREADS: '1'", "THREADS: '99'"))
    result = predicted(running)
    assert steps(result) == [("write", "compose.yaml", "edited by hand")]
    assert not result["will_start"]
    assert file.read_text() == running.content
    assert running.one()["Id"] == before
    text = result["diff"][1]
    assert "THREADS: '99'" in text["before"] and "THREADS: '1'" in text["after"]
    assert SECRET not in str(result["diff"])


def test_an_edit_by_hand_that_was_applied_by_hand(running: Project) -> None:
    file = running.directory / "compose.yaml"
    file.write_text(file.read_text().replace("THREADS: '1'", "THREADS: '99'"))
    running.compose("-f", str(file), "up", "--detach", "--wait")
    result = predicted(running)
    assert steps(result) == [
        ("write", "compose.yaml", "edited by hand"),
        ("recreate", "engine", "environment THREADS"),
    ]
    assert values(result) == [("99", "1")]


def test_a_comment_changes_the_file_and_no_container(running: Project) -> None:
    before = running.one()
    result = predicted(running, content=f"# lv-austen: passed\n{running.content}")
    assert steps(result) == [("write", "compose.yaml", "")]
    assert running.one()["State"] | {"Health": None} == before["State"] | {"Health": None}


def test_an_image_that_was_rebuilt_under_its_name(api: Any, running: Project) -> None:
    running.service["image"] = f"{PREFIX}:own"
    first = make_image(api, "own", label="voices.build=1")
    running.run()
    second = make_image(api, "own", label="voices.build=2")
    result = predicted(running)
    assert steps(result) == [("recreate", "engine", "image id")]
    assert values(result) == [(first[7:19], second[7:19])]
    assert running.one()["Image"] == second


def test_what_an_image_brings_is_no_difference(api: Any, running: Project) -> None:
    make_image(api, "rich", label="a=b", env="EXTRA=1", user="1000", workdir="/bin", cmd='["sleep", "1000"]')
    running.service.update(image=f"{PREFIX}:rich", init=True)
    for key in ("command", "user", "labels"):
        del running.service[key]
    running.run()
    running.service["environment"]["EXTRA"] = "1"  # said twice is one thing, and still another definition
    assert steps(predicted(running))[1:] == [("recreate", "engine", "service definition")]
    running.service["environment"]["THREADS"] = "4"
    assert steps(predicted(running))[1:] == [("recreate", "engine", "environment THREADS")]


def test_a_network_that_was_disconnected_by_hand(running: Project) -> None:
    network = f"{running.name}_default"
    running.api.disconnect_container_from_network(running.one()["Id"], network)
    result = predicted(running)
    assert steps(result) == [("recreate", "engine", "network")]
    assert values(result) == [(None, network)]
    assert list(running.one()["NetworkSettings"]["Networks"]) == [network]


def test_a_network_that_is_defined_anew(running: Project) -> None:
    running.definition["networks"] = {"default": {"internal": True}}
    result = predicted(running)
    assert steps(result)[1:] == [
        ("recreate", f"network {running.name}_default", "internal"),
        ("recreate", "engine", "network"),
    ]
    (network,) = running.api.networks(names=[running.name])
    assert network["Internal"]


def test_another_run_of_a_rich_service_finds_nothing(running: Project, tmp_path: Path) -> None:
    """Fields that no seat uses today are read right, too: nothing but the change is named."""
    (tmp_path / "secret").write_text("x")
    running.definition["services"]["rich"] = {
        "image": f"{PREFIX}:one",
        "entrypoint": ["sh"],
        "command": '-c "while :; do sleep 1; done"',
        "environment": ["A=1", "B=x=$$y", "EMPTY="],
        "labels": ["l=abc$$d"],
        "expose": ["8000"],
        "ports": [f"{free_port()}:81/udp", "9000"],
        "ulimits": {"nofile": {"soft": 512, "hard": 1024}, "nproc": 200},
        "cap_add": ["SYS_PTRACE"],
        "devices": ["/dev/null:/dev/nul2", "/dev/zero"],
        "extra_hosts": ["other:127.0.0.1"],
        "group_add": ["44"],
        "ipc": "host",
        "hostname": "rich",
        "working_dir": "/bin",
        "mem_limit": "64m",
        "cpus": "0.5",
        "stop_signal": "SIGKILL",
        "tmpfs": ["/run:size=1m,mode=755"],
        "volumes": [
            "./:/project:ro",
            "vol:/vol",
            "/anonymous",
            {"type": "tmpfs", "target": "/t", "tmpfs": {"size": 1048576}},
        ],
        "secrets": ["key", {"source": "key", "target": "/etc/key"}],
        "configs": [{"source": "setting", "target": "/etc/setting"}],
        "healthcheck": {"disable": True},
        "security_opt": ["no-new-privileges"],
        "restart": "on-failure:3",
        "networks": ["default", "back"],
        "init": True,
    }
    running.definition |= {
        "volumes": {"vol": {}},
        "networks": {"back": {"internal": True, "labels": {"a": "b"}}},
        "secrets": {"key": {"file": str(tmp_path / "secret")}},
        "configs": {"setting": {"file": str(tmp_path / "secret")}},
    }
    predicted(running)
    running.definition["services"]["rich"]["hostname"] = "richer"
    assert steps(predicted(running))[1:] == [("recreate", "rich", "hostname")]


def test_a_check_and_a_run_with_nothing_to_do_start_no_compose_that_writes(running: Project) -> None:
    log, program = running.root / "log", running.root / "noting-compose"
    program.write_text(f'#!/bin/sh\necho "$*" >>"{log}"\nexec {" ".join(compose_command())} "$@"\n')
    program.chmod(0o755)
    running.run(compose=[str(program)])
    running.service["labels"]["voices.flags"] = "bbb"
    running.run(check=True, compose=[str(program)])
    project = f"--project-name {running.name} --project-directory {running.directory} --file - config"
    allowed = {"version --short", f"{project} --format json", f"{project} --hash *"}
    assert set(log.read_text().splitlines()) == allowed
    running.run(compose=[str(program)])
    assert [line for line in set(log.read_text().splitlines()) - allowed if " up --detach" not in line] == []
    assert " up --detach" in log.read_text()
