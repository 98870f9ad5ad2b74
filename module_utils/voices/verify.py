"""Does a seat answer? Each wanted model is listed, then asked one question."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .seat_api import Model, SeatError, SeatUnauthorized, SeatUnreachable


class Seat(Protocol):
    """The part of ``SeatApi`` that verification needs."""

    def models(self) -> dict[str, Model]: ...

    def chat(self, model: str, prompt: str, max_tokens: int) -> str: ...


@dataclass
class Verdict:
    """Texts and seconds by model that answered, reasons by model that did not."""

    answers: dict[str, str] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def message(self, asked: int) -> str:
        """One line for ``fail_json``; "" when all answered."""
        if not self.failed:
            return ""
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(self.failed.items()))
        return f"{len(self.failed)} of {asked} models do not answer: {reasons}"


def not_listed(wanted: Sequence[str], listed: Collection[str]) -> dict[str, str]:
    """Why each of ``wanted`` that /v1/models does not list cannot answer. Pure."""
    shown = ", ".join(sorted(listed)) or "nothing"
    return {name: f"not served (the seat lists {shown})" for name in wanted if name not in listed}


def ask_all(seat: Seat, models: Sequence[str], prompt: str, max_tokens: int) -> Verdict:
    """Ask each of ``models``. Raises SeatError only when the list of models cannot be read."""
    verdict = Verdict(failed=not_listed(models, seat.models()))
    stopped = ""
    for name in dict.fromkeys(models):
        if name in verdict.failed:
            continue
        if stopped:
            verdict.failed[name] = f"not asked: {stopped}"
            continue
        started = time.monotonic()
        try:
            text = seat.chat(name, prompt, max_tokens)
        except (SeatUnreachable, SeatUnauthorized) as error:
            stopped = verdict.failed[name] = str(error)
        except SeatError as error:
            verdict.failed[name] = str(error)
        else:
            _note(verdict, name, text, round(time.monotonic() - started, 4))
    return verdict


def _note(verdict: Verdict, name: str, text: str, seconds: float) -> None:
    if not text.strip():
        verdict.failed[name] = "the answer is empty: ask another prompt or more tokens, or its adapter is broken"
        return
    verdict.answers[name] = text
    verdict.timings_s[name] = seconds
