"""Who is who in the process table, who listens where, and that signals reach only who they are meant for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.voices import processes
from ansible.module_utils.voices.listeners import listeners, parse_listeners
from ansible.module_utils.voices.processes import Identity, Process, members, parse_stat

BOOT = "this-boot"
LEADER = Identity(100, 5000, BOOT)
# Recorded lines of /proc/net/tcp and tcp6: 127.0.0.1:8027 and [::]:8027 listen, a connection to 8027 does not.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F5B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 45037 1 0000000000000000 100
   1: 0100007F:1F5B 0100007F:D2F4 01 00000000:00000000 00:00000000 00000000  1000        0 45038 1 0000000000000000 20
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0000000000000000 100
"""
_ANY = "0" * 32 + ":0000 0A 00000000:00000000 00:00000000 00000000"
TCP6 = f"""\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retr
   0: 00000000000000000000000000000000:1F5B {_ANY}     0        0 777 1 0000000000000000 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:1F5B {_ANY}     0        0 778 1 0000000000000000 100 0 0 10 0
"""


def one(pid: int, parent: int = 1, group: int = 0, session: int = 0, start: int = 6000, state: str = "S") -> Process:
    """A line of the process table."""
    return Process(pid, parent, group or pid, session or pid, state, start, 1000)


def table(*lines: Process) -> dict[int, Process]:
    return {line.pid: line for line in lines}


def pids(found: set[Identity]) -> set[int]:
    return {identity.pid for identity in found}


def test_the_group_without_its_leader_is_still_the_group() -> None:
    found = members(table(one(101, group=100, session=100), one(102, 101), one(7)), BOOT, LEADER, group=100)
    assert found == {Identity(101, 6000, BOOT), Identity(102, 6000, BOOT)}


def test_a_session_member_with_a_group_of_its_own_belongs() -> None:
    assert pids(members(table(one(101, session=100)), BOOT, LEADER, group=100)) == {101}


@pytest.mark.parametrize(
    "lines",
    [
        (one(100, start=9999), one(101, group=100)),  # the pid was reused: another group
        (one(101, group=100, start=4999),),  # older than the leader
        (one(100, start=5000, state="Z"), one(101, group=100, state="Z")),  # nothing lives
        (one(101),),  # a stranger
    ],
    ids=["reused", "older", "zombies", "stranger"],
)
def test_strangers_and_the_dead_do_not_belong(lines: tuple[Process, ...]) -> None:
    assert members(table(*lines), BOOT, LEADER, group=100) == set()


def test_another_boot_has_other_processes() -> None:
    same_numbers = table(one(100, start=5000), one(101, group=100))
    assert pids(members(same_numbers, BOOT, LEADER, group=100)) == {100, 101}
    assert members(same_numbers, "another boot", LEADER, group=100) == set()


def test_an_adopted_leader_brings_its_descendants_and_not_its_group() -> None:
    shell, leader, child = one(50), one(100, 50, group=50, session=50, start=5000), one(101, 100, group=50, session=50)
    assert pids(members(table(shell, leader, child), BOOT, LEADER, group=0)) == {100, 101}


def test_recorded_processes_are_known_by_start_time_and_marked_ones_by_their_mark() -> None:
    lines = table(one(200, start=6500), one(201, start=6501), one(202), one(203, 202))
    recorded = [Identity(200, 6500, BOOT), Identity(201, 6500, BOOT)]
    assert pids(members(lines, BOOT, LEADER, 100, recorded, carrying={202, 999})) == {200, 202, 203}


def test_the_name_of_a_process_may_hold_anything() -> None:
    rest = "S 77 42 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 121714 3133440 377 18446744073709551615 1 1 0"
    for name in ("python3", "a b", "a) S 1 (b", ") ) R 9 9", "("):
        assert parse_stat(f"4242 ({name}) {rest}\n", 1000) == Process(4242, 77, 42, 40, "S", 121714, 1000, name)


@pytest.mark.parametrize("text", ["", "4242", "4242 (x) S 1", "x (y) " + "1 " * 30])
def test_what_is_no_stat_text_is_refused_and_no_process(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"stat file|invalid literal"):
        parse_stat(text, 1000)
    (tmp_path / "42").mkdir()
    (tmp_path / "42/stat").write_text(text)
    assert processes.process_table(tmp_path) == {}


def test_a_process_table_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "self").mkdir()
    fields = "S 7 42 40 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 123456 " + "0 " * 20
    (tmp_path / "42/stat").write_text(f"42 (a) b (c) {fields}")
    expected = Process(42, 7, 42, 40, "S", 123456, os.geteuid(), "a) b (c")
    assert processes.process_table(tmp_path) == {42: expected}


def test_listeners_are_read_with_their_addresses() -> None:
    (found,) = parse_listeners(TCP, 8027)
    assert (found.address, found.inode, found.uid) == ("127.0.0.1", 45037, 1000)
    assert [(one.address, one.inode) for one in parse_listeners(TCP6, 8027)] == [("::", 777), ("127.0.0.1", 778)]
    assert parse_listeners(TCP, 8028) == []


@pytest.mark.parametrize(
    ("bound", "asked", "stands_in_the_way"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "0.0.0.0", True),  # noqa: S104
        ("0.0.0.0", "127.0.0.1", True),  # noqa: S104
        ("127.0.0.2", "127.0.0.1", False),
        ("127.0.0.2", "", True),
    ],
)
def test_which_listener_stands_in_the_way(bound: str, asked: str, stands_in_the_way: bool) -> None:
    with socket.create_server((bound, 0)) as server:
        port = server.getsockname()[1]
        found = listeners(port, asked)
        assert [one.pids for one in found] == ([(os.getpid(),)] if stands_in_the_way else [])
    assert listeners(port, asked) == []


def test_a_process_as_it_is() -> None:
    with subprocess.Popen(["sleep", "100"], env={"MARK": "a=b", "PATH": os.environ["PATH"]}, cwd="/") as process:
        try:
            identity = processes.identify(process.pid)
            assert identity is not None
            assert processes.is_alive(identity)
            until = time.monotonic() + 5
            while not processes.command_line(process.pid) and time.monotonic() < until:
                pass  # Popen returns a moment before the kernel shows the new command line
            assert processes.command_line(process.pid) == ["sleep", "100"]
            assert (processes.environment(process.pid) or {})["MARK"] == "a=b"
            assert processes.working_directory(process.pid) == "/"
            seen = processes.process_table()
            assert processes.marked(seen, "MARK", "a=b") == {process.pid}
            assert next(processes.ancestors(process.pid)).pid == os.getpid()
            assert abs(processes.started_at(seen[process.pid]) - time.time()) < 2
            assert Identity.from_dict(identity.as_dict()) == identity
        finally:
            process.kill()


def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it ended, and nobody has reaped it
    try:
        assert processes.read_process(process.pid) is not None
        assert processes.identify(process.pid) is None
        assert processes.command_line(process.pid) is None
    finally:
        process.wait()


@pytest.mark.parametrize("without_pidfd", [False, True])
def test_only_the_very_process_is_signalled(without_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if without_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen(["sleep", "100"])
    try:
        identity = processes.identify(process.pid)
        assert identity is not None
        earlier = replace(identity, start_time=identity.start_time - 1)
        assert processes.send(earlier, signal.SIGKILL) is False
        assert processes.send(replace(identity, boot_id="another"), signal.SIGKILL) is False
        assert processes.terminate({earlier}, 0.1) == set()
        assert process.poll() is None
        assert processes.send(identity, signal.SIGTERM) is True
        assert process.wait(timeout=5) == -signal.SIGTERM
        assert processes.send(identity, signal.SIGTERM) is False
    finally:
        process.kill()
        process.wait()


def test_what_ignores_sigterm_is_killed() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    identity = processes.identify(process.pid)
    assert identity is not None
    assert processes.terminate({identity}, 0.2) == set()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
