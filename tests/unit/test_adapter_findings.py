"""The table of codes, and what is shown and allowed of findings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible.module_utils.voices.adapter_findings import (
    CODES,
    ERROR,
    INFO,
    SEVERITIES,
    WARNING,
    allow_errors,
    allowed,
    capped,
    found,
    shown,
)


def test_every_code_has_a_severity_a_meaning_and_a_fix() -> None:
    for code, kind in CODES.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
        assert kind.severity in SEVERITIES and kind.meaning and kind.fix
        assert not kind.structural or kind.severity == ERROR, code


def test_the_decision_record_lists_every_code_with_its_severity() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/decisions/0004-adapter-checks.md").read_text()
    for code, kind in CODES.items():
        severity = f"{kind.severity}, files" if kind.structural else kind.severity
        assert f"| {code} | {severity} | " in text, code


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\n", "\\x1b[31mred\\n"),
        ("it's", "it's"),
        ("\udcff", "\\udcff"),
        ("\u202e", "\\u202e"),
        ("x" * 500, "x" * 160 + "…"),
        (None, "None"),
        ([1, [2, [3]]], "[1, [2, [3]]]"),
    ],
)
def test_shown(given: object, wanted: str) -> None:
    assert shown(given) == wanted


def test_a_value_nested_beyond_any_recursion_is_shown() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(shown(deep)) < 200


def test_allow_names_the_code_that_may_be_meant_and_refuses_structural_ones() -> None:
    assert allow_errors("voice lv-x", ["bias", "wrong-prefix", "base-model-differs"]) == []
    (unknown,) = allow_errors("voice lv-x", ["wrong-prefx"])
    assert unknown == "voice lv-x: allow has the unknown code 'wrong-prefx'; did you mean 'wrong-prefix'?"
    (structural,) = allow_errors("voice lv-x", ["pickle"])
    assert structural.startswith("voice lv-x: pickle cannot be allowed, pickled weights run code")
    assert len(allow_errors("voice lv-x", [["bias"], 5, {}])) == 3


def test_allowed_goes_down_one_step_for_these_codes_only() -> None:
    given = [found("bias", "x"), found("base-model-differs", "x"), found("pickle", "x"), found("dora", "x")]
    after = allowed(given, ["bias", "base-model-differs", "pickle"])
    assert [one.severity for one in after] == [WARNING, INFO, ERROR, ERROR]


@pytest.mark.parametrize(("count", "lines"), [(1, 1), (3, 3), (4, 4), (100, 4)])
def test_capped(count: int, lines: int) -> None:
    given = [found("task-type", "w"), *(found("bias", f"number {n}", f"t{n}") for n in range(count))]
    kept = capped(given)
    assert [one.code for one in kept] == ["bias"] * lines + ["task-type"]
    if count > 3:
        assert (kept[3].message, kept[3].tensor) == (f"and {count - 3} more of this kind ({count} in all)", "")
