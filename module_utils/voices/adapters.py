"""Live adapters == wanted adapters, and lasting: the plan. Pure; ``adapters_runner`` carries it out.

Loads are live first and then written to engine.yaml, removals are written first and then unloaded, so that at every
moment engine.yaml holds only what this engine has loaded. A replacement comes from a new path: vLLM keys cached
prompt blocks by name and path, so the same path with other weights would answer from the old voice's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .names import voice_name_error
from .plan import Action, VoicesError

#: Before a voice's name, the private name under which its new adapter is heard before it is served. Nobody's voice can
#: have it: those begin with ``lv-``.
REHEARSAL_PREFIX = "voices-rehearsal-"


@dataclass(frozen=True)
class Wanted:
    """``voices`` {name: path} to be live, ``absent`` names not to be. ``persist``: engine.yaml follows."""

    voices: Mapping[str, str]
    absent: Sequence[str] = ()
    persist: bool = True
    prune_trials: bool = False


@dataclass(frozen=True)
class Actual:
    """``live`` {name: path} as /v1/models says; ``persisted`` the voices of engine.yaml, None when none was named."""

    live: Mapping[str, str]
    persisted: Mapping[str, str] | None = None


def check(wanted: Wanted, actual: Actual) -> None:
    """Refuse contradictions; raises one VoicesError with every complaint."""
    errors = [voice_name_error(name) for name in (*wanted.voices, *wanted.absent)]
    errors += [
        f"voice {name} is both in voices and in absent" for name in sorted(set(wanted.voices) & {*wanted.absent})
    ]
    errors += [
        f"voice {name} has the path {path!r}; give an absolute one"
        for name, path in sorted(wanted.voices.items())
        if not str(path).startswith("/")
    ]
    if wanted.prune_trials and actual.persisted is None:
        errors.append("prune_trials needs engine_file: without it a trial cannot be told from a voice")
    if not wanted.persist:
        errors += [
            f"voice {name} stands in engine.yaml, so it is no trial: set state: retired or absent in the inventory"
            for name in wanted.absent
            if name in (actual.persisted or {})
        ]
    found = [error for error in errors if error]
    if found:
        raise VoicesError("; ".join(found))


def trials(wanted: Wanted, actual: Actual) -> dict[str, str]:
    """Live adapters that nobody asked for and a restart would lose (without engine_file: all nobody asked for)."""
    known = {*wanted.voices, *wanted.absent, *(actual.persisted or {})}
    return {name: path for name, path in sorted(actual.live.items()) if name not in known and not _rehearsed(name)}


def _rehearsed(name: str) -> bool:
    return name.startswith(REHEARSAL_PREFIX)


def plan(wanted: Wanted, actual: Actual) -> list[Action]:
    """Removals, then replacements, then loads, so that slots are free before they are needed. Raises VoicesError."""
    check(wanted, actual)
    persisted = actual.persisted if wanted.persist and actual.persisted is not None else None
    left = [
        Action("unload", name, why="left by a rehearsal that was cut off", before=path)
        for name, path in sorted(actual.live.items())
        if _rehearsed(name)
    ]
    actions: list[Action] = left
    for name in sorted(wanted.absent):
        if name in (persisted or {}):
            actions.append(Action("drop", name, why="retired", before=(persisted or {})[name]))
        if name in actual.live:
            why = "retired" if wanted.persist else "end of the trial"
            actions.append(Action("unload", name, why=why, before=actual.live[name]))
    if wanted.prune_trials:
        actions += [Action("prune", name, why="trial", before=path) for name, path in trials(wanted, actual).items()]
    moved = [
        name for name in sorted(wanted.voices) if actual.live.get(name, wanted.voices[name]) != wanted.voices[name]
    ]
    for name in [*moved, *(name for name in sorted(wanted.voices) if name not in moved)]:
        path = wanted.voices[name]
        if name in moved:
            actions.append(Action("replace", name, before=actual.live[name], after=path))
        elif name not in actual.live:
            actions.append(Action("load", name, after=path))
        if persisted is not None and persisted.get(name) != path:
            actions.append(Action("persist", name, before=persisted.get(name), after=path))
    return actions


def after(actions: Sequence[Action], live: Mapping[str, str]) -> dict[str, str]:
    """The live set once ``actions`` are carried out."""
    found = dict(live)
    for action in actions:
        if action.do in ("unload", "prune"):
            found.pop(action.what, None)
        elif action.do in ("load", "replace"):
            found[action.what] = action.after
    return dict(sorted(found.items()))
