"""Whose the processes on a card are: their command, their container, their voices seat. Reads /proc and Docker's list.

A process that ends between two reads, or belongs to another user, stays nameless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from .cards import Card, CardProcess
from .flags import masked_secret
from .masking import looks_secret, shown_argv
from .processes import PROC, ancestors, command_line, environment, read_process

_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_SHORT = 12
#: Enough for an engine's flags, by which an inventory may name a tenant.
_LONGEST_COMMAND = 1000
_USER_IN_URL = re.compile(r"(://[^/@\s:]*):[^/@\s]+@")


@dataclass(frozen=True)
class SeatMarks:
    """By what the processes of a seat are known: each carries its engine file's path, or has an ancestor that does.

    ``container`` is the name of its container, "" for a seat that has none.
    """

    name: str
    engine_file: str
    container: str = ""

    @property
    def engine_dir(self) -> str:
        """The directory that stands in the engine's PYTHONPATH."""
        return str(PurePath(self.engine_file).parent)


def with_owners(card: Card, seats: Iterable[SeatMarks], containers: Mapping[str, str], proc: Path = PROC) -> Card:
    """``card`` with what is known of its processes. ``containers`` are names by full id."""
    marks = list(seats)
    return replace(card, processes=tuple(_owned(process, marks, containers, proc) for process in card.processes))


def container_id(cgroup: str) -> str:
    """The 64 digits of a container's id in the text of ``/proc/PID/cgroup`` (any runtime, v1 and v2), or "". Pure."""
    match = _CONTAINER.search(cgroup)
    return match.group(1) if match else ""


def seat_of(pid: int, seats: Sequence[SeatMarks], proc: Path = PROC) -> str:
    """The seat that the process belongs to, "" for none.

    vLLM's engine core renames itself, which wipes its command line; its parent keeps one, and the environment stays.
    """
    line = [pid, *(process.pid for process in ancestors(pid, proc))]
    for one in line:
        argv = command_line(one, proc) or []
        for seat in seats:
            if any(part == seat.engine_file or part == f"--config={seat.engine_file}" for part in argv):
                return seat.name
    path = (environment(pid, proc) or {}).get("PYTHONPATH", "").split(":")
    return next((seat.name for seat in seats if seat.engine_dir in path), "")


def shown_command(pid: int, proc: Path = PROC) -> str:
    """The command as it may be printed, in one line and without secrets; "" when it cannot be read.

    A process that renamed itself (``VLLM::EngineCore``) says nothing of what it serves: the command of the first
    ancestor that has one follows its name, and is what an inventory's ``command`` may find.
    """
    argv = _argv(pid, proc)
    if not argv:
        process = read_process(pid, proc)
        return _printable(process.name if process else "")
    if not _renamed(argv):
        return _printable(_masked(argv))
    above = (_argv(process.pid, proc) for process in ancestors(pid, proc))
    starter = next((one for one in above if one and not _renamed(one)), [])
    return _printable(f"{argv[0]} of {_masked(starter)}" if starter else argv[0])


def _owned(process: CardProcess, seats: list[SeatMarks], containers: Mapping[str, str], proc: Path) -> CardProcess:
    try:
        found = container_id((proc / str(process.pid) / "cgroup").read_text(errors="replace"))
    except OSError:
        found = ""
    name = containers.get(found, found[:_SHORT])
    in_its_container = next((seat.name for seat in seats if seat.container and seat.container == name), "")
    return replace(
        process,
        command=shown_command(process.pid, proc),
        container=name,
        seat=seat_of(process.pid, seats, proc) or in_its_container,
    )


def _argv(pid: int, proc: Path) -> list[str]:
    """The arguments; setproctitle leaves one, and blanks where the others were."""
    return [part for part in (text.strip() for text in command_line(pid, proc) or []) if part]


def _renamed(argv: Sequence[str]) -> bool:
    return len(argv) == 1 and "::" in argv[0] and "/" not in argv[0]


def _masked(argv: Sequence[str]) -> str:
    """Without the values of secret options, of ``SECRET=value`` and of users in URLs."""
    parts = []
    for part in argv:
        name, equals, value = part.partition("=")
        secret = equals and not part.startswith("-") and looks_secret(name)
        parts.append(f"{name}={masked_secret(value)}" if secret else _USER_IN_URL.sub(r"\1:***@", part))
    return shown_argv(parts)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_LONGEST_COMMAND]
