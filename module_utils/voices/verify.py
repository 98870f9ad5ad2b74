"""Does a seat answer? Each wanted model is listed, asked one question, and each voice held against the base."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .plan import VoicesError
from .seat_api import Model, SeatError, SeatUnauthorized, SeatUnreachable
from .speaks import hear, require_speech


class Seat(Protocol):
    """The part of ``SeatApi`` that verification needs."""

    def models(self) -> dict[str, Model]: ...

    def chat(self, model: str, prompt: str, max_tokens: int) -> str: ...

    def prompt_logprobs(self, model: str, prompt: str) -> Sequence[float]: ...


@dataclass
class Verdict:
    """Texts and seconds by model that answered, reasons by model that did not, and how the voices compare."""

    answers: dict[str, str] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    speech: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def message(self, asked: int) -> str:
        """One line for ``fail_json``; "" when all answered."""
        if not self.failed:
            return ""
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(self.failed.items()))
        return f"{len(self.failed)} of {asked} models do not answer as they should: {reasons}"


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


def listen(seat: Seat, base_model: str, verdict: Verdict, silent: str) -> None:
    """Compare every voice that answered with the base; one that is silent fails or is a warning, as ``silent`` says."""
    if silent == "ignore" or base_model in verdict.failed:
        return
    for name in [name for name in verdict.answers if name != base_model]:
        try:
            speech = hear(seat, base_model, name)
            verdict.speech[name] = speech.as_dict()
            warnings: list[str] = []
            require_speech(speech, silent, warnings.append)
            verdict.warnings += [f"voice {name}: {why}" for why in warnings]
        except VoicesError as error:
            verdict.failed[name] = str(error)


def _note(verdict: Verdict, name: str, text: str, seconds: float) -> None:
    if not text.strip():
        verdict.failed[name] = "the answer is empty: ask another prompt or more tokens, or its adapter is broken"
        return
    verdict.answers[name] = text
    verdict.timings_s[name] = seconds
