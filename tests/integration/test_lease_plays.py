"""The lease between real ansible-playbook runs: two at once, waiting, killed, expired, checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.lease import from_text, remaining_s
from ansible.module_utils.voices.lease_file import Host
from ansible.module_utils.voices.processes import Process, command_line, process_table, read_process

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 60

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="a play is watched through /proc")

#: Takes the lease, says so, and works on the seat until the file "go" appears.
WORK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - seat_lease: {path: "{{ lease }}", holder: ann@desk, ttl_s: "{{ ttl_s }}"}
      register: taken
    - copy: {content: "{{ taken | to_json }}", dest: "{{ directory }}/working.json", mode: "0600"}
    - wait_for: {path: "{{ directory }}/go", timeout: 120, sleep: 1}
    - seat_lease: {path: "{{ lease }}", state: free, token: "{{ taken.token }}"}
"""

#: One lease task, whose result goes to a file.
ONCE = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - seat_lease:
        path: "{{ lease }}"
        holder: bob@desk
        state: "{{ state | default('held') }}"
        token: "{{ token | default(omit) }}"
        wait_s: "{{ wait_s | default(0) }}"
      register: once
    - copy: {content: "{{ once | to_json }}", dest: "{{ result }}", mode: "0600"}
      check_mode: false
"""

RENEW = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - seat_lease: {path: "{{ lease }}", holder: ann@desk, ttl_s: 60}
      register: first
    - seat_lease: {path: "{{ lease }}", holder: ann@desk, ttl_s: 600, token: "{{ first.token }}"}
      register: second
    - seat_lease: {path: "{{ lease }}", holder: ann@desk, token: "{{ second.token }}"}
      register: masked
      ignore_errors: true
    - seat_lease: {path: "{{ lease }}", state: free, token: "{{ first.token }}"}
      register: freed
    - copy: {content: "{{ [first, second, masked, freed] | to_json }}", dest: "{{ result }}", mode: "0600"}
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of ``condition``, asked for up to a minute."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE_S} s: {what}")


def descendants(pid: int) -> list[Process]:
    """Every live process below ``pid``, from one look at /proc."""
    family, found = {pid}, process_table().values()
    while True:
        children = {each.pid for each in found if each.parent in family} - family
        if not children:
            return [each for each in found if each.pid in family - {pid}]
        family |= children


def lives(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and now.start_time == process.start_time and not now.gone


def runs(process: Process, word: str) -> bool:
    """Whether ``word`` stands in its command line."""
    return word in " ".join(command_line(process.pid) or ())


def age_s(process: Process) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_time / os.sysconf("SC_CLK_TCK")


class Desk:
    """A directory with plays and a lease, and the runs started there, which end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lease = directory / "leases" / "tiny.json"
        self.runs: list[subprocess.Popen[str]] = []
        self.family: list[Process] = []
        for name, play in (("work", WORK), ("once", ONCE), ("renew", RENEW)):
            (directory / f"{name}.yml").write_text(play)

    def start(self, play: str, *options: str, **variables: Any) -> subprocess.Popen[str]:
        """Start a play in a process group of its own."""
        variables = {"lease": str(self.lease), "directory": str(self.directory), "ttl_s": 3600, **variables}
        variables["ansible_python_interpreter"] = sys.executable
        program = Path(sys.executable).with_name("ansible-playbook")
        arguments = [str(self.directory / f"{play}.yml"), "-i", "localhost,", "-e", json.dumps(variables), *options]
        return self.popen([str(program), *arguments])

    def popen(self, argv: list[str]) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.directory / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "ansible" / "local"),
            "ANSIBLE_REMOTE_TEMP": str(self.directory / "ansible" / "remote"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_DISPLAY_FAILED_STDERR": "0",
        }
        with open(self.directory / f"output-{len(self.runs)}", "w") as output:
            run = subprocess.Popen(
                argv,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.runs.append(run)
        return run

    def output(self, run: subprocess.Popen[str]) -> str:
        """What a run printed, in one line, since Ansible wraps at the width of the screen."""
        return " ".join((self.directory / f"output-{self.runs.index(run)}").read_text().split())

    def working(self, **variables: Any) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Ann's play, at work under the lease, and what its lease task returned."""
        run = self.start("work", **variables)
        told = self.directory / "working.json"
        until(lambda: told.exists() or run.poll() is not None, "the first play takes the lease")
        assert run.poll() is None, self.output(run)
        until(lambda: any(runs(each, "wait_for") for each in descendants(run.pid)), "it works on the seat")
        return run, json.loads(told.read_text())

    def once(self, *options: str, **variables: Any) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Bob's play, to its end, and what its lease task returned (nothing when it failed)."""
        result = self.directory / f"result-{len(self.runs)}.json"
        run = self.start("once", *options, result=str(result), **variables)
        run.wait(PATIENCE_S)
        return run, json.loads(result.read_text()) if result.exists() else {}

    def kill(self, run: subprocess.Popen[str], group: bool) -> list[Process]:
        """SIGKILL a play and return its descendants. Its exit status stays unread: it is a zombie, as under a shell."""
        family = descendants(run.pid)
        self.family += family
        if group:
            os.killpg(run.pid, signal.SIGKILL)
        else:
            os.kill(run.pid, signal.SIGKILL)
        return family

    def close(self) -> None:
        """End what still runs, by pid and start time."""
        for run in self.runs:
            if run.poll() is None:
                self.family += descendants(run.pid)
                run.kill()
            run.wait(PATIENCE_S)
        for process in self.family:
            if lives(process):
                os.kill(process.pid, signal.SIGKILL)
        for process in self.family:
            until(lambda process=process: not lives(process), f"{process} ends")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, subprocess.Popen[str], dict[str, Any]]]:
    """A desk where ann works under the lease for as long as the tests that only look need it."""
    desk = Desk(tmp_path_factory.mktemp("shared"))
    try:
        yield desk, *desk.working()
    finally:
        desk.close()


Shared = tuple[Desk, "subprocess.Popen[str]", dict[str, Any]]


def test_the_lease_names_the_play_and_nothing_shorter_lived(shared: Shared) -> None:
    _, ann, taken = shared
    assert (taken["lease"]["pid"], taken["lease"]["anchor"]) == (ann.pid, "ansible-playbook")
    assert (taken["changed"], taken["holder"], taken["took_over"]) == (False, "ann@desk", "")


def test_of_two_plays_at_once_the_second_fails_and_says_who_holds_the_seat(shared: Shared) -> None:
    desk, ann, _ = shared
    before = desk.lease.read_bytes()
    bob, result = desk.once()
    assert (bob.returncode, result) == (2, {})
    assert "seat tiny is held by ann@desk since " in desk.output(bob)
    assert f"UTC (pid {ann.pid}); wait (wait_s), or if that play hangs, end pid {ann.pid}" in desk.output(bob)
    assert desk.lease.read_bytes() == before


def test_a_token_of_another_holder_frees_nothing(shared: Shared) -> None:
    desk, _, _ = shared
    before = desk.lease.read_bytes()
    bob, _ = desk.once(state="free", token="bobs-own-token-from-an-earlier-run")
    assert bob.returncode == 2
    assert "this token does not hold the lease of seat tiny, so nothing was freed" in desk.output(bob)
    assert desk.lease.read_bytes() == before


def test_check_mode_reports_the_holder_and_takes_nothing(shared: Shared) -> None:
    desk, ann, taken = shared
    before = (desk.lease.read_bytes(), desk.lease.stat().st_ino, sorted(desk.lease.parent.iterdir()))
    bob, result = desk.once("--check")
    assert (bob.returncode, result["holder"], result["token"]) == (0, "ann@desk", "")
    assert result["lease"] == {**taken["lease"], "pid": ann.pid}
    assert "a real run would wait for it or fail: seat tiny is held by ann@desk" in desk.output(bob)
    assert (desk.lease.read_bytes(), desk.lease.stat().st_ino, sorted(desk.lease.parent.iterdir())) == before


def test_check_mode_before_the_first_run_makes_no_directory(desk: Desk) -> None:
    bob, result = desk.once("--check")
    assert (bob.returncode, result["holder"], result["changed"]) == (0, "", False)
    assert not desk.lease.parent.exists()


def test_a_play_with_wait_s_waits_and_then_gets_the_lease(desk: Desk) -> None:
    ann, _ = desk.working()
    result = desk.directory / "bob.json"
    bob = desk.start("once", result=str(result), wait_s=PATIENCE_S)
    until(
        lambda: any(age_s(each) > 2 for each in descendants(bob.pid) if runs(each, "seat_lease")),
        "bob waits",
    )
    assert not result.exists()
    (desk.directory / "go").touch()
    assert (bob.wait(PATIENCE_S), ann.wait(PATIENCE_S)) == (0, 0), desk.output(bob) + desk.output(ann)
    got = json.loads(result.read_text())
    assert (got["holder"], got["took_over"], got["lease"]["pid"]) == ("bob@desk", "", bob.pid)
    assert 0 < got["waited_s"] < PATIENCE_S


@pytest.mark.parametrize("group", [False, True], ids=["controller alone", "process group"])
def test_a_killed_play_frees_the_seat_at_once(desk: Desk, group: bool) -> None:
    ann, _ = desk.working()
    family = desk.kill(ann, group)
    if not group:
        # What makes this the harder case: the task's own processes outlive the play.
        assert any(lives(process) for process in family)
    bob, result = desk.once()
    assert bob.returncode == 0, desk.output(bob)
    assert (result["holder"], result["lease"]["pid"]) == ("bob@desk", bob.pid)
    assert result["took_over"] == f"took over the lease of ann@desk: its play (pid {ann.pid}) is gone"
    assert result["waited_s"] < 1


def test_an_expired_lease_is_taken_over_and_the_run_says_so(desk: Desk) -> None:
    ann, _ = desk.working(ttl_s=1)
    until(lambda: remaining_s(from_text(desk.lease.read_text()), Host().here()) <= 0, "the lease expires")
    bob, result = desk.once()
    assert bob.returncode == 0, desk.output(bob)
    assert result["holder"] == "bob@desk"
    said = f"although its play (pid {ann.pid}) is still there"
    assert "took over the lease of ann@desk: it expired" in result["took_over"]
    assert said in result["took_over"]
    assert said in desk.output(bob)


def test_the_same_token_renews_and_frees_and_its_mask_is_refused(desk: Desk) -> None:
    result = desk.directory / "renewed.json"
    ann = desk.start("renew", result=str(result))
    assert ann.wait(PATIENCE_S) == 0, desk.output(ann)
    first, second, masked, freed = json.loads(result.read_text())
    assert first["lease"]["since"] == second["lease"]["since"]
    assert first["lease"]["expires"] < second["lease"]["expires"]
    assert first["token"] not in json.dumps(second)
    assert masked["failed"]
    assert "Ansible's mask" in masked["msg"]
    assert (freed["holder"], freed["changed"]) == ("", False)
    assert not desk.lease.exists()


def test_an_ad_hoc_command_is_its_own_anchor(desk: Desk) -> None:
    program = Path(sys.executable).with_name("ansible")
    request = json.dumps({"path": str(desk.lease), "holder": "ann@desk"})
    local = json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
    run = desk.popen([str(program), "localhost", "-i", "localhost,", "-e", local, "-m", "seat_lease", "-a", request])
    assert run.wait(PATIENCE_S) == 0, desk.output(run)
    assert json.loads(desk.lease.read_text())["anchor"]["pid"] == run.pid
    assert json.loads(desk.lease.read_text())["anchor"]["command"] == "ansible"
