"""supervised_service with a real supervisord and a small HTTP server for an engine."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.voices.flags import mask_flags

from tests.support.run_module import run_module

REPOSITORY = Path(__file__).resolve().parents[2]
WRAPPER = REPOSITORY / "roles/voices_seat/files/service_run.py"
PROGRAM = REPOSITORY / "tests/support/tiny_service.py"
SUPERVISORD = str(Path(sys.executable).with_name("supervisord"))
API_KEY = "an-api-key-that-is-long-enough"
TOKEN = "hf_a-token-that-no-one-may-see"


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of ``condition``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if value := condition():
                return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str = "/about") -> dict[str, Any]:
    """A JSON answer of the service."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def alive(pid: int) -> bool:
    """Whether the pid runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pids_of(needle: str) -> list[int]:
    """Living processes with ``needle`` in their command line or environment, this test excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and alive(int(entry.name)):
            with contextlib.suppress(OSError):
                if needle.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return sorted(found)


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """Every file below ``root`` with inode, mode and content; logs grow with each request and are left out."""
    return {
        str(path): (
            path.lstat().st_ino,
            path.lstat().st_mode,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in root.rglob("*")
        if path.parent.name != "log"
    }


class Service:
    """One service in a directory of its own."""

    def __init__(self, root: Path, directory: str = "service") -> None:
        self.root = root
        self.directory = root / directory
        self.port = free_port()
        self.config_file = root / "engine.yaml"
        self.by_hand: list[subprocess.Popen[bytes]] = []
        self.given: dict[str, Any] = {}
        self.configure()

    def configure(self, **keys: Any) -> None:
        """Write the configuration, as engine_file would; its masked form goes with the next run."""
        self.given = {"port": self.port, "api-key": API_KEY, **keys}
        self.config_file.write_text(yaml.safe_dump(self.given))

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(PROGRAM), "--config", str(self.config_file)]

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """The module's parameters."""
        given = {
            "name": "tiny",
            "dir": str(self.directory),
            "argv": self.argv,
            "environment": {"THREADS": 1, "HF_TOKEN": TOKEN},
            "config_file": str(self.config_file),
            "config": mask_flags(self.given),
            "config_ignore": ["lora-modules"],
            "health_url": f"http://127.0.0.1:{self.port}/health",
            "listen_port": self.port,
            "health_timeout_s": 15,
            "start_seconds": 1,
            "stop_seconds": 3,
            "supervisord": SUPERVISORD,
            "python": sys.executable,
            "wrapper_source": str(WRAPPER),
            "adopt_environment": ["THREADS"],
            **changes,
        }
        return {name: value for name, value in given.items() if value is not None}

    def run(self, check: bool = False, **changes: Any) -> dict[str, Any]:
        """One run of the module; nothing it says may hold a secret."""
        result = run_module("supervised_service", self.arguments(**changes), check=check)
        assert TOKEN not in json.dumps(result)
        assert API_KEY not in json.dumps(result)
        return result

    def both(self, **changes: Any) -> dict[str, Any]:
        """A check run that must change nothing, then the real run, which must do what the check said."""
        before, running = tree(self.root), pids_of(str(self.root))
        said = self.run(check=True, **changes)
        assert (tree(self.root), pids_of(str(self.root))) == (before, running)
        done = self.run(**changes)
        assert "failed" not in done, done["msg"]
        for key in ("actions", "changed", "diff", "reasons", "will_start", "adopted"):
            assert done[key] == said[key], key
        return done

    def start_by_hand(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start the program without the module, in this test's own process group."""
        process = subprocess.Popen(
            [*self.argv, *options], env={"PATH": os.environ["PATH"], **environment}, stdout=subprocess.DEVNULL
        )
        self.by_hand.append(process)
        until(lambda: get(self.port), 5, "started by hand")
        return process

    def noted(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.directory / "run" / name).read_text()))

    def wrapper_pid(self) -> int:
        return int(self.noted("wrapper.lock")["pid"])

    def supervisord_pid(self) -> int:
        return int((self.directory / "run/supervisord.pid").read_text())

    def children(self, pid: int) -> list[int]:
        """The pids of the process's children."""
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def dos(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The plan's verbs and their reasons."""
    return [(action["do"], action["why"]) for action in result["actions"]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that does not exist yet; afterwards nothing of it may be left."""
    made = Service(tmp_path)
    yield made
    for process in made.by_hand:
        process.kill()
        process.wait()
    made.run(state="absent")
    assert pids_of(str(made.root)) == []


def test_a_service_lives_and_dies(service: Service) -> None:
    started = service.both()
    assert dos(started) == [("start", "it is new")]
    assert started["will_start"] is True
    assert started["pid"] == get(service.port)["pid"]

    again = service.both()
    assert (again["changed"], again["pid"], again["diff"]) == (False, started["pid"], [])

    service.configure(rank=16)
    restarted = service.both()
    assert restarted["actions"] == [{"do": "restart", "what": "tiny", "why": "rank", "before": None, "after": 16}]
    assert restarted["reasons"] == ["restart " + restarted["actions"][0]["what"] + ": rank (none) -> 16"]
    assert restarted["will_start"] is True
    assert restarted["pid"] == get(service.port)["pid"] != started["pid"]

    service.configure(rank=16, **{"lora-modules": ["lv-a=/store/a"]})
    assert service.both()["changed"] is False

    environment = {"THREADS": 2, "HF_TOKEN": TOKEN + "2"}
    other = service.both(environment=environment)
    assert [one["why"] for one in other["actions"]] == ["environment HF_TOKEN", "environment THREADS"]
    assert re.fullmatch(r"sha256:[0-9a-f]{8}", other["actions"][0]["after"])
    assert (other["actions"][1]["before"], other["actions"][1]["after"]) == ("1", "2")
    assert get(service.port)["environment"]["THREADS"] == "2"

    stopped = service.both(state="stopped")
    assert dos(stopped) == [("stop", "")]
    assert not alive(other["pid"])
    assert pids_of(str(service.root)) == []
    assert service.both(state="stopped")["changed"] is False
    assert dos(service.both(state="absent")) == [("remove", "")]
    assert not service.directory.exists()
    assert service.both(state="absent")["changed"] is False


def test_what_does_not_concern_the_process_is_taken_up_without_a_restart(service: Service) -> None:
    pid = service.both()["pid"]
    changed = service.both(stop_seconds=4)
    assert dos(changed) == [("write", "tiny runs on")] * 2
    assert [one["what"] for one in changed["actions"]] == ["supervisord.conf", "launch.json"]
    assert changed["will_start"] is False
    assert changed["pid"] == get(service.port)["pid"] == pid
    assert "stopwaitsecs=19" in (service.directory / "supervisord.conf").read_text()

    wrapper = service.wrapper_pid()
    text = WRAPPER.read_text() + "\n# newer\n"
    newer = service.both(stop_seconds=4, wrapper_source=None, wrapper=text)
    assert [one["what"] for one in newer["actions"]] == ["service_run.py"]
    assert newer["pid"] == get(service.port)["pid"] == pid
    until(lambda: service.wrapper_pid() != wrapper and not alive(wrapper), 5, "the newer wrapper takes over")

    assert [
        one["what"] for one in service.both(stop_seconds=4, wrapper_source=None, wrapper=text, log_backups=1)["actions"]
    ] == ["launch.json"]
    assert get(service.port)["pid"] == pid


def test_the_process_gets_its_own_environment_and_private_files(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_LEAK", "1")
    monkeypatch.setenv("HOME", str(service.root))
    pid = service.both()["pid"]
    assert os.getsid(pid) == os.getpgid(pid) == pid
    found = get(service.port)["environment"]
    assert found.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python itself sets it for its children's sake
    allowed = {"PATH", "HOME", "LANG", "USER", "TMPDIR"}
    assert set(found) - allowed == {"THREADS", "HF_TOKEN", "VOICES_SERVICE"}
    assert found["HOME"] == str(service.root)
    assert found["HF_TOKEN"] == TOKEN
    until(lambda: (service.directory / "run/members.json").exists(), 5, "the members")
    for path in [service.directory, *service.directory.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_killed_process_comes_back_without_orphans(service: Service) -> None:
    service.configure(child=1)
    pid = service.run()["pid"]
    (child,) = service.children(pid)
    os.kill(pid, signal.SIGKILL)
    again = until(lambda: get(service.port)["pid"], 10, "it comes back")
    assert again != pid
    assert not alive(child)
    result = service.both()
    assert (result["changed"], result["pid"]) == (False, again)


def test_orphans_of_a_killed_wrapper_and_process_are_ended_first(service: Service) -> None:
    service.configure(child=1)
    pid = service.run()["pid"]
    (child,) = service.children(pid)
    wrapper = service.wrapper_pid()
    os.kill(wrapper, signal.SIGSTOP)  # so that it cannot clear up
    os.kill(pid, signal.SIGKILL)
    os.kill(wrapper, signal.SIGKILL)
    until(lambda: get(service.port)["pid"] != pid, 10, "it comes back")
    assert not alive(child)


def test_a_killed_wrapper_does_not_interrupt_the_service(service: Service) -> None:
    pid = service.run()["pid"]
    failures: list[str] = []
    answers = 0
    done = threading.Event()

    def ask() -> None:
        nonlocal answers
        while not done.is_set():
            try:
                assert get(service.port)["pid"] == pid
                answers += 1
            except Exception as error:
                failures.append(repr(error))
            done.wait(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        first = service.wrapper_pid()
        os.kill(first, signal.SIGKILL)
        until(
            lambda: service.wrapper_pid() not in (0, first) and service.noted("wrapper.lock")["watching"], 10, "another"
        )
        assert service.both()["changed"] is False
    finally:
        done.set()
        asking.join()
    assert failures == []
    assert answers > 20
    os.kill(pid, signal.SIGKILL)
    until(lambda: get(service.port)["pid"] != pid, 10, "the new wrapper restarts it, too")


def test_a_killed_supervisord_is_replaced_around_the_process(service: Service) -> None:
    pid = service.run()["pid"]
    wrapper = service.wrapper_pid()
    os.kill(service.supervisord_pid(), signal.SIGKILL)
    until(lambda: not alive(service.supervisord_pid()), 5, "supervisord is dead")
    taken = service.both()
    assert dos(taken) == [("adopt", f"pid {pid} runs on, but its supervisord is not running")]
    assert taken["will_start"] is False
    assert taken["pid"] == get(service.port)["pid"] == pid
    until(lambda: not alive(wrapper), 5, "the old wrapper let go")
    assert service.both()["changed"] is False
    os.kill(pid, signal.SIGKILL)
    until(lambda: get(service.port)["pid"] != pid, 10, "it is watched")


def test_a_stop_without_supervisord_ends_the_whole_group(service: Service) -> None:
    service.configure(child=1)
    pid = service.run()["pid"]
    (child,) = service.children(pid)
    for killed in (service.supervisord_pid(), service.wrapper_pid(), pid):
        os.kill(killed, signal.SIGKILL)
    until(lambda: not alive(pid), 5, "dead")
    assert alive(child)
    assert dos(service.both(state="stopped")) == [("stop", "")]
    assert not alive(child)


def test_a_lost_directory_does_not_hide_the_service(service: Service) -> None:
    service.configure(child=1)
    pid = service.run()["pid"]
    shutil.rmtree(service.directory)
    taken = service.both()
    assert dos(taken) == [("adopt", f"pid {pid} runs as the inventory says")]
    assert taken["pid"] == get(service.port)["pid"] == pid
    shutil.rmtree(service.directory)
    assert dos(service.both(state="stopped")) == [("stop", "")]
    assert pids_of(str(service.root)) == []
    assert not service.directory.exists()


def test_a_stubborn_process_is_killed(service: Service) -> None:
    service.configure(child=1, stubborn=1)
    pid = service.run(stop_seconds=1)["pid"]
    (child,) = service.children(pid)
    service.run(state="stopped", stop_seconds=1)
    assert not alive(pid)
    assert not alive(child)


def test_a_process_started_by_hand_is_adopted(service: Service) -> None:
    service.configure(child=1)
    by_hand = service.start_by_hand(THREADS="1")
    taken = service.both()
    assert dos(taken) == [("adopt", f"pid {by_hand.pid} runs as the inventory says")]
    assert (taken["pid"], taken["adopted"], taken["will_start"]) == (by_hand.pid, True, False)
    again = service.both()
    assert (again["changed"], again["pid"], again["adopted"]) == (False, by_hand.pid, True)
    until(lambda: service.noted("members.json")["members"], 5, "the members")
    (child,) = service.children(by_hand.pid)

    by_hand.kill()
    by_hand.wait()
    started = until(lambda: get(service.port)["pid"], 10, "a normal start follows")
    assert started != by_hand.pid
    assert not alive(child)
    result = service.both()
    assert (result["changed"], result["pid"], result["adopted"]) == (False, started, False)


def test_an_adopted_process_is_stopped_and_its_neighbours_are_not(service: Service) -> None:
    service.configure(child=1)
    by_hand = service.start_by_hand(THREADS="1")  # in the process group of this very test
    (child,) = service.children(by_hand.pid)
    service.run()
    service.run(state="stopped")
    assert by_hand.wait(timeout=1) == -signal.SIGTERM
    assert not alive(child)


@pytest.mark.parametrize(
    ("options", "environment", "named"),
    [
        (["--rank", "8"], {"THREADS": "1"}, "rank 8 here, not set wanted"),
        ([], {"THREADS": "2"}, "environment THREADS 2 here, 1 wanted"),
    ],
    ids=["flag", "environment"],
)
def test_a_process_that_differs_is_refused(
    service: Service, options: list[str], environment: dict[str, str], named: str
) -> None:
    by_hand = service.start_by_hand(*options, **environment)
    for check in (True, False):
        refused = service.run(check=check)
        assert refused["failed"] is True
        assert f"port 127.0.0.1:{service.port} is taken by pid {by_hand.pid}" in refused["msg"]
        assert str(PROGRAM) in refused["msg"]
        assert named in refused["msg"]
        assert f"kill {by_hand.pid}" in refused["msg"]
    assert by_hand.poll() is None
    assert not service.directory.exists()


def test_a_configuration_changed_after_the_start_cannot_be_known(service: Service) -> None:
    by_hand = service.start_by_hand(THREADS="1")
    service.configure()
    refused = service.run()
    assert re.search(
        r"engine.yaml was changed \d+\.\d\d s after the process started, so what it runs with cannot be known",
        refused["msg"],
    )
    assert by_hand.poll() is None


def test_another_program_on_the_port_is_refused(service: Service) -> None:
    with socket.create_server(("127.0.0.1", service.port)):
        refused = service.run()
        assert f"taken by pid {os.getpid()}" in refused["msg"]
        assert "program" in refused["msg"]
    assert not service.directory.exists()


def test_another_servers_200_is_not_health(service: Service) -> None:
    service.configure(delay=30)
    result: dict[str, Any] = {}
    running = threading.Thread(target=lambda: result.update(service.run(health_timeout_s=3)))
    running.start()
    until(lambda: service.noted("booted.json"), 5, "our process starts")
    service.by_hand.append(
        subprocess.Popen([sys.executable, str(PROGRAM), "--port", str(service.port)], stdout=subprocess.DEVNULL)
    )
    stranger = service.by_hand[-1].pid
    until(lambda: get(service.port)["pid"] == stranger, 3, "the stranger answers")
    running.join()
    assert result["failed"] is True
    assert f"is held by pid {stranger}" in result["msg"]
    assert not (service.directory / "run/healthy.json").exists()


def test_a_process_that_cannot_start_is_given_up_with_its_own_error(service: Service) -> None:
    service.configure(**{"die-after": 0.1, "delay": 9})
    previous = Path(f"{service.config_file}.previous")
    previous.write_text("port: 1\n")
    began = time.monotonic()
    failed = service.run(start_retries=1, start_seconds=5, health_timeout_s=60)
    assert time.monotonic() - began < 15
    assert re.search(
        r"service tiny is not healthy after \d+\.\d s \(limit 60 s\): it ended 2 times within 5 s", failed["msg"]
    )
    assert "supervisord says FATAL" in failed["msg"]
    assert str(service.directory / "log/service.log") in failed["msg"]
    assert "ValueError: the key *** does not fit 3 < 4" in failed["msg"]
    assert "\x1b" not in failed["msg"]
    assert str(previous) in failed["msg"]
    assert not (service.directory / "run/healthy.json").exists()

    # Given up visibly: the next run, checked or real, plans the start.
    service.configure()
    assert dos(service.both()) == [("start", "supervisord says FATAL")]
    assert get(service.port)


def test_a_process_that_never_gets_healthy_is_named(service: Service) -> None:
    service.configure(answer=503)
    failed = service.run(health_timeout_s=1.5)
    assert f"http://127.0.0.1:{service.port}/health answers 503" in failed["msg"]
    assert "last lines of this start:" in failed["msg"]


def test_a_process_that_ends_late_is_not_waited_for(service: Service) -> None:
    # Long after its start_seconds of 1: a slow machine must still see it RUNNING before it ends.
    service.configure(**{"die-after": 5, "delay": 60})
    failed = service.run(health_timeout_s=90)
    assert "it ended 2 times before it was healthy" in failed["msg"]
    assert failed["msg"].count("ValueError") >= 1


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    long = Service(tmp_path, "d" * 120)
    leaf = hashlib.sha256(str(long.directory).encode()).hexdigest()[:12]
    short = Path("/tmp") / f"voices-{os.geteuid()}-{leaf}"  # noqa: S108 - the module's own choice
    short.mkdir()
    short.chmod(0o755)  # whatever the umask
    try:
        refused = long.run()
        assert f"{short} must be a directory of" in refused["msg"]
        short.rmdir()
        pid = long.both()["pid"]
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
        assert long.both()["pid"] == pid
        shutil.rmtree(short)  # as a cleaner of temporary files might do
        assert dos(long.both()) == [("adopt", f"pid {pid} runs on, but its supervisord does not answer")]
        assert get(long.port)["pid"] == pid
    finally:
        long.run(state="absent")
    assert not short.exists()
    assert pids_of(str(tmp_path)) == []


def test_a_reused_pid_is_never_signalled(service: Service) -> None:
    service.run()
    service.run(state="stopped")
    bystander = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        noted = {**service.noted("booted.json"), "pid": bystander.pid, "group": bystander.pid}
        (service.directory / "run/booted.json").write_text(json.dumps(noted))
        assert service.run(state="stopped")["changed"] is False
        service.run()
        service.run(state="stopped")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_runs_at_once_start_one_process(service: Service) -> None:
    script = (
        "import json, sys, tests.conftest\n"
        "from tests.support.run_module import run_module\n"
        "print(json.dumps(run_module('supervised_service', json.load(sys.stdin))))\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for one in runs:
        assert one.stdin is not None
        one.stdin.write(json.dumps(service.arguments()))
        one.stdin.close()
    results = []
    for one in runs:
        assert one.stdout is not None
        results.append(json.loads(one.stdout.read()))
        one.wait()
    assert sorted(result["changed"] for result in results) == [False, True]
    assert len({result["pid"] for result in results}) == 1


def test_a_missing_supervisord_stops_nothing(service: Service) -> None:
    pid = service.run()["pid"]
    service.configure(rank=1)
    refused = service.run(supervisord="/nonexistent/supervisord")
    assert "/nonexistent/supervisord is not an executable file" in refused["msg"]
    assert get(service.port)["pid"] == pid


def test_the_log_is_rotated_while_the_process_writes(service: Service) -> None:
    service.run(log_max_mib=1, log_backups=1)
    log = service.directory / "log/service.log"
    with log.open("a") as stream:
        stream.write("x" * 2**20 + "\n")
    until(lambda: log.with_name("service.log.1").exists() and log.stat().st_size < 2**20, 5, "rotated")
    get(service.port)
    until(lambda: "INFO" in log.read_text(), 5, "the process writes on, at the new beginning")
    assert "\0" not in log.read_text()
