"""Who runs what on this host, read from ``/proc`` (Linux), and signals that cannot reach a stranger.

A pid alone is no identity: it is reused. Everything here that outlives a moment is an ``Identity``: the pid, the start
time in clock ticks since boot (field 22 of ``/proc/PID/stat``, proc(5)) and the boot's id. A zombie counts as gone: it
runs nothing and holds nothing, whoever forgot to reap it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import signal
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
_POLL_S = 0.05
_LISTEN = "0A"


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
    """One line of the process table. ``start_time`` is in clock ticks since boot."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    start_time: int
    uid: int

    @property
    def gone(self) -> bool:
        """Whether it is a zombie or dead."""
        return self.state in "ZXx"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket. ``pids`` is empty when its owner is not readable for us (another user's process)."""

    address: str
    port: int
    inode: int
    uid: int
    pids: tuple[int, ...] = ()


def boot_id(proc: Path = PROC) -> str:
    """The id of this boot; empty where the kernel does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """The process with this pid (zombies too), or None."""
    try:
        text = (proc / str(pid) / "stat").read_bytes().decode(errors="replace")
        uid = (proc / str(pid)).stat().st_uid
    except OSError:
        return None
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], int(fields[19]), uid)


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


def ancestors(table: Mapping[int, Process], pid: int) -> set[int]:
    """``pid`` and all its parents."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


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


def listeners(port: int, host: str = "", table: Mapping[int, Process] | None = None) -> list[Listener]:
    """The sockets that listen on TCP ``port`` and stand in the way of ``host`` (empty: any), with their owners.

    A wildcard address stands in the way of every address and the other way round. Owners are looked for among the
    processes of ``table`` (default: all); those of other users are not readable without root.
    """
    wanted = _addresses(host) if host else set()
    found = [
        one
        for name in ("tcp", "tcp6")
        for one in parse_listeners(_read_net(name), port)
        if not wanted or _collides(one.address, wanted)
    ]
    if not found:
        return []
    owners = _owners({one.inode for one in found}, table if table is not None else process_table())
    return [
        Listener(one.address, one.port, one.inode, one.uid, tuple(sorted(owners.get(one.inode, ())))) for one in found
    ]


def parse_listeners(text: str, port: int) -> list[Listener]:
    """The listening sockets on ``port`` in the text of ``/proc/net/tcp`` or ``tcp6``. Pure."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        address, _, hex_port = fields[1].partition(":")
        if int(hex_port, 16) == port:
            found.append(Listener(_address(address), port, int(fields[9]), int(fields[7])))
    return found


def _read_net(name: str) -> str:
    try:
        return (PROC / "self/net" / name).read_text()
    except OSError:  # no IPv6
        return ""


def _address(text: str) -> str:
    # The kernel prints the address as 32-bit words in host order.
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _addresses(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}


def _collides(address: str, wanted: set[str]) -> bool:
    any_address = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
    return address in wanted or address in any_address or bool(wanted & any_address)


def _owners(inodes: set[int], table: Mapping[int, Process]) -> dict[int, set[int]]:
    links = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[int, set[int]] = {}
    for pid in table:
        directory = f"{PROC}/{pid}/fd"
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            try:
                inode = links.get(os.readlink(f"{directory}/{name}"))
            except OSError:
                continue
            if inode is not None:
                owners.setdefault(inode, set()).add(pid)
    return owners
