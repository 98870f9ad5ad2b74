"""How Compose is started and what is made of its answers, with a program that plays Compose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible.module_utils.voices.compose_cli import Compose
from ansible.module_utils.voices.plan import VoicesError

from tests.support.compose_fixture import Recorded


class Fake:
    """A program that answers as Compose would, and notes how it was called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        recorded = Recorded()
        self.answers = {
            "version": ("2.40.3", "", 0),
            "json": (recorded.data["config"], "", 0),
            "hash": (recorded.data["hashes"], "", 0),
            "up": ("", "", 0),
        }

    def compose(self) -> Compose:
        for name, (stdout, stderr, rc) in self.answers.items():
            for part, text in (("out", stdout), ("err", stderr), ("rc", str(rc))):
                (self.root / f"{name}.{part}").write_text(text)
        program = self.root / "compose"
        program.write_text(
            "#!/bin/sh\n"
            'case "$*" in *version*) name=version;; *json*) name=json;; *--hash*) name=hash;; *) name=up;; esac\n'
            f'cd "{self.root}"\n'
            'echo "$@" >"$name.args"; env >"$name.env"; cat >"$name.stdin"\n'
            'cat "$name.out"; cat "$name.err" >&2\n'
            '[ -f "$name.sleep" ] && exec sleep 100\n'
            'exit "$(cat "$name.rc")"\n'
        )
        program.chmod(0o755)
        return Compose([str(program), "compose"], "unix:///run/x.sock", "voices-tiny", "/srv/seat")

    def noted(self, name: str) -> str:
        return (self.root / name).read_text()


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def test_the_content_goes_in_and_nothing_is_written(fake: Fake) -> None:
    desired = fake.compose().desired("services: {}")
    assert list(desired.services) == ["engine"]
    project = "compose --project-name voices-tiny --project-directory /srv/seat --file - config"
    assert fake.noted("json.args").strip() == f"{project} --format json"
    assert fake.noted("hash.args").strip() == f"{project} --hash *"
    assert fake.noted("json.stdin") == fake.noted("hash.stdin") == "services: {}"


def test_the_callers_environment_does_not_reach_the_file(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "other")
    monkeypatch.setenv("DOCKER_CONTEXT", "other")
    monkeypatch.setenv("SEAT_PORT", "1")
    monkeypatch.setenv("DOCKER_CONFIG", "/srv/docker-config")
    fake.compose().desired("x")
    seen = fake.noted("json.env").splitlines()
    assert "DOCKER_HOST=unix:///run/x.sock" in seen
    assert "DOCKER_CONFIG=/srv/docker-config" in seen
    assert [line for line in seen if line.startswith(("COMPOSE_", "DOCKER_CONTEXT", "SEAT_"))] == []


@pytest.mark.parametrize("version", ["2.20.0", "v2.24.7", "2.40.3+ds1-0ubuntu1", "5.0.0-rc1", "10.1.2"])
def test_versions_that_will_do(fake: Fake, version: str) -> None:
    fake.answers["version"] = (version, "", 0)
    assert fake.compose().desired("x").services


@pytest.mark.parametrize("version", ["2.18.1", "v2.19.9", "1.29.2"])
def test_versions_that_are_too_old(fake: Fake, version: str) -> None:
    fake.answers["version"] = (version, "", 0)
    with pytest.raises(VoicesError, match=rf"Compose is {version}, and 2.20 or later is needed: install .*Nothing was"):
        fake.compose().desired("x")


def test_no_plugin(fake: Fake) -> None:
    fake.answers["version"] = ("", "unknown flag: --short\n\nUsage:  docker [OPTIONS] COMMAND", 125)
    with pytest.raises(
        VoicesError, match=r"`version --short` ended with 125: unknown flag: --short .*docker-compose-v2"
    ):
        fake.compose().desired("x")


def test_no_program() -> None:
    with pytest.raises(VoicesError, match=r"as `/no/such compose`: /no/such: No such file or directory\. Install"):
        Compose(["/no/such", "compose"], "unix:///x", "p", "/srv").desired("x")


def test_a_content_that_compose_does_not_take(fake: Fake) -> None:
    fake.answers["json"] = ("", "validating -: services.engine additional properties 'nope' not allowed\n", 15)
    with pytest.raises(VoicesError, match=r"does not take the content as a compose.yaml: validating -: .*'nope'"):
        fake.compose().desired("x")


def test_hashes_of_a_broken_file_are_none(fake: Fake) -> None:
    assert fake.compose().hashes("x").keys() == {"engine"}
    fake.answers["hash"] = ("", "yaml: line 1", 15)
    assert fake.compose().hashes("x") == {}


def up(compose: Compose, limit_s: float | None = 60, wait_s: float | None = 12.3) -> tuple[int, str, bool]:
    with open(os.devnull) as lock:
        result = compose.up(
            "/srv/seat/compose.yaml", wait_s=wait_s, stop_s=7, pull="never", limit_s=limit_s, lock=lock.fileno()
        )
    return result.rc, result.errors, result.timed_out


def test_up(fake: Fake) -> None:
    assert up(fake.compose()) == (0, "", False)
    assert fake.noted("up.args").strip() == (
        "compose --ansi never --project-name voices-tiny --project-directory /srv/seat --file /srv/seat/compose.yaml "
        "up --detach --no-build --quiet-pull --timeout 7 --pull never --wait --wait-timeout 13"
    )
    up(fake.compose(), wait_s=None)
    assert "--wait" not in fake.noted("up.args")


def test_what_up_says_besides_its_progress(fake: Fake) -> None:
    said = (
        " Network voices-tiny_default  Creating\n Network voices-tiny_default  Created\n"
        " Container voices-tiny-engine-1  Recreate\n Container voices-tiny-engine-1  Starting\n"
        " Container voices-tiny-engine-1  Error while Stopping\n"
        "Error response from daemon: driver failed programming external connectivity: port is already allocated\n"
    )
    fake.answers["up"] = ("", said, 1)
    rc, errors, _ = up(fake.compose())
    assert rc == 1
    assert errors.splitlines()[-1].startswith("Error response from daemon: driver failed")
    assert "Creating" not in errors and "Starting" not in errors


def test_an_up_that_does_not_end_is_ended(fake: Fake) -> None:
    (fake.root / "up.sleep").write_text("")
    fake.answers["up"] = ("", "pulling\n", 0)
    assert up(fake.compose(), limit_s=0.5) == (-1, "pulling", True)
