"""The plan of a service: from what runs to what is wanted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .engine_argv import differences
from .flags import SECRET_FLAGS, counted_flags
from .masking import shown_argv, shown_value
from .plan import Action
from .service import Actual, Plan, Spec
from .service_adoption import adoptable

SETTLED = ("RUNNING", "STARTING", "BACKOFF")
"""supervisord's states in which it keeps the process up by itself (supervisor.states)."""


def plan_service(spec: Spec, actual: Actual, desired_files: Mapping[str, str]) -> Plan:
    """The plan from what is to what is wanted. ``desired_files``: name in the service's directory -> text.

    Raises VoicesError when the port is held by something that is neither ours nor as the inventory says.
    """
    if spec.state != "started":
        return _plan_down(spec, actual)
    adopt = adoptable(spec, actual)
    if adopt is not None and not actual.alive:
        why = f"pid {adopt.pid} runs as the inventory says"
        return Plan("exchange", (Action("adopt", spec.name, why=why),), adopt)
    if actual.alive or (actual.booted is not None and actual.supervisord == "running" and actual.program in SETTLED):
        changes = restart_reasons(spec, actual)
        if changes:
            return Plan("start", tuple(Action("restart", spec.name, *change) for change in changes))
        if actual.supervisord == "running" and actual.program in SETTLED:
            return _plan_files(spec, actual, desired_files)
        assert actual.booted is not None  # noqa: S101 - alive means that it was noted
        why = f"pid {actual.booted.leader.pid} runs on, but {_down_reason(actual)}"
        return Plan("exchange", (Action("adopt", spec.name, why=why),))
    if actual.supervisord == "running" and actual.program == "RUNNING" and actual.launch is not None:
        return _plan_start(spec, "the note of what it was started with is gone, so what it runs with cannot be known")
    if actual.supervisord == "running" and actual.program in SETTLED and actual.launch is not None:
        # The first boot is under way: the wrapper has not noted a process yet.
        if not _launch_differs(spec, actual):
            return _plan_files(spec, actual, desired_files)
        return _plan_start(spec, "it was starting with other settings")
    return _plan_start(spec, "it is new" if actual.launch is None else _down_reason(actual))


def _plan_start(spec: Spec, why: str) -> Plan:
    return Plan("start", (Action("start", spec.name, why=why),))


def _plan_down(spec: Spec, actual: Actual) -> Plan:
    actions = []
    if actual.alive or actual.others or actual.supervisord != "gone":
        actions.append(Action("stop", spec.name))
    remove = spec.state == "absent" and actual.exists
    if remove:
        actions.append(Action("remove", spec.name))
    return Plan("stop" if actions else "nothing", tuple(actions), None, remove)


def _plan_files(spec: Spec, actual: Actual, desired_files: Mapping[str, str]) -> Plan:
    changed = sorted(name for name, text in desired_files.items() if actual.files.get(name) != text)
    actions = [Action("write", name, why=f"{spec.name} runs on") for name in changed]
    if _launch_differs(spec, actual):
        actions.append(Action("write", "launch.json", why=f"{spec.name} runs on"))
    if not actions:
        return Plan()
    return Plan("exchange" if changed else "note", tuple(actions))


def _launch_differs(spec: Spec, actual: Actual) -> bool:
    there = {key: value for key, value in (actual.launch or {}).items() if key not in ("launch_id", "adopt")}
    return there != spec.launch()


def _down_reason(actual: Actual) -> str:
    if actual.supervisord == "running":
        return f"supervisord says {actual.program or 'that it does not know it'}"
    return {"gone": "its supervisord is not running", "unreachable": "its supervisord does not answer"}[
        actual.supervisord
    ]


def restart_reasons(spec: Spec, actual: Actual) -> list[tuple[str, Any, Any]]:
    """(what, before, after) for each setting in which the process that runs differs from the wanted one."""
    booted = actual.booted
    if booted is None:
        return []
    reasons: list[tuple[str, Any, Any]] = []
    if spec.config_file != booted.config_file:
        reasons.append(("config_file", booted.config_file or None, spec.config_file or None))
    elif spec.config_file and spec.config is not None:
        if booted.flags is None:
            reasons.append(("config_file", "(unreadable when it started)", spec.config_file))
        else:
            changed = differences(
                counted_flags(booted.flags, spec.config_ignore), counted_flags(spec.config, spec.config_ignore)
            )
            # A secret shows as changed and no more: check mode cannot know the digest of one that is yet to be made.
            reasons += [(f"{key} changed", None, None) if key in SECRET_FLAGS else (key, b, a) for key, b, a in changed]
    elif spec.config_file and booted.config_sha256 != actual.config_file_sha256:
        reasons.append((f"content of {spec.config_file}", booted.config_sha256[:12], actual.config_file_sha256[:12]))
    if spec.argv != booted.argv:
        reasons.append(("argv", shown_argv(booted.argv), shown_argv(spec.argv)))
    for key in sorted(spec.environment.keys() | booted.environment.keys()):
        before, after = booted.environment.get(key), spec.environment.get(key)
        if before != after:
            reasons.append((f"environment {key}", shown_value(key, before), shown_value(key, after)))
    return reasons
