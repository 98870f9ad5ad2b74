"""Live adapters == wanted adapters, and lasting: the plan (pure) and the runner that carries it out.

Loads are live first and then written to engine.yaml, removals are written first and then unloaded, so that at every
moment engine.yaml holds only what this engine has loaded. A replacement comes from a new path: vLLM keys cached
prompt blocks by name and path, so the same path with other weights would answer from the old voice's cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .names import voice_name_error
from .plan import Action, VoicesError
from .seat_api import SeatError, SeatUnauthorized, SeatUnreachable


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


@dataclass
class Outcome:
    """What came of a plan: seconds by voice and step, and why voices failed."""

    timings: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Seat(Protocol):
    """The part of ``SeatApi`` that the runner needs."""

    def load(self, name: str, path: str) -> None: ...

    def unload(self, name: str) -> None: ...

    def adapters(self, base_model: str) -> dict[str, str]: ...


ChangeVoices = Callable[[Callable[[dict[str, str]], None]], None]


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
    return {name: path for name, path in sorted(actual.live.items()) if name not in known}


def plan(wanted: Wanted, actual: Actual) -> list[Action]:
    """Removals, then replacements, then loads, so that slots are free before they are needed. Raises VoicesError."""
    check(wanted, actual)
    persisted = actual.persisted if wanted.persist and actual.persisted is not None else None
    actions: list[Action] = []
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


class Runner:
    """Carries out a plan voice by voice: one that fails leaves the others as they are."""

    def __init__(self, seat: Seat, base_model: str, change_voices: ChangeVoices | None) -> None:
        self.seat = seat
        self.base_model = base_model
        self.change_voices = change_voices
        self.outcome = Outcome()

    def run(self, actions: Sequence[Action]) -> Outcome:
        """Carry out ``actions``, then read the live set again and hold it against the plan."""
        steps: dict[str, Callable[[Action], None]] = {
            "load": lambda action: self._load_timed(action.what, action.after),
            "unload": lambda action: self._unload_timed(action.what),
            "prune": lambda action: self._unload_timed(action.what),
            "replace": self._replace,
            "persist": lambda action: self._persist(action.what, action.after),
            "drop": lambda action: self._drop(action.what),
        }
        stopped = ""
        for action in actions:
            if action.what in self.outcome.failed:
                continue
            if stopped:
                self.outcome.failed[action.what] = f"not tried: {stopped}"
                continue
            try:
                steps[action.do](action)
            except (SeatUnreachable, SeatUnauthorized) as error:
                stopped = self.outcome.failed[action.what] = str(error)
            except (VoicesError, OSError) as error:
                self.outcome.failed[action.what] = str(error)
        if actions and not stopped:
            self._prove(actions)
        return self.outcome

    def _prove(self, actions: Sequence[Action]) -> None:
        names = {action.what for action in actions if action.what not in self.outcome.failed}
        expected = after(actions, {})
        try:
            live = self.seat.adapters(self.base_model)
        except SeatError as error:
            self.outcome.failed.update({name: f"not proven live: {error}" for name in sorted(names)})
            return
        kept = {action.what: action.after for action in actions if action.do == "persist"}  # live before, too
        for name in sorted(names):
            want = expected.get(name, kept.get(name))
            if live.get(name) != want:
                shown = live.get(name, "not live")
                self.outcome.failed[name] = f"after the run it is {shown} and should be {want or 'not live'}: run again"

    def _timed(self, name: str, step: str, started: float) -> None:
        self.outcome.timings.setdefault(name, {})[step] = round(time.monotonic() - started, 4)

    def _load_timed(self, name: str, path: str) -> None:
        started = time.monotonic()
        self._load(name, path)
        self._timed(name, "load_s", started)

    def _unload_timed(self, name: str) -> None:
        started = time.monotonic()
        self._unload(name)
        self._timed(name, "unload_s", started)

    def _load(self, name: str, path: str) -> None:
        """Load. An error counts only if the seat does not serve ``name`` from ``path`` afterwards: it may have said
        "already loaded", or its answer may have been lost."""
        try:
            self.seat.load(name, path)
        except (SeatUnreachable, SeatUnauthorized):
            raise
        except SeatError as error:
            if self._live_path(name, error) != path:
                # vLLM takes paths out of its messages
                raise SeatError(f"{path} did not load: {error}", error.status) from None

    def _unload(self, name: str) -> None:
        """Unload; an error counts only if the seat still serves ``name`` ("not found" is 404 or 400 by version)."""
        try:
            self.seat.unload(name)
        except (SeatUnreachable, SeatUnauthorized):
            raise
        except SeatError as error:
            if self._live_path(name, error) is not None:
                raise

    def _live_path(self, name: str, error: SeatError) -> str | None:
        try:
            return self.seat.adapters(self.base_model).get(name)
        except SeatError:
            raise error from None

    def _replace(self, action: Action) -> None:
        name, old, new = action.what, action.before, action.after
        started = time.monotonic()
        self._unload_timed(name)
        try:
            self._load_timed(name, new)
        except SeatError as error:
            self._load_back(name, old, new, error)
        self._timed(name, "gap_s", started)  # at most this long the voice was not served

    def _load_back(self, name: str, old: str, new: str, error: SeatError) -> None:
        """The new adapter failed: serve the old one rather than none. Returns only if the new one is live after all."""
        try:
            self._load(name, old)
        except (SeatUnreachable, SeatUnauthorized) as second:
            raise type(second)(f"{error}; then, loading the previous adapter {old}: {second}", second.status) from None
        except SeatError as second:
            if self._live_path(name, error) == new:
                return
            lost = f"{error}; the previous adapter {old} did not load again either ({second}), so {name} is not served"
            if second.status and self.change_voices:  # the engine read it and refused: it would refuse to start with it
                self._drop(name)
                lost += "; it was taken out of engine.yaml, so that the seat still starts"
            raise type(error)(lost, error.status) from None
        raise SeatError(f"{error}; the previous adapter {old} was loaded again and is served", error.status) from None

    def _persist(self, name: str, path: str) -> None:
        def change(voices: dict[str, str]) -> None:
            voices[name] = path

        self._change(change)

    def _drop(self, name: str) -> None:
        def change(voices: dict[str, str]) -> None:
            voices.pop(name, None)

        self._change(change)

    def _change(self, change: Callable[[dict[str, str]], None]) -> None:
        if self.change_voices is None:
            raise VoicesError("engine_file is not given, so nothing can be made lasting")
        self.change_voices(change)


def failures(outcome: Outcome) -> list[dict[str, Any]]:
    """``failed`` as plain data, by voice name."""
    return [{"voice": name, "why": why} for name, why in sorted(outcome.failed.items())]
