"""Who runs on this host, read from ``/proc`` (Linux), and signals that cannot reach a stranger.

A pid alone is no identity: it is reused. Everything here that outlives a moment is an ``Identity``: the pid, the start
time in clock ticks since boot (field 22 of ``/proc/PID/stat``, proc(5)) and the boot's id. A zombie counts as gone: it
runs nothing and holds nothing, whoever forgot to reap it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
_POLL_S = 0.05


@dataclass(frozen=True, order=True)
class Identity:
    """One process, for ever: no later process of this or another boot is equal to it."""

    pid: int
    start_time: int
    boot_id: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a state file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Identity | None:
        """The identity in a state file, or None when ``data`` is no such thing."""
        try:
            return cls(int(data["pid"]), int(data["start_time"]), str(data["boot_id"]))
        except (TypeError, KeyError, ValueError):
            return None


@dataclass(frozen=True)
class Process:
    """One line of the process table. ``start_time`` is in clock ticks since boot; ``name`` is cut to 15 bytes."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    start_time: int
    uid: int
    name: str = ""

    @property
    def gone(self) -> bool:
        """Whether it is a zombie or dead."""
        return self.state in "ZXx"


def boot_id(proc: Path = PROC) -> str:
    """The id of this boot; empty where the kernel does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def parse_stat(text: str, uid: int) -> Process:
    """The process in the text of ``/proc/PID/stat``, whose owner is ``uid``. Pure.

    Raises:
        ValueError: the text is not in that form.
    """
    # The name is whatever the process calls itself, ") S 1 (" included: only the first and the last parenthesis count.
    head, closing, tail = text.rpartition(")")
    pid, opening, name = head.partition("(")
    fields = tail.split()
    if not (opening and closing) or len(fields) < 20:
        raise ValueError(f"not the text of a /proc stat file: {text[:80]!r}")
    parent, group, session = (int(field) for field in fields[1:4])
    return Process(int(pid), parent, group, session, fields[0], int(fields[19]), uid, name)


def read_stat(pid: int, proc: Path = PROC) -> Process:
    """The process with this pid (zombies too).

    Raises:
        OSError: there is none, or this user may not look at it.
        ValueError: its stat file holds something else.
    """
    directory = proc / str(pid)
    text = (directory / "stat").read_bytes().decode(errors="replace")
    return parse_stat(text, directory.stat().st_uid)


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """The process with this pid (zombies too), or None when there is none that can be read."""
    try:
        return read_stat(pid, proc)
    except (OSError, ValueError):
        return None


def process_table(proc: Path = PROC) -> dict[int, Process]:
    """All processes by pid."""
    found = (read_process(int(entry), proc) for entry in os.listdir(proc) if entry.isdigit())
    return {process.pid: process for process in found if process}


def identify(pid: int) -> Identity | None:
    """The identity of the process that has this pid now, or None when there is none (or a zombie)."""
    process = read_process(pid)
    return None if process is None or process.gone else Identity(pid, process.start_time, boot_id())


def is_alive(identity: Identity | None) -> bool:
    """Whether that very process still runs."""
    return identity is not None and identify(identity.pid) == identity


def command_line(pid: int, proc: Path = PROC) -> list[str] | None:
    """The argv, or None when it is not readable or empty (a kernel thread, a zombie)."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    if not raw:
        return None
    return [part.decode(errors="replace") for part in raw.removesuffix(b"\0").split(b"\0")]


def environment(pid: int, proc: Path = PROC) -> dict[str, str] | None:
    """The environment at the start of the process, or None when it is not readable.

    A process that renames itself (setproctitle) may have overwritten it: a missing key proves nothing.
    """
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (part.decode(errors="replace").partition("=") for part in raw.split(b"\0") if part)
    return {key: value for key, equals, value in pairs if equals}


def working_directory(pid: int) -> str | None:
    """The current directory of the process, or None when it is not readable."""
    try:
        return os.readlink(PROC / str(pid) / "cwd")
    except OSError:
        return None


def started_at(process: Process) -> float:
    """When the process started, in seconds since the epoch; exact to 0.02 s."""
    up_s = float((PROC / "uptime").read_text().split()[0])
    return time.time() - up_s + process.start_time / os.sysconf("SC_CLK_TCK")


def user_name(uid: int) -> str:
    """The user's name, or ``uid N`` when the host has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def marked(table: Mapping[int, Process], key: str, value: str) -> set[int]:
    """The pids whose environment holds ``key=value`` (as far as it is readable)."""
    return {pid for pid in table if (environment(pid) or {}).get(key) == value}


def ancestors(pid: int, proc: Path = PROC) -> Iterator[Process]:
    """The parent of ``pid``, its parent, and so on, as far as they can be read."""
    seen = {pid}
    current = read_process(pid, proc)
    while current is not None and current.parent > 0 and current.parent not in seen:
        seen.add(current.parent)
        current = read_process(current.parent, proc)
        if current is not None:
            yield current


def members(
    table: Mapping[int, Process],
    boot: str,
    leader: Identity | None = None,
    group: int = 0,
    recorded: Iterable[Identity] = (),
    carrying: Collection[int] = (),
) -> set[Identity]:
    """Every living process that belongs to a service. Pure: ``table`` says what lives.

    They are the ``recorded`` ones that still are who they were, those that carry the service's mark (``carrying``,
    pids), those in the leader's process group or session ``group`` (0: it has none of its own), and all their
    descendants.
    The kernel gives no new process a pid that is still the id of a group or session, so a group without its leader is
    still the same group; one whose leader has another start time is not ours, and neither is a process that is older
    than the leader was.
    """
    same_boot = leader is not None and leader.boot_id == boot
    known = {(one.pid, one.start_time) for one in (*recorded, *([leader] if leader else [])) if one.boot_id == boot}
    ours = {pid for pid in carrying if pid in table} | {
        pid for pid, process in table.items() if (pid, process.start_time) in known
    }
    head = table.get(group)
    if group and leader is not None and same_boot and (head is None or head.start_time == leader.start_time):
        ours |= {
            process.pid
            for process in table.values()
            if group in (process.group, process.session) and process.start_time >= leader.start_time
        }
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    reach = list(ours)
    while reach:
        for child in children.get(reach.pop(), []):
            if child not in ours:
                ours.add(child)
                reach.append(child)
    return {Identity(pid, table[pid].start_time, boot) for pid in ours if not table[pid].gone}


def send(identity: Identity, signum: int) -> bool:
    """Send a signal to that very process; False when it is gone. PermissionError when it is another user's.

    The descriptor pins the process before its start time is compared, so that the pid cannot be reused in between.
    """
    pidfd_open = getattr(os, "pidfd_open", None)
    try:
        handle = pidfd_open(identity.pid) if pidfd_open else -1
    except ProcessLookupError:
        return False
    except OSError:
        handle = -1  # a kernel or sandbox without pidfd
    try:
        if not is_alive(identity):
            return False
        try:
            if handle >= 0:
                signal.pidfd_send_signal(handle, signum)
            else:
                os.kill(identity.pid, signum)
        except ProcessLookupError:
            return False
        return True
    finally:
        if handle >= 0:
            os.close(handle)


def wait_gone(identities: Iterable[Identity], timeout_s: float) -> set[Identity]:
    """Wait until none of them runs; returns those that still do after ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    left = {one for one in identities if is_alive(one)}
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = {one for one in left if is_alive(one)}
    return left


def terminate(identities: Collection[Identity], grace_s: float) -> set[Identity]:
    """SIGTERM, up to ``grace_s`` seconds, then SIGKILL; returns those that survived (or may not be touched)."""
    for signum, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for one in identities:
            with contextlib.suppress(PermissionError):
                send(one, signum)
        identities = wait_gone(identities, wait_s)
        if not identities:
            break
    return set(identities)
