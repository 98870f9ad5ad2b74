"""Does a voice speak as itself? Its log-probabilities of a text against the base's, with base against base as floor.

vLLM loads an adapter whose tensors match no module, lists it, answers 200, and answers as the base. Seen on 0.32.0: the
log-probabilities of such a voice are bit-identical to the base's; those of real voices differ by 0.67 to 1.2 at their
largest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from .plan import VoicesError
from .seat_api import SeatError, SeatUnauthorized

#: What the models are asked to judge: one sentence of prose, short enough for any max_model_len.
PROBE = "It was late in the afternoon when the old woman closed the gate, and nobody on the road said a word."

#: How often a model is asked when the base does not answer twice the same: other requests share its batches then.
MOST_ROUNDS = 3

SILENT_CHOICES = ("fail", "warn", "ignore")


class SilentError(VoicesError):
    """The voice is loaded, and cannot be told from the base."""


class Judge(Protocol):
    """The part of ``SeatApi`` that a probe needs."""

    def prompt_logprobs(self, model: str, prompt: str) -> Sequence[float]: ...


@dataclass(frozen=True)
class Speech:
    """How a voice compares with the base, in nats.

    ``difference``: of all pairs of a voice's and a base's answer, the least distance; ``floor``: of all pairs of the
    base's own answers, the largest. A distance is the largest over the text's tokens.
    """

    difference: float
    floor: float
    rounds: int

    @property
    def speaks(self) -> bool:
        return self.difference > self.floor

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with the verdict."""
        return {**asdict(self), "verdict": "speaks" if self.speaks else "silent"}

    def why_silent(self) -> str:
        """For an error or a warning: the numbers, the rule, the fix."""
        told = f"its log-probabilities of the probe differ from the base's by {self.difference:.4g}"
        if self.floor:
            return (
                f"loaded, and not told from the base: {told}, and the base's own from each other by up to "
                f"{self.floor:.4g} (the seat is busy). If it is quiet and this stays, the adapter does nothing here"
            )
        return (
            f"loaded but silent: {told}, so it speaks as the base. Its tensors match no module of this carrier, or its "
            "lora_B or alpha is zero; see lora_adapter_check"
        )


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest distance of two answers to one text. Raises VoicesError when they are not of one text."""
    if len(one) != len(other) or not one:
        raise VoicesError(f"the probe came back with {len(one)} and {len(other)} log-probabilities: not one tokenizer")
    found = max(abs(left - right) if left != right else 0.0 for left, right in zip(one, other, strict=True))
    if math.isnan(found):
        raise VoicesError("the probe's log-probabilities are not numbers: the adapter's weights are not finite")
    return found


def judge(base: Sequence[Sequence[float]], voice: Sequence[Sequence[float]]) -> Speech:
    """Answers of the base (two or more) and of a voice (one or more) -> the verdict.

    Least against largest: noise that moves all answers alike lets no silent voice pass by luck.
    """
    floor = max(distance(one, other) for one, other in itertools.combinations(base, 2))
    least = min(distance(one, other) for one in voice for other in base)
    return Speech(least, floor, len(voice))


def hear(seat: Judge, base_model: str, voice: str, prompt: str = PROBE) -> Speech:
    """Ask base and voice in turn, until the base is quiet or ``MOST_ROUNDS`` are over. Raises SeatError."""
    try:
        return _hear(seat, base_model, voice, prompt)
    except SeatUnauthorized:
        raise
    except SeatError as error:
        if 400 <= error.status < 500:
            hint = "it cannot be compared with the base; voices_seat_silent: ignore serves voices unheard"
            raise SeatError(f"{hint}: {error}", error.status) from None
        if error.status >= 500:
            # Seen on vLLM 0.32.0: torch compiles the function behind log-probabilities when it is first asked for them.
            hint = "if the engine's log names a compiler, install one, or set TORCHDYNAMO_DISABLE=1 for the engine"
            raise SeatError(f"it cannot be compared with the base ({hint}): {error}", error.status) from None
        raise


def _hear(seat: Judge, base_model: str, voice: str, prompt: str) -> Speech:
    base = [seat.prompt_logprobs(base_model, prompt)]
    answers = []
    for _ in range(MOST_ROUNDS):
        answers.append(seat.prompt_logprobs(voice, prompt))
        base.append(seat.prompt_logprobs(base_model, prompt))
        found = judge(base, answers)
        if not found.floor:
            break
    return found


def require_speech(found: Speech, silent: str, warn: Callable[[str], None]) -> None:
    """Raise SilentError for a silent voice, or only warn, as ``silent`` says (one of ``SILENT_CHOICES``)."""
    if found.speaks or silent == "ignore":
        return
    if silent == "fail":
        raise SilentError(found.why_silent())
    warn(found.why_silent())
