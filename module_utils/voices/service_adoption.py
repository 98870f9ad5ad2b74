"""Whether the process that holds a service's port is the wanted one, so that it can be taken over. Pure."""

from __future__ import annotations

import shlex
from typing import Any

from .engine_argv import VLLM, differences, effective_flags, parse_command
from .masking import shown_argv, shown_value
from .plan import VoicesError
from .processes import Identity
from .service import Actual, Candidate, Holder, Spec


def adoptable(spec: Spec, actual: Actual) -> Identity | None:
    """The process on our port that is as wanted, or None when the port is free or only our orphans hold it.

    Raises VoicesError when the port is held by something that is neither ours nor as the inventory says.
    """
    for holder in actual.holders:
        differ: list[str] = []
        if holder.candidate is not None:
            differ = adoption_differences(spec, holder.candidate, actual.program_directory)
            if not differ and not actual.alive and len(actual.holders) == 1:
                return holder.candidate.leader
        if not holder.orphan:
            raise VoicesError(_port_refusal(spec, actual, holder, differ))
    return None


def adoption_differences(spec: Spec, candidate: Candidate, program_directory: str = "") -> list[str]:
    """In what the process that holds the port differs from the wanted one; empty when it can be taken over.

    ``program_directory`` is where the wanted executable lies: the same flags from another virtual environment are
    another engine.
    """
    if candidate.unknown:
        return [candidate.unknown]
    desired, there = parse_command(spec.argv), parse_command(candidate.argv)
    found = []
    if desired.program != there.program:
        found.append(f"program {shlex.join(there.program)} here, {shlex.join(desired.program)} wanted")
    elif there.program == VLLM and program_directory != candidate.program_directory:
        found.append(f"program in {candidate.program_directory or '(unknown)'} here, {program_directory} wanted")
    pairs = differences(
        effective_flags(there, candidate.config, spec.config_ignore),
        effective_flags(desired, spec.config, spec.config_ignore),
    )
    found += [f"{key} {_shown(before)} here, {_shown(after)} wanted" for key, before, after in pairs]
    for key in spec.adopt_environment:
        wanted = spec.environment.get(key)
        if candidate.environment is None:
            found.append(f"environment {key} unreadable here")
        elif candidate.environment.get(key) != wanted:
            before = shown_value(key, candidate.environment.get(key))
            found.append(f"environment {key} {_shown(before)} here, {_shown(shown_value(key, wanted))} wanted")
    return found


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _port_refusal(spec: Spec, actual: Actual, holder: Holder, differ: list[str]) -> str:
    who = f"pid {holder.pid} (user {holder.user})" if holder.pid else f"a process of user {holder.user}"
    command = shown_argv(holder.argv) if holder.argv else "its command line is not readable"
    lines = [f"service {spec.name}: port {spec.listen_host}:{spec.listen_port} is taken by {who}: {command}."]
    if actual.alive and actual.booted is not None:
        lines.append(f"The service itself runs as pid {actual.booted.leader.pid}; both may be asked by its clients.")
    if differ:
        lines.append("It is not taken over, because it is not as the inventory says: " + "; ".join(differ) + ".")
    stop = f"Stop that process (kill {holder.pid})" if holder.pid else "Have that process stopped by its user"
    lines.append(f"Nothing was changed. {stop} or give the service another port.")
    return " ".join(lines)
