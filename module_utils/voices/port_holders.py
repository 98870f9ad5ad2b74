"""Who holds a service's port, and what those processes run with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import processes
from .engine_argv import parse_command
from .listeners import Listener, listeners
from .processes import Identity, Process
from .service import MARK, Candidate, Holder, Spec

START_ERROR_S = 0.02  # start times are in ticks of 0.01 s, and so is the uptime that they are added to

ParseConfig = Callable[[bytes], "dict[str, Any] | None"]
"""From a file's content to the YAML mapping in it, None when there is none."""


def strangers(spec: Spec, table: Mapping[int, Process], ours: set[Identity], parse: ParseConfig) -> list[Holder]:
    """The processes that hold the service's port and are none of ``ours``."""
    if not spec.listen_port:
        return []
    found: dict[tuple[int, str], Holder] = {}
    for listener in on_port(spec, table, ours):
        if any(one.pid in listener.pids for one in ours):
            continue
        pid = _server_of(listener, table)
        holder = Holder(pid, processes.user_name(listener.uid))
        if pid:
            environment = processes.environment(pid) or {}
            holder = Holder(
                pid,
                holder.user,
                tuple(processes.command_line(pid) or ()),
                environment.get(MARK) == spec.directory,
                _candidate(pid, parse),
            )
        found[(pid, holder.user)] = holder
    return [found[key] for key in sorted(found)]


def on_port(spec: Spec, table: Mapping[int, Process], ours: set[Identity]) -> list[Listener]:
    """The sockets on the service's port, with their owners.

    Owners are looked for among ``ours`` first: reading everybody's descriptors takes its time.
    """
    own = {one.pid: table[one.pid] for one in ours if one.pid in table}
    found = listeners(spec.listen_port, spec.listen_host, own)
    return found if all(one.pids for one in found) else listeners(spec.listen_port, spec.listen_host, table)


def program_directory(argv: Sequence[str], path: str, base: str) -> str:
    """The resolved directory of the executable, or an empty text when it cannot be found."""
    if not argv:
        return ""
    program = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=path) or ""
    return os.path.realpath(os.path.join(base, os.path.dirname(program))) if program else ""


def _server_of(listener: Listener, table: Mapping[int, Process]) -> int:
    """The process to name for a listener: its owner, or the ancestor with the same program that started it."""
    if not listener.pids:
        return 0
    pid = min(listener.pids, key=lambda one: table[one].start_time if one in table else 0)
    program = parse_command(processes.command_line(pid) or ()).program
    while pid in table:
        parent = table[pid].parent
        if parse_command(processes.command_line(parent) or ()).program != program:
            break
        pid = parent
    return pid


def _candidate(pid: int, parse: ParseConfig) -> Candidate | None:
    identity, argv = processes.identify(pid), processes.command_line(pid)
    process = processes.read_process(pid)
    if identity is None or argv is None or process is None:
        return None
    environment = processes.environment(pid)
    base = processes.working_directory(pid) or "/"
    path = (environment or {}).get("PATH", "")
    config, unknown = None, ""
    command = parse_command(argv)
    if command.config_file:
        config_file = os.path.join(base, command.config_file)
        config, unknown = _config_of(config_file, processes.started_at(process), parse)
    return Candidate(identity, tuple(argv), program_directory(argv, path, base), config, environment, unknown)


def _config_of(config_file: str, started: float, parse: ParseConfig) -> tuple[dict[str, Any] | None, str]:
    """The configuration of a process that started at ``started`` (seconds since the epoch), and why it is unknown."""
    try:
        status = os.stat(config_file)
        config = parse(Path(config_file).read_bytes())
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        return None, f"its --config file {config_file} {why}, so what it runs with cannot be known"
    newer_s = max(status.st_mtime, status.st_ctime) - started
    if newer_s > START_ERROR_S:
        return None, (
            f"its --config file {config_file} was changed {newer_s:.2f} s after the process started, "
            "so what it runs with cannot be known"
        )
    return config, "" if config is not None else f"its --config file {config_file} is not a YAML mapping"
