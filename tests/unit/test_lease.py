"""The lease's rules: who holds a seat, when a lease ends, which process is the play, and what a person is told."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import seat_lease
from ansible.module_utils.testing import patch_module_args
from ansible.module_utils.voices.anchor import (
    Ancestor,
    Anchor,
    ansible_command,
    choose_anchor,
    find_anchor,
    is_running,
)
from ansible.module_utils.voices.lease import Here, Request, as_text, from_text, remaining_s
from ansible.module_utils.voices.lease_file import Host, LeaseFile, foresee, free, report, take
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.processes import Process, read_process
from ansible.module_utils.voices.times import epoch_of, iso_utc

NOON = epoch_of("2026-11-30T12:00:00Z")
ANN_PLAY = Anchor(4242, 1000, "ansible-playbook")
BOB_PLAY = Anchor(5151, 2000, "ansible-playbook")
TOKEN = "a-token-of-enough-length"

PLAYBOOK = ("/opt/venv/bin/python3.11", "/opt/venv/bin/ansible-playbook", "-i", "localhost,", "site.yml")


class FakeHost(Host):
    """A host whose clocks and processes the test moves."""

    def __init__(self, anchor: Anchor | None, host: str = "fv-ml1", boot: str = "boot-1", namespace: str = "pid:[1]"):
        self.play = anchor
        self.alive = {ANN_PLAY, BOB_PLAY}
        self.name, self.boot, self.namespace = host, boot, namespace
        self.wall_s, self.boot_s = NOON, 5000.0
        self.paused: list[float] = []
        self.during_pause: Any = None

    def here(self) -> Here:
        return Here(self.name, self.boot, self.namespace, self.wall_s, self.boot_s if self.boot else None)

    def anchor(self) -> Anchor | None:
        return self.play

    def running(self, anchor: Anchor) -> bool:
        return anchor in self.alive

    def monotonic_s(self) -> float:
        return self.boot_s

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.pass_time(seconds)
        if self.during_pause:
            self.during_pause(self)

    def pass_time(self, seconds: float) -> None:
        self.wall_s += seconds
        self.boot_s += seconds


@pytest.fixture
def file(tmp_path: Path) -> LeaseFile:
    return LeaseFile(tmp_path / "leases" / "tiny.json")


@pytest.fixture
def ann() -> FakeHost:
    return FakeHost(ANN_PLAY)


@pytest.fixture
def bob() -> FakeHost:
    return FakeHost(BOB_PLAY)


def held_by_ann(file: LeaseFile, host: FakeHost, **request: Any) -> str:
    return take(file, Request("ann@desk", **request), host).token


def refusal(file: LeaseFile, host: FakeHost, **request: Any) -> str:
    with pytest.raises(VoicesError) as caught:
        take(file, Request("bob@desk", **request), host)
    return str(caught.value)


# --- taking, waiting, renewing, freeing


def test_a_second_operator_is_told_who_since_when_until_when_and_what_to_do(
    file: LeaseFile, ann: FakeHost, bob: FakeHost
) -> None:
    held_by_ann(file, ann)
    bob.pass_time(60)
    before = file.path.read_bytes()
    assert refusal(file, bob) == (
        "seat tiny is held by ann@desk since 12:00:00, until 13:00:00 UTC (pid 4242);"
        " wait (wait_s), or if that play hangs, end pid 4242: the lease ends with it"
    )
    assert file.path.read_bytes() == before


def test_the_file_tells_everybody_who_holds_the_seat_and_nobody_the_token(file: LeaseFile, ann: FakeHost) -> None:
    token = held_by_ann(file, ann)
    assert len(token) >= 24
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644
    assert token not in file.path.read_text()
    found = json.loads(file.path.read_text())
    assert (found["holder"], found["anchor"]["pid"], found["expires"]) == ("ann@desk", 4242, "2026-11-30T13:00:00.000Z")


def test_two_leases_get_two_tokens(file: LeaseFile, ann: FakeHost) -> None:
    first = held_by_ann(file, ann)
    free(file, first, ann)
    assert held_by_ann(file, ann) != first


def test_renewing_with_the_token_extends_and_keeps_since(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    token = held_by_ann(file, ann, ttl_s=100)
    ann.pass_time(90)
    renewed = take(file, Request("ann@desk", token, ttl_s=100), ann)
    assert renewed.token == token
    assert renewed.took_over == ""
    assert renewed.public["since"] == "2026-11-30T12:00:00.000Z"
    assert renewed.public["expires"] == "2026-11-30T12:03:10.000Z"
    bob.pass_time(150)
    assert "held by ann@desk" in refusal(file, bob)
    bob.pass_time(41)
    assert take(file, Request("bob@desk"), bob).took_over


def test_renewing_moves_the_lease_to_the_play_that_renews(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    token = held_by_ann(file, ann)
    ann.play = Anchor(4300, 1500, "sshd")
    ann.alive = bob.alive = {ann.play, BOB_PLAY}
    take(file, Request("ann@desk", token), ann)
    assert "(pid 4300, its ssh connection)" in refusal(file, bob)


def test_an_ended_lease_that_nobody_took_is_renewed_by_its_token(file: LeaseFile, ann: FakeHost) -> None:
    token = held_by_ann(file, ann, ttl_s=10)
    ann.pass_time(11)
    assert take(file, Request("ann@desk", token), ann).took_over == ""


def test_a_holder_without_a_token_is_told_that_it_is_this_very_play(file: LeaseFile, ann: FakeHost) -> None:
    held_by_ann(file, ann)
    assert "this very play: give it the token" in refusal(file, ann)


@pytest.mark.parametrize(
    ("own", "said"), [(True, "its ssh connection, which this run shares"), (False, "its ssh connection")]
)
def test_an_ssh_connection_left_open_is_told_as_such(
    file: LeaseFile, ann: FakeHost, bob: FakeHost, own: bool, said: str
) -> None:
    session = Anchor(4300, 1500, "sshd")
    ann.play = session
    ann.alive = bob.alive = {session, BOB_PLAY}
    held_by_ann(file, ann)
    fix = f"wait (wait_s), or if that play is known to be gone, remove {file.path} or end pid 4300"
    assert refusal(file, ann if own else bob).endswith(f"(pid 4300, {said}); {fix}")
    bob.alive = {BOB_PLAY}
    assert take(file, Request("bob@desk"), bob).took_over.endswith("its ssh connection (pid 4300) is gone")


def test_a_lost_lease_is_not_renewed(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    token = held_by_ann(file, ann, ttl_s=10)
    bob.pass_time(11)
    take(file, Request("bob@desk"), bob)
    with pytest.raises(VoicesError, match="held by bob@desk"):
        take(file, Request("ann@desk", token), ann)


def test_waiting_gets_the_lease_once_it_is_free(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    token = held_by_ann(file, ann)

    def free_after_three(host: FakeHost) -> None:
        if len(host.paused) == 3:
            free(file, token, ann)

    bob.during_pause = free_after_three
    outcome = take(file, Request("bob@desk", wait_s=60), bob)
    assert outcome.public["holder"] == "bob@desk"
    assert (outcome.waited_s, outcome.took_over) == (1.5, "")


def test_waiting_ends_after_wait_s_and_says_so(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    held_by_ann(file, ann)
    said = refusal(file, bob, wait_s=2)
    assert sum(bob.paused) == 2
    assert "is still held by ann@desk" in said
    assert "after 2 s of waiting" in said


def test_a_play_killed_while_its_module_waits_takes_nothing(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    token = held_by_ann(file, ann)

    def kill_bob_and_free(host: FakeHost) -> None:
        host.alive.discard(BOB_PLAY)
        free(file, token, ann)

    bob.during_pause = kill_bob_and_free
    assert "pid 5151) is gone" in refusal(file, bob, wait_s=60)
    assert not file.path.exists()


def test_freeing_is_for_the_holder_of_the_token(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    held_by_ann(file, ann)
    before = file.path.read_bytes()
    with pytest.raises(VoicesError, match=r"does not hold the lease of seat tiny, so nothing was freed: .*ann@desk"):
        free(file, TOKEN, bob)
    assert file.path.read_bytes() == before


def test_a_freed_seat_is_free_and_freeing_again_is_fine(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    token = held_by_ann(file, ann)
    free(file, token, ann)
    free(file, token, ann)
    assert report(file, bob).lease is None
    assert take(file, Request("bob@desk"), bob).took_over == ""


def test_freeing_what_was_never_taken_makes_no_directory(file: LeaseFile, ann: FakeHost) -> None:
    assert free(file, TOKEN, ann).lease is None
    assert not file.path.parent.exists()


def test_freeing_a_lease_of_another_that_has_ended_leaves_its_file(
    file: LeaseFile, ann: FakeHost, bob: FakeHost
) -> None:
    held_by_ann(file, ann)
    bob.alive = {BOB_PLAY}
    before = file.path.read_bytes()
    assert free(file, TOKEN, bob).lease is None
    assert file.path.read_bytes() == before


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(""), "holder ''"),
        (Request("ann\nforged line"), "one line"),
        (Request("a" * 129), "1 to 128"),
        (Request("ann", ttl_s=0), "ttl_s is 0"),
        (Request("ann", ttl_s=604_801), "604800"),
        (Request("ann", wait_s=-1), "wait_s is -1"),
        (Request("ann", "short"), "5 characters, at least 16"),
        (Request("ann", "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"), "Ansible's mask"),
    ],
)
def test_a_bad_request_takes_nothing(file: LeaseFile, ann: FakeHost, request_: Request, said: str) -> None:
    for ask in (take, foresee):
        with pytest.raises(VoicesError, match=said):
            ask(file, request_, ann)
    assert not file.path.parent.exists()


def test_freeing_needs_a_token(file: LeaseFile, ann: FakeHost) -> None:
    held_by_ann(file, ann)
    with pytest.raises(VoicesError, match="needs the token"):
        free(file, "", ann)
    assert file.path.exists()


# --- when a lease ends


def test_the_end_of_the_play_frees_the_seat(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    held_by_ann(file, ann)
    bob.alive = {BOB_PLAY}
    outcome = take(file, Request("bob@desk"), bob)
    assert outcome.took_over == "took over the lease of ann@desk: its play (pid 4242) is gone"
    assert outcome.warning == outcome.took_over


def test_expiry_frees_the_seat_and_tells_that_the_play_still_runs(
    file: LeaseFile, ann: FakeHost, bob: FakeHost
) -> None:
    held_by_ann(file, ann, ttl_s=10)
    bob.pass_time(9.9)
    assert "held by ann@desk" in refusal(file, bob)
    bob.pass_time(5)
    assert "expired 5 s ago, although its play (pid 4242) is still there" in take(file, Request("bob"), bob).took_over


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_step_of_the_clock_neither_frees_nor_prolongs(
    file: LeaseFile, ann: FakeHost, bob: FakeHost, step_s: float
) -> None:
    held_by_ann(file, ann, ttl_s=600)
    bob.wall_s += step_s
    assert "held by ann@desk" in refusal(file, bob)
    bob.boot_s += 601
    assert "expired 1 s ago" in take(file, Request("bob"), bob).took_over


def test_after_a_clock_step_the_message_tells_the_end_on_the_new_clock(
    file: LeaseFile, ann: FakeHost, bob: FakeHost
) -> None:
    held_by_ann(file, ann, ttl_s=600)
    bob.wall_s += 7200
    assert "until 14:10:00 UTC" in refusal(file, bob)


def test_another_day_is_named_in_the_message(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    held_by_ann(file, ann, ttl_s=86_400)
    bob.pass_time(43_200)
    assert "since 2026-11-30 12:00:00, until 12:00:00 UTC" in refusal(file, bob)


def test_a_restart_of_the_host_frees_the_seat(file: LeaseFile, ann: FakeHost) -> None:
    held_by_ann(file, ann)
    after = FakeHost(BOB_PLAY, boot="boot-2")
    after.boot_s = 20.0
    assert "fv-ml1 was restarted" in take(file, Request("bob"), after).took_over


@pytest.mark.parametrize(
    "elsewhere", [{"host": "fv-ml2", "boot": "boot-9"}, {"namespace": "pid:[2]"}], ids=["other host", "other container"]
)
def test_a_pid_from_elsewhere_is_not_judged_and_the_lease_ends_by_time(
    file: LeaseFile, ann: FakeHost, elsewhere: dict[str, str]
) -> None:
    held_by_ann(file, ann, ttl_s=600)
    there = FakeHost(BOB_PLAY, **elsewhere)
    there.alive = {BOB_PLAY}  # pid 4242 means nothing there
    said = refusal(file, there)
    assert "pid 4242 of fv-ml1, out of sight from here" in said
    assert f"remove {file.path}" in said
    there.pass_time(601)
    assert take(file, Request("bob"), there).took_over.endswith("it expired 1 s ago")


@pytest.mark.parametrize("how", ["no play to be seen", "asked for none"])
def test_without_an_anchor_a_lease_ends_by_time(file: LeaseFile, ann: FakeHost, bob: FakeHost, how: str) -> None:
    ann.play = None if how == "no play to be seen" else ANN_PLAY
    held_by_ann(file, ann, ttl_s=600, anchored=how != "asked for none")
    bob.alive = {BOB_PLAY}
    assert f"(no process to watch); wait (wait_s), or if that play is known to be gone, remove {file.path}" in refusal(
        file, bob
    )
    bob.pass_time(601)
    assert take(file, Request("bob"), bob).took_over.endswith("it expired 1 s ago")


def test_without_an_anchor_a_restart_does_not_end_a_lease(file: LeaseFile, ann: FakeHost) -> None:
    ann.play = None
    held_by_ann(file, ann, ttl_s=600)
    after = FakeHost(BOB_PLAY, boot="boot-2")
    after.boot_s = 20.0
    after.wall_s += 599
    assert "held by ann@desk" in refusal(file, after)


def test_a_host_without_boot_id_goes_by_the_wall_clock(file: LeaseFile) -> None:
    old = FakeHost(None, boot="", namespace="")
    held_by_ann(file, old, ttl_s=600)
    assert json.loads(file.path.read_text())["expires_boot_s"] is None
    old.wall_s += 599
    assert "held by ann@desk" in refusal(file, old)
    old.wall_s += 2
    assert take(file, Request("bob"), old).took_over


# --- the file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("held by ann", "it is no JSON"),
        ("[]", "its schema is None"),
        ('{"schema": "voices/seat-lease/2"}', "its schema is 'voices/seat-lease/2'"),
        ('{"schema": "voices/seat-lease/1"}', "its anchor is None|its seat is None"),
        (b"\xff\xfe\x00", "codec can't decode"),
    ],
)
def test_a_file_that_is_no_lease_is_refused_with_the_fix(
    file: LeaseFile, ann: FakeHost, text: str | bytes, said: str
) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = file.path.read_bytes()
    for use in (
        lambda: take(file, Request("ann"), ann),
        lambda: foresee(file, Request("ann"), ann),
        lambda: free(file, TOKEN, ann),
    ):
        with pytest.raises(VoicesError, match=said) as caught:
            use()
        assert f"rm {file.path}" in str(caught.value)
    assert file.path.read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [("holder", 7), ("since", "yesterday"), ("expires_boot_s", "soon"), ("anchor", {"pid": 1}), ("boot_id", None)],
)
def test_a_damaged_field_is_named(file: LeaseFile, ann: FakeHost, field: str, value: Any) -> None:
    held_by_ann(file, ann)
    found = json.loads(file.path.read_text())
    with pytest.raises(ValueError, match=f"its {field} is"):
        from_text(json.dumps({**found, field: value}))


def test_the_text_holds_the_whole_lease(file: LeaseFile, ann: FakeHost) -> None:
    lease = take(file, Request("Åsa@desk"), ann).lease
    assert lease is not None
    assert from_text(as_text(lease)) == lease
    assert from_text(as_text(replace(lease, anchor=None))) == replace(lease, anchor=None)
    assert as_text(lease).isascii()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_users_directory_is_named_with_its_owner_and_the_holder(ann: FakeHost) -> None:
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        file = LeaseFile(Path(directory) / "tiny.json")
        take(file, Request("ann@desk"), ann)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = "no refusal"
            try:
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
                said = f"{report(file, ann).public['holder']} read; "
                take(file, Request("bob@desk"), FakeHost(BOB_PLAY))
            except VoicesError as error:
                said += str(error)
            finally:
                os.write(writer, said.encode())
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            said = stream.read()
        os.waitpid(child, 0)
    assert said.startswith("ann@desk read; lease of seat tiny: ")
    assert f"permission denied to nobody; {directory}" in said
    assert "belongs to root, mode 0" in said
    assert "Run as root (become_user)" in said
    assert "the last lease is ann@desk's" in said


def test_a_directory_in_the_way_is_named(tmp_path: Path, ann: FakeHost) -> None:
    (tmp_path / "leases").write_text("a file, no directory")
    with pytest.raises(VoicesError, match="leases"):
        take(LeaseFile(tmp_path / "leases" / "tiny.json"), Request("ann"), ann)
    (tmp_path / "tiny.json").mkdir()
    with pytest.raises(VoicesError, match=r"tiny\.json: Is a directory"):
        take(LeaseFile(tmp_path / "tiny.json"), Request("ann"), ann)


def test_two_real_processes_never_both_get_a_free_seat(tmp_path: Path) -> None:
    script = """
import sys, ansible.module_utils
ansible.module_utils.__path__.append(sys.argv[1])
from pathlib import Path
from ansible.module_utils.voices.lease import Request
from ansible.module_utils.voices.lease_file import Host, LeaseFile, take
from ansible.module_utils.voices.plan import VoicesError
sys.stdin.readline()
for turn in range(40):
    try:
        take(LeaseFile(Path(sys.argv[2]) / f"{turn}.json"), Request(sys.argv[3], anchored=False), Host())
        print(turn)
    except VoicesError as error:
        assert "is held by" in str(error), error
"""
    utils = str(Path(__file__).resolve().parents[2] / "module_utils")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, utils, str(tmp_path), f"process-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    won = [child.communicate(timeout=60)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert sorted(int(turn) for turns in won for turn in turns) == list(range(40))


# --- check mode


def test_check_mode_reports_the_holder_and_warns(file: LeaseFile, ann: FakeHost, bob: FakeHost) -> None:
    held_by_ann(file, ann)
    before = (file.path.read_bytes(), file.path.stat().st_mtime_ns)
    found = foresee(file, Request("bob@desk"), bob)
    assert found.public["holder"] == "ann@desk"
    assert found.token == ""
    assert "a real run would wait for it or fail: seat tiny is held by ann@desk" in found.warning
    assert (file.path.read_bytes(), file.path.stat().st_mtime_ns) == before


def test_check_mode_does_not_warn_the_holder_nor_of_an_ended_lease(
    file: LeaseFile, ann: FakeHost, bob: FakeHost
) -> None:
    token = held_by_ann(file, ann)
    assert foresee(file, Request("ann@desk", token), ann).warning == ""
    bob.alive = {BOB_PLAY}
    found = foresee(file, Request("bob@desk"), bob)
    assert (found.lease, found.warning) == (None, "")


def run_module(capsys: pytest.CaptureFixture[str], **params: Any) -> dict[str, Any]:
    with patch_module_args(params), pytest.raises(SystemExit):
        seat_lease.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_module_in_check_mode_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "var" / "leases" / "tiny.json"
    result = run_module(capsys, path=str(path), holder="ann@desk", _ansible_check_mode=True)
    assert result["lease"] == {"holder": "", "pid": 0, "anchor": "", "since": "", "expires": ""}
    assert (result["changed"], result["token"], result["holder"]) == (False, "", "")
    assert list(tmp_path.iterdir()) == []


def test_the_module_takes_and_frees_without_ever_reporting_a_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.json"
    taken = run_module(capsys, path=str(path), holder="ann@desk")
    assert (taken["changed"], taken["holder"], taken["actions"], taken["diff"]) == (False, "ann@desk", [], [])
    freed = run_module(capsys, path=str(path), state="free", token=taken["token"])
    assert (freed["changed"], freed["holder"], freed["token"]) == (False, "", "")
    assert not path.exists()


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"path": "leases/tiny.json", "holder": "ann"}, "is relative"),
        ({"path": "/nonexistent/tiny.json"}, "holder"),
        ({"path": "/nonexistent/tiny.json", "state": "free"}, "needs the token"),
    ],
)
def test_the_module_refuses(capsys: pytest.CaptureFixture[str], params: dict[str, Any], said: str) -> None:
    result = run_module(capsys, **params)
    assert result["failed"]
    assert said in result["msg"]


# --- processes


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (PLAYBOOK, "ansible-playbook"),
        (("python3", "-I", "-X", "utf8", "-W", "error", "/usr/bin/ansible", "all"), "ansible"),
        (("/usr/bin/ansible-playbook", "site.yml"), "ansible-playbook"),
        (("python3", "-m", "ansible", "playbook", "site.yml"), "ansible"),
        (("python3", "-m", "ansible.cli.playbook", "site.yml"), "ansible"),
        (("python3", "-m", "pytest", "ansible-playbook"), ""),
        (("python3", "-c", "pass", "ansible-playbook"), ""),
        (("python3", "/srv/x/AnsiballZ_command.py", "ansible-playbook"), ""),
        (("/bin/sh", "-c", "ansible-playbook site.yml"), ""),
        (("timeout", "60", "ansible-playbook", "site.yml"), ""),
        (("sudo", "ansible-playbook"), ""),
        (("python3",), ""),
        (("",), ""),
        ((), ""),
    ],
)
def test_which_command_line_is_a_play(argv: tuple[str, ...], command: str) -> None:
    assert ansible_command(argv) == command


def ancestor(pid: int, parent: int, name: str, argv: tuple[str, ...]) -> Ancestor:
    """A process whose start ticks are 10 times its pid."""
    return Ancestor(Process(pid, parent, pid, pid, "S", pid * 10, 1000, name), argv)


def chain(*links: tuple[str, tuple[str, ...]]) -> list[Ancestor]:
    """Ancestors, nearest first, with pids 100, 99, ..."""
    return [ancestor(100 - n, 99 - n, name, argv) for n, (name, argv) in enumerate(links)]


SH = ("sh", ("/bin/sh", "-c", "python AnsiballZ_seat_lease.py"))
PLAY = ("ansible-playboo", PLAYBOOK)
OUTER = ("ansible-playboo", (*PLAYBOOK[:-1], "outer.yml"))
SSHD = ("sshd", ("sshd: ann@notty",))
LISTENER = ("sshd", ("sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups",))


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([SH, SH, PLAY, PLAY, ("bash", ("bash",))], Anchor(97, 970, "ansible-playbook")),
        ([SH, PLAY, ("sudo", ("sudo", "x")), PLAY], Anchor(99, 990, "ansible-playbook")),
        ([SH, PLAY, PLAY, OUTER, OUTER], Anchor(98, 980, "ansible-playbook")),
        ([SH, PLAY, PLAY, ("bash", ("-bash",)), SSHD, LISTENER], Anchor(98, 980, "ansible-playbook")),
        ([SH, SSHD, SSHD, LISTENER], Anchor(99, 990, "sshd")),
        ([SH, ("sshd-session", ("sshd-session: ann@notty",)), LISTENER], Anchor(99, 990, "sshd")),
        ([SH, ("sudo", ("sudo", "-u", "voices")), SSHD, LISTENER, PLAY, PLAY], Anchor(98, 980, "sshd")),
        ([SH, ("containerd-shim", ("containerd-shim",))], None),
        ([], None),
    ],
    ids=[
        "local: the play, not its fork for the task",
        "become: only neighbours are forks",
        "a play inside a play: the inner one",
        "typed in an ssh session: the play, not the session",
        "ssh: the session, not the listener",
        "ssh since OpenSSH 9.8",
        "ssh to a daemon that a play started: the session",
        "container",
        "orphan",
    ],
)
def test_which_ancestor_is_the_anchor(links: list[Any], expected: Anchor | None) -> None:
    assert choose_anchor(chain(*links)) == expected


def write_process(proc: Path, written: Ancestor) -> None:
    process, argv = written
    directory = proc / str(process.pid)
    directory.mkdir(parents=True)
    fields = " ".join(["0"] * 17)
    (directory / "stat").write_text(
        f"{process.pid} ({process.name}) {process.state} {process.parent} {fields} {process.start_time} 0 0\n"
    )
    (directory / "cmdline").write_bytes(b"\0".join(part.encode() for part in argv) + b"\0")


def test_the_walk_over_proc_finds_the_play(tmp_path: Path) -> None:
    write_process(tmp_path, ancestor(101, 100, "python) S 1 (", ("python3", "AnsiballZ_seat_lease.py")))
    for process in chain(SH, PLAY, PLAY, ("bash", ("bash",))):
        write_process(tmp_path, process)
    assert find_anchor(101, tmp_path) == Anchor(98, 980, "ansible-playbook")


def test_a_chain_that_breaks_off_or_loops_or_a_host_without_proc_has_no_anchor(tmp_path: Path) -> None:
    assert find_anchor(101, tmp_path / "no-proc") is None
    write_process(tmp_path, ancestor(7, 8, "a", ("a",)))
    assert find_anchor(7, tmp_path) is None
    write_process(tmp_path, ancestor(8, 7, "b", ("b",)))
    assert find_anchor(7, tmp_path) is None


def test_whether_an_anchor_runs(tmp_path: Path) -> None:
    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    def hidden(pid: int, number: int) -> None:
        raise PermissionError

    anchor = Anchor(98, 980, "ansible-playbook")
    assert not is_running(anchor, tmp_path, gone)
    # hidepid=2: another user's process is there for kill(2) only.
    assert is_running(anchor, tmp_path, hidden)
    write_process(tmp_path, ancestor(98, 1, "x", PLAYBOOK))
    assert is_running(anchor, tmp_path, gone)
    assert not is_running(replace(anchor, start_ticks=979), tmp_path, gone)
    (tmp_path / "98" / "stat").write_text("nonsense")
    assert is_running(anchor, tmp_path, gone)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_killed_process_is_gone_before_its_parent_takes_notice() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = read_process(child.pid)
        assert found is not None
        assert found.parent == os.getpid()
        anchor = Anchor(found.pid, found.start_time, "test")
        assert is_running(anchor)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = read_process(child.pid)
        assert zombie is not None
        assert zombie.state == "Z"
        assert not is_running(anchor)
    finally:
        child.communicate()
    assert not is_running(anchor)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_this_host_tells_all_that_a_lease_needs(file: LeaseFile) -> None:
    here = Host().here()
    assert all([here.host, here.boot_id, here.pid_namespace, here.boot_s])
    lease = take(file, Request("ann", anchored=False, ttl_s=60), Host()).lease
    assert lease is not None
    assert 50 < remaining_s(lease, Host().here()) <= 60


def test_instants_are_utc() -> None:
    assert iso_utc(0) == "1970-01-01T00:00:00.000Z"
    assert epoch_of("1970-01-01T01:00:00+01:00") == epoch_of("1970-01-01T00:00:00") == epoch_of(" 1970-01-01 ") == 0
