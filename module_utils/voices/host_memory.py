"""Host memory as a card, for seats whose engine runs on the CPU: the same verdict, on another number.

Reads /proc and the control groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from .cards import Card, CardProcess
from .gpu_processes import SeatMarks, seat_of, shown_command
from .plan import VoicesError
from .processes import PROC

#: No card has it.
INDEX = -1
CGROUP = Path("/sys/fs/cgroup")
#: What a group's limit and use are called: version 2, version 1.
_FILES = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}


def read_memory(seats: Iterable[SeatMarks], proc: Path = PROC, cgroup: Path = CGROUP) -> Card:
    """Host memory, with the seats' processes: total, and free as the kernel reckons it (MemAvailable).

    Where this runs in a control group with a lower limit, the limit counts. Raises VoicesError when it cannot be read.
    """
    total, available = parse_meminfo(_read(proc / "meminfo"))
    for limit, used in _limits(proc, cgroup):
        if limit < total:
            total, available = limit, min(available, limit)
        available = min(available, max(0, limit - used))
    return Card(
        INDEX,
        "",
        "host memory",
        total_bytes=total,
        used_bytes=total - available,
        free_bytes=available,
        processes=tuple(_processes(list(seats), proc)),
    )


def parse_meminfo(text: str) -> tuple[int, int]:
    """(MemTotal, MemAvailable) in bytes from the text of /proc/meminfo (proc(5)). Pure; raises VoicesError."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[0] if rest.split() else ""
        if name in ("MemTotal", "MemAvailable") and number.isdigit():
            values[name] = int(number) * 1024
    if len(values) < 2 or not 0 < values["MemAvailable"] <= values["MemTotal"]:
        raise VoicesError(f"/proc/meminfo does not say what memory is there: {values}")
    return values["MemTotal"], values["MemAvailable"]


def parse_groups(text: str) -> list[tuple[int, PurePosixPath]]:
    """(version, path) of the groups that may limit memory, from the text of /proc/self/cgroup (cgroups(7)). Pure."""
    found = []
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if path.startswith("/") and ".." not in path.split("/"):
            if number == "0" and not controllers:
                found.append((2, PurePosixPath(path)))
            elif "memory" in controllers.split(","):
                found.append((1, PurePosixPath(path)))
    return found


def _limits(proc: Path, cgroup: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of each group above this process that has a limit.

    What files hold of the page cache does not count as used: the kernel gives it back before it refuses anyone.
    """
    try:
        groups = parse_groups((proc / "self/cgroup").read_text())
    except OSError:
        return
    for version, path in groups:
        root = cgroup if version == 2 else cgroup / "memory"
        for one in (path, *path.parents):
            directory = root / str(one).lstrip("/")
            limit, used = (_number(directory / name) for name in _FILES[version])
            if limit is not None and used is not None:
                yield limit, max(0, used - _cached(directory))


def _number(path: Path) -> int | None:
    """The number in a group's file; None for "max", and where there is none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cached(directory: Path) -> int:
    """Bytes of the group's page cache that can be given back."""
    try:
        lines = (directory / "memory.stat").read_text().split("\n")
    except OSError:
        return 0
    values = dict(line.rsplit(" ", 1) for line in lines if " " in line)
    # Version 1 has the sum over the groups below as total_*.
    names = [name if f"total_{name}" not in values else f"total_{name}" for name in ("inactive_file", "active_file")]
    return sum(int(values.get(name, 0)) for name in names)


def _processes(seats: Sequence[SeatMarks], proc: Path) -> Iterable[CardProcess]:
    """The processes of the seats; of no others, because what they hold is not to be asked for one by one."""
    if not seats:
        return
    for entry in sorted(os.listdir(proc), key=lambda name: (len(name), name)):
        if entry.isdigit() and (seat := seat_of(int(entry), seats, proc)):
            yield CardProcess(int(entry), _own_bytes(proc / entry), shown_command(int(entry), proc), seat=seat)


def _own_bytes(directory: Path) -> int | None:
    """The process's share of memory (Pss), None when it cannot be read: shared pages count once among their users."""
    try:
        for line in (directory / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise VoicesError(f"{path} cannot be read: {error.strerror}") from None
