"""Carries out a plan for the live adapters, voice by voice, and proves it against the seat."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .adapters import REHEARSAL_PREFIX, after
from .plan import Action, VoicesError
from .seat_api import SeatError, SeatUnauthorized, SeatUnreachable
from .speaks import hear, require_speech


@dataclass
class Outcome:
    """What came of a plan: seconds by voice and step, why voices failed, and how those that were loaded spoke."""

    timings: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    speech: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Seat(Protocol):
    """The part of ``SeatApi`` that the runner needs."""

    def load(self, name: str, path: str) -> None: ...

    def unload(self, name: str) -> None: ...

    def adapters(self, base_model: str) -> dict[str, str]: ...

    def prompt_logprobs(self, model: str, prompt: str) -> Sequence[float]: ...


ChangeVoices = Callable[[Callable[[dict[str, str]], None]], None]


class Runner:
    """Carries out a plan voice by voice: one that fails leaves the others as they are.

    ``silent`` is one of ``SILENT_CHOICES``: unless it is "ignore", an adapter is heard before it is served.
    """

    def __init__(self, seat: Seat, base_model: str, change_voices: ChangeVoices | None, silent: str = "ignore") -> None:
        self.seat = seat
        self.base_model = base_model
        self.change_voices = change_voices
        self.silent = silent
        self.outcome = Outcome()

    def run(self, actions: Sequence[Action]) -> Outcome:
        """Carry out ``actions``, then read the live set again and hold it against the plan."""
        steps: dict[str, Callable[[Action], None]] = {
            "load": self._load_heard,
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

    def _load_heard(self, action: Action) -> None:
        self._rehearse(action.what, action.after)
        self._load_timed(action.what, action.after)

    def _rehearse(self, name: str, path: str) -> None:
        """Load the adapter under a private name, compare it with the base, and unload it: nobody hears a voice that is
        not one, and what is served goes on meanwhile. Raises SilentError."""
        if self.silent == "ignore":
            return
        started = time.monotonic()
        private = f"{REHEARSAL_PREFIX}{name}"
        self._load(private, path)
        try:
            speech = hear(self.seat, self.base_model, private)
        except SeatUnreachable:
            raise
        except VoicesError:
            with contextlib.suppress(SeatError):  # the first error is the one to tell; the next run unloads it
                self._unload(private)
            raise
        self._unload(private)
        self._timed(name, "rehearsal_s", started)
        self.outcome.speech[name] = speech.as_dict()
        require_speech(speech, self.silent, lambda why: self.outcome.warnings.append(f"voice {name} ({path}): {why}"))

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
        try:
            self._rehearse(name, new)
        except (SeatUnreachable, SeatUnauthorized):
            raise
        except VoicesError as error:
            raise type(error)(f"{error}; the previous adapter {old} was not touched and is served") from None
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
