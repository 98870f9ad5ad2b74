"""Which models answer, from a seat that is made up."""

from __future__ import annotations

import pytest
from ansible.module_utils.voices.seat_api import Model, SeatError, SeatUnreachable
from ansible.module_utils.voices.verify import ask_all

BASE = "voices-base"


class FakeSeat:
    """Lists ``answers``' models; an answer that is an exception is raised."""

    def __init__(self, answers: dict[str, str | Exception]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, int]] = []

    def models(self) -> dict[str, Model]:
        return {name: Model(name, "/root", "") for name in self.answers}

    def chat(self, model: str, prompt: str, max_tokens: int) -> str:
        self.asked.append((model, prompt, max_tokens))
        answer = self.answers[model]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_every_model_is_asked_once() -> None:
    seat = FakeSeat({BASE: "Rain.", "lv-a": "Sun."})
    verdict = ask_all(seat, [BASE, "lv-a", BASE], "Weather?", 8)
    assert verdict.answers == {BASE: "Rain.", "lv-a": "Sun."}
    assert set(verdict.timings_s) == {BASE, "lv-a"} and verdict.message(2) == ""
    assert seat.asked == [(BASE, "Weather?", 8), ("lv-a", "Weather?", 8)]


def test_each_model_that_does_not_answer_is_named() -> None:
    seat = FakeSeat({BASE: "Rain.", "lv-a": SeatError("HTTP 500 broken", 500), "lv-b": " \n"})
    verdict = ask_all(seat, [BASE, "lv-a", "lv-b", "lv-c"], "Weather?", 8)
    assert verdict.answers == {BASE: "Rain."}
    assert verdict.message(4) == (
        "3 of 4 models do not answer: lv-a: HTTP 500 broken; "
        "lv-b: the answer is empty: ask another prompt or more tokens, or its adapter is broken; "
        "lv-c: not served (the seat lists lv-a, lv-b, voices-base)"
    )


def test_a_seat_that_goes_away_is_not_asked_again() -> None:
    seat = FakeSeat({BASE: SeatUnreachable("nothing answers there"), "lv-a": "Sun."})
    verdict = ask_all(seat, [BASE, "lv-a"], "Weather?", 8)
    assert verdict.failed == {BASE: "nothing answers there", "lv-a": "not asked: nothing answers there"}
    assert len(seat.asked) == 1


def test_a_list_that_cannot_be_read_is_an_error() -> None:
    seat = FakeSeat({})
    seat.models = lambda: (_ for _ in ()).throw(SeatUnreachable("nothing answers there"))  # type: ignore[method-assign]
    with pytest.raises(SeatUnreachable):
        ask_all(seat, [BASE], "Weather?", 8)
