"""Names: the rules, and what a name of an older generation is called today."""

from __future__ import annotations

import pytest
from ansible.module_utils.voices.names import BASE_MODEL, retired_name, seat_name_error, voice_name_error
from ansible.module_utils.voices.spec import normalise
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("name", ["lv-austen", "lv-a", "lv-mark-twain", "lv-2", "lv-baby", "lv-" + "a" * 60])
def test_voice_names(name: str) -> None:
    assert voice_name_error(name) is None


@pytest.mark.parametrize(
    "name", ["austen", "lv", "lv-", "lv--a", "lv-A", "lv-a-", "lv-a/b", "lv-a\n", "lv-" + "a" * 61, "", 7, None]
)
def test_what_is_no_voice_name(name: object) -> None:
    assert "is outside the naming rule" in (voice_name_error(name) or "")


def test_the_base_is_no_voice() -> None:
    assert "named like the base model" in (voice_name_error(BASE_MODEL) or "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("babyausten", "lv-austen"),
        ("baby-austen", "lv-austen"),
        ("baby_austen", "lv-austen"),
        ("BabyAusten", "lv-austen"),
        ("baby-mark_twain", "lv-mark-twain"),
        ("baby--austen", "lv-austen"),
    ],
)
def test_a_retired_prefix_is_answered_with_the_name_of_today(old: str, new: str) -> None:
    error = voice_name_error(old) or ""
    assert error.startswith(f"voice {old!r} has the retired prefix 'baby': name it {new} (")
    assert voice_name_error(new) is None


@pytest.mark.parametrize("name", ["baby", "baby-", "baby/x", "baby" + "a" * 61, "ababy", "lv-babyausten", 3])
def test_what_has_no_name_of_today_is_answered_with_the_rule_or_is_a_voice(name: object) -> None:
    assert retired_name(name) is None
    assert "retired" not in (voice_name_error(name) or "")


@given(st.text())
def test_whatever_is_proposed_is_a_voice_name(text: str) -> None:
    for name in (text, f"baby{text}"):
        if found := retired_name(name):
            assert voice_name_error(found[1]) is None


def test_an_inventory_of_old_names_is_told_each_new_one() -> None:
    seat = {"carrier": "/c", "port": 8000, "voices": {"babyausten": {"source": "s"}, "baby-homer": {"source": "s"}}}
    _, errors = normalise({"t1": seat}, runtime="supervisor")
    assert [error.split("(")[0].strip() for error in errors] == [
        "seat t1: voice 'babyausten' has the retired prefix 'baby': name it lv-austen",
        "seat t1: voice 'baby-homer' has the retired prefix 'baby': name it lv-homer",
    ]


def test_seat_names() -> None:
    assert seat_name_error("tiny-2") is None
    assert "is outside the naming rule" in (seat_name_error("2tiny") or "")
