"""Whether a voice can be told from the base, from answers that are made up."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.seat_api import SeatError, SeatUnauthorized
from ansible.module_utils.voices.speaks import MOST_ROUNDS, SilentError, distance, hear, judge, require_speech

BASE = (-1.0, -2.0, -3.0)
VOICE = (-1.0, -2.7, -3.1)


class Seat:
    """Gives each model's answers in turn, the last one again and again."""

    def __init__(self, **answers: list[tuple[float, ...]]) -> None:
        self.answers: dict[str, Iterator[tuple[float, ...]]] = {}
        self.last: dict[str, tuple[float, ...]] = {}
        self.asked: list[str] = []
        for model, given in answers.items():
            self.answers[model] = iter(given)

    def prompt_logprobs(self, model: str, prompt: str) -> tuple[float, ...]:
        assert len(prompt) > 40
        self.asked.append(model)
        self.last[model] = next(self.answers[model], self.last.get(model, ()))
        return self.last[model]


def test_a_voice_that_differs_speaks_after_three_questions() -> None:
    seat = Seat(base=[BASE], voice=[VOICE])
    found = hear(seat, "base", "voice")
    assert found.speaks and found.difference == pytest.approx(0.7) and found.floor == 0
    assert seat.asked == ["base", "voice", "base"]


def test_a_voice_that_is_the_base_to_the_bit_is_silent() -> None:
    found = hear(Seat(base=[BASE], voice=[BASE]), "base", "voice")
    assert not found.speaks
    with pytest.raises(
        SilentError, match=r"loaded but silent: .* differ from the base's by 0, so it speaks as the base"
    ):
        require_speech(found, "fail", pytest.fail)
    said: list[str] = []
    require_speech(found, "warn", said.append)
    require_speech(found, "ignore", pytest.fail)
    assert len(said) == 1


def test_the_least_difference_that_a_quiet_base_shows_is_a_voice() -> None:
    weak = (-1.0, -2.006, -3.0)
    assert hear(Seat(base=[BASE], voice=[weak]), "base", "voice").speaks


def test_noise_of_a_busy_seat_is_no_voice() -> None:
    noisy = [(-1.0, -2.0 - 0.01 * step, -3.0) for step in (0, 1, 2, 3)]
    seat = Seat(base=noisy, voice=[(-1.0, -2.015, -3.0)])
    found = hear(seat, "base", "voice")
    assert found.rounds == MOST_ROUNDS and not found.speaks
    assert "the seat is busy" in found.why_silent()
    assert hear(Seat(base=noisy, voice=[VOICE]), "base", "voice").speaks


def test_a_busy_moment_that_passes_is_asked_again_and_still_counts() -> None:
    found = judge([BASE, (-1.0, -2.01, -3.0), BASE], [BASE, BASE])
    assert found.difference == 0 and found.floor == pytest.approx(0.01) and not found.speaks


def test_answers_that_cannot_be_compared() -> None:
    with pytest.raises(VoicesError, match="2 and 3 log-probabilities"):
        distance((-1.0, -2.0), BASE)
    with pytest.raises(VoicesError, match="0 and 0"):
        distance((), ())
    with pytest.raises(VoicesError, match="not finite"):
        distance((math.nan, -2.0, -3.0), BASE)
    assert distance((-math.inf, -1.0), (-math.inf, -1.0)) == 0
    assert distance((-math.inf, -1.0), (-1.0, -1.0)) == math.inf


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SeatError("HTTP 400 no prompt_logprobs here", 400), "voices_seat_silent: ignore serves voices unheard"),
        (SeatError("HTTP 500 broken", 500), "TORCHDYNAMO_DISABLE=1 for the engine.: HTTP 500 broken$"),
        (SeatUnauthorized("HTTP 401 no", 401), "^HTTP 401 no$"),
    ],
)
def test_a_seat_that_will_not_tell_says_what_can_be_done(error: SeatError, said: str) -> None:
    class Refusing(Seat):
        def prompt_logprobs(self, model: str, prompt: str) -> tuple[float, ...]:
            raise error

    with pytest.raises(type(error), match=said):
        hear(Refusing(), "base", "voice")
