"""Talking to an engine: no socket, nobody there, no permission, and waiting for health. No engine is needed."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker.errors
import pytest
import requests.exceptions
from ansible.module_utils.voices.compose_checks import Questions
from ansible.module_utils.voices.compose_config import Port
from ansible.module_utils.voices.compose_engine import Engine, check_socket, explain, wait_until_healthy
from ansible.module_utils.voices.compose_state import Container
from ansible.module_utils.voices.plan import VoicesError

from tests.support.compose_fixture import Recorded
from tests.support.run_module import run_module

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="voices-") as directory:
        os.chmod(directory, 0o755)  # noqa: S103 - what is tested is the socket's own mode
        yield Path(directory)


def test_no_socket(place: Path) -> None:
    with pytest.raises(
        VoicesError, match=rf"no Docker socket at {place}/d.sock: install and start Docker .*Nothing was"
    ):
        check_socket(f"unix://{place}/d.sock")


def test_nobody_answers(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{place}/d.sock")
    with pytest.raises(
        VoicesError, match=rf"nothing answers at the Docker socket {place}/d.sock \(Connection refused\)"
    ):
        check_socket(f"unix://{place}/d.sock")


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:2375", "ssh://ann@host", "/var/run/docker.sock", "unix://relative"]
)
def test_another_host(address: str) -> None:
    with pytest.raises(VoicesError, match="a unix:///path is needed"):
        check_socket(address)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("where", ["socket", "directory"])
def test_no_permission(place: Path, where: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{place}/d.sock")
        listening.listen()
        os.chmod(place if where == "directory" else place / "d.sock", 0o700)
        check_socket(f"unix://{place}/d.sock")
        os.seteuid(NOBODY)
        try:
            with pytest.raises(VoicesError) as refused:
                check_socket(f"unix://{place}/d.sock")
        finally:
            os.seteuid(0)
    said = str(refused.value)
    assert said.startswith(f"user nobody may not use the Docker socket {place}/d.sock: ")
    assert "run this play with become" in said
    assert ("let it join group root (usermod -aG root nobody" in said) is (where == "socket")


def test_the_module_refuses_alike_in_both_modes(tmp_path: Path) -> None:
    given = {
        "project": "voices-tiny",
        "directory": str(tmp_path / "compose"),
        "content": "services: {a: {image: x}}",
        "docker_host": f"unix://{tmp_path}/none.sock",
    }
    results = [run_module("compose_project", given, check=check) for check in (True, False)]
    assert [result["failed"] for result in results] == [True, True]
    assert results[0]["msg"] == results[1]["msg"]
    assert list(tmp_path.iterdir()) == []
    wrong = run_module("compose_project", {**given, "project": "No Project"})
    assert "project 'No Project': lower-case letters" in wrong["msg"]
    missing = run_module("compose_project", {key: value for key, value in given.items() if key != "content"})
    assert "state is present but all of the following are missing: content" in missing["msg"]


def test_who_holds_a_port_and_what_is_missing(tmp_path: Path) -> None:
    engine = Engine.__new__(Engine)  # these questions are the host's, not the engine's
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = Port("127.0.0.1", server.getsockname()[1])
        udp = Port("127.0.0.1", port.port, "udp")
        answers = engine.answer(Questions(ports=(port, udp), paths=(str(tmp_path), f"{tmp_path}/none")))
    assert answers.missing == {f"{tmp_path}/none"}
    assert list(answers.holders) == [port]
    assert answers.holders[port].startswith(f"pid {os.getpid()} (user ")
    assert engine.answer(Questions(ports=(port,))).holders == {}


def test_an_engine_that_goes_away_is_named() -> None:
    gone = explain(requests.exceptions.ConnectionError("Connection aborted.", FileNotFoundError(2, "No such file")))
    assert gone.startswith("nothing any more (") and gone.endswith("see whether it runs, and run this again")
    refused = docker.errors.APIError("500 Server Error", explanation="port is already\n allocated")
    assert explain(refused) == "port is already allocated"


class Told:
    """A container whose state follows a script."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.asked = 0

    def __call__(self, container_id: str) -> Container:
        self.asked += 1
        state, _, health = (self.states.pop(0) if len(self.states) > 1 else self.states[0]).partition(" ")
        return replace(Recorded().container(), id=container_id, state=state, health=health)


@pytest.mark.parametrize(
    ("states", "late"),
    [
        (["running healthy"], []),
        (["running"], []),
        (["running starting", "running starting", "running healthy"], []),
        (["running unhealthy", "running healthy"], []),
        (["restarting starting", "running healthy"], []),
        (["running starting"], ["running"]),
        (["running unhealthy"], ["running"]),
        (["running starting", "exited unhealthy"], ["exited"]),
    ],
)
def test_waiting_for_health(states: list[str], late: list[str]) -> None:
    told = Told(*states)
    found = wait_until_healthy(told, ["a"], 0.1, poll_s=0.01)
    assert [container.state for container in found] == late


def test_what_has_ended_is_not_waited_for() -> None:
    told = Told("exited")
    assert wait_until_healthy(told, ["a"], 60, poll_s=0.01) and told.asked == 1


def test_no_time_left_is_one_look() -> None:
    told = Told("running starting")
    assert wait_until_healthy(told, ["a"], 0, poll_s=60) and told.asked == 1


def test_a_container_that_is_gone_is_not_waited_for() -> None:
    assert wait_until_healthy(lambda _: None, ["a"], 60) == []
