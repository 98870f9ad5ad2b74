"""Which models answer, from a seat that is made up."""

from __future__ import annotations

import pytest
from ansible.module_utils.voices.seat_api import Model, SeatError, SeatUnreachable
from ansible.module_utils.voices.verify import Verdict, ask_all, listen

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

    def prompt_logprobs(self, model: str, prompt: str) -> tuple[float, ...]:
        return (-1.0, -1.5 if model == "lv-a" else -1.0)


@pytest.mark.parametrize(("silent", "failed", "warned"), [("fail", 1, 0), ("warn", 0, 1), ("ignore", 0, 0)])
def test_voices_that_answer_are_held_against_the_base(silent: str, failed: int, warned: int) -> None:
    verdict = Verdict(answers={BASE: "Rain.", "lv-a": "Sun.", "lv-b": "Rain."}, failed={"lv-c": "HTTP 500"})
    listen(FakeSeat({}), BASE, verdict, silent)
    assert len(verdict.failed) - 1 == failed and len(verdict.warnings) == warned
    spoken = {name: found["verdict"] for name, found in verdict.speech.items()}
    assert spoken == ({} if silent == "ignore" else {"lv-a": "speaks", "lv-b": "silent"})


def test_without_a_base_nothing_is_compared() -> None:
    verdict = Verdict(answers={"lv-a": "Sun."}, failed={BASE: "HTTP 500"})
    listen(FakeSeat({}), BASE, verdict, "fail")
    assert verdict.speech == {}


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
        "3 of 4 models do not answer as they should: lv-a: HTTP 500 broken; "
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
