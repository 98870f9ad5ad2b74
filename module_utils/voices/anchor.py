"""Which process must live for a lease to hold: the play, as seen from the module that it runs on the seat's host.

A process is (pid, start time), so that a reused pid is another process. A host without ``/proc`` has no anchors, and
its leases end by time alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from . import processes
from .processes import PROC, Process

SSHD = "sshd"

_ANSIBLE = frozenset({"ansible", "ansible-playbook", "ansible-console", "ansible-pull"})
#: OpenSSH serves a session in ``sshd-session`` since 9.8 and in a fork of ``sshd`` before.
_SSH = frozenset({SSHD, "sshd-session"})
#: Python's options that take their value from the next argument.
_PYTHON_VALUED = frozenset({"-W", "-X", "--check-hash-based-pycs"})


class Ancestor(NamedTuple):
    """A process that the module descends from, with what it runs (empty when that cannot be read)."""

    process: Process
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Anchor:
    """The process whose end frees a lease. ``command`` says what it is: ``ansible-playbook``, ``sshd``."""

    pid: int
    start_ticks: int
    command: str


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


def choose_anchor(chain: Iterable[Ancestor]) -> Anchor | None:
    """The anchor among a module's ancestors, nearest first: the play, or the ssh session that carries it, or None.

    Ansible runs each task in a fork of the play, which keeps the play's argv and ends with the task: so the anchor is
    the topmost of neighbours with one argv. A play started by another play has its own argv and is its own anchor.
    """
    links = list(chain)
    for index, (process, argv) in enumerate(links):
        command = ansible_command(argv)
        if command:
            play = process
            for parent in links[index + 1 :]:
                if parent.argv != argv:
                    break
                play = parent.process
            return Anchor(play.pid, play.start_time, command)
        if process.name in _SSH:
            return Anchor(process.pid, process.start_time, SSHD)
    return None


def find_anchor(pid: int | None = None, proc: Path = PROC) -> Anchor | None:
    """The anchor of the process ``pid`` (this one by default); None without one, or without ``/proc``."""
    chain = processes.ancestors(os.getpid() if pid is None else pid, proc)
    return choose_anchor(Ancestor(one, tuple(processes.command_line(one.pid, proc) or ())) for one in chain)


def is_running(anchor: Anchor, proc: Path = PROC, signal: Callable[[int, int], None] = os.kill) -> bool:
    """Whether the anchor's process still runs. In doubt it does: a lease freed wrongly costs more than a wait.

    A SIGKILLed play is a zombie until its parent reads its status, and gone all the same. ``/proc`` mounted with
    hidepid hides other users' processes, so one that is not there is asked for by signal 0.
    """
    try:
        found = processes.read_stat(anchor.pid, proc)
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
    return found.start_time == anchor.start_ticks and not found.gone
