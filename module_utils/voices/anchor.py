"""Which process must live for a lease to hold: the play, as seen from the module that it runs on the seat's host.

A process is (pid, start time), so that a reused pid is another process. Both come from ``/proc/<pid>/stat``: see
proc_pid_stat(5), fields 1, 2 (the name, which may hold spaces and parentheses), 3, 4 and 22. A host without ``/proc``
has no anchors, and its leases end by time alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SSHD = "sshd"

_ANSIBLE = frozenset({"ansible", "ansible-playbook", "ansible-console", "ansible-pull"})
#: OpenSSH serves a session in ``sshd-session`` since 9.8 and in a fork of ``sshd`` before.
_SSH = frozenset({SSHD, "sshd-session"})
#: Python's options that take their value from the next argument.
_PYTHON_VALUED = frozenset({"-W", "-X", "--check-hash-based-pycs"})
#: Exit states: such a process only waits for its parent to read its status. A SIGKILLed play is one for a while.
_ENDED = frozenset({"Z", "X", "x"})


@dataclass(frozen=True)
class Process:
    """One process. ``start_ticks`` counts clock ticks since boot; the kernel cuts ``name`` to 15 bytes."""

    pid: int
    parent: int
    start_ticks: int
    state: str
    name: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Anchor:
    """The process whose end frees a lease. ``command`` says what it is: ``ansible-playbook``, ``sshd``."""

    pid: int
    start_ticks: int
    command: str


def parse_stat(text: str) -> Process:
    """A process from the text of ``/proc/<pid>/stat``, without its argv.

    Raises:
        ValueError: the text is not in that form.
    """
    # The name is whatever the process calls itself, ") S 1 (" included: only the first and the last parenthesis count.
    head, closing, tail = text.rpartition(")")
    pid, opening, name = head.partition("(")
    fields = tail.split()
    if not (opening and closing) or len(fields) < 20:
        raise ValueError(f"not the text of a /proc stat file: {text[:80]!r}")
    return Process(int(pid), int(fields[1]), int(fields[19]), fields[0], name)


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """The process ``pid``, or None when there is none, or none that this user may look at."""
    try:
        found = parse_stat((proc / str(pid) / "stat").read_bytes().decode(errors="replace"))
        argv = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        return None
    return Process(
        found.pid, found.parent, found.start_ticks, found.state, found.name, tuple(argv.removesuffix("\0").split("\0"))
    )


def ansible_command(argv: tuple[str, ...]) -> str:
    """``ansible-playbook`` and the like when ``argv`` runs one, else an empty string.

    A shell or a ``timeout`` whose arguments merely name ansible-playbook is none.
    """
    if not argv:
        return ""
    program = Path(argv[0]).name
    if program in _ANSIBLE:
        return program
    if not program.startswith("python"):
        return ""
    rest = iter(argv[1:])
    for argument in rest:
        if argument in _PYTHON_VALUED:
            next(rest, None)
        elif argument == "-m":
            module = next(rest, "")
            return "ansible" if module == "ansible" or module.startswith("ansible.cli.") else ""
        elif not argument.startswith("-"):
            script = Path(argument).name
            return script if script in _ANSIBLE else ""
        elif argument.startswith("-c"):
            return ""
    return ""


def ancestors(pid: int, read: Callable[[int], Process | None]) -> Iterator[Process]:
    """The parent of ``pid``, its parent, and so on, as far as they can be read."""
    current = read(pid)
    seen = {pid}
    while current is not None and current.parent > 0 and current.parent not in seen:
        seen.add(current.parent)
        current = read(current.parent)
        if current is not None:
            yield current


def choose_anchor(chain: Iterable[Process]) -> Anchor | None:
    """The anchor among a module's ancestors, nearest first: the play, or the ssh session that carries it, or None.

    Ansible runs each task in a fork of the play, which keeps the play's argv and ends with the task: so the anchor is
    the topmost of neighbours with one argv. A play started by another play has its own argv and is its own anchor.
    """
    processes = list(chain)
    for index, process in enumerate(processes):
        command = ansible_command(process.argv)
        if command:
            play = process
            for parent in processes[index + 1 :]:
                if parent.argv != process.argv:
                    break
                play = parent
            return Anchor(play.pid, play.start_ticks, command)
        if process.name in _SSH:
            return Anchor(process.pid, process.start_ticks, SSHD)
    return None


def find_anchor(pid: int | None = None, proc: Path = PROC) -> Anchor | None:
    """The anchor of the process ``pid`` (this one by default); None without one, or without ``/proc``."""
    return choose_anchor(ancestors(os.getpid() if pid is None else pid, lambda each: read_process(each, proc)))


def is_running(anchor: Anchor, proc: Path = PROC, signal: Callable[[int, int], None] = os.kill) -> bool:
    """Whether the anchor's process still runs. In doubt it does: a lease freed wrongly costs more than a wait.

    ``/proc`` mounted with hidepid hides other users' processes, so one that is not there is asked for by signal 0.
    """
    try:
        found = parse_stat((proc / str(anchor.pid) / "stat").read_bytes().decode(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        try:
            signal(anchor.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    except (OSError, ValueError):
        return True
    return found.start_ticks == anchor.start_ticks and found.state not in _ENDED
