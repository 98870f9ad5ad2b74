"""voices_seat_cards: everything wrong is named at once, everything right becomes declarations in bytes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.cards_spec import (
    MIB,
    NOTHING_DECLARED,
    CardDeclaration,
    Tenant,
    card_key,
    declared_for,
    key_errors,
    parse_cards,
)
from hypothesis import given
from hypothesis import strategies as st

UUID = "GPU-0c5d2ab1-1111-2222-3333-444455556666"
OTHER = "GPU-9f5d2ab1-1111-2222-3333-444455556666"


def card(**changes: Any) -> dict[str, Any]:
    return {"0": {"tenants": {"cyberprev": {"peak_mib": 44918, "container": "cyberprev"}}} | changes}


def test_a_valid_card_becomes_bytes_and_defaults() -> None:
    declared, errors = parse_cards(
        {
            0: {
                "reserve_mib": "512",
                "tenants": {
                    "speech": {"peak_mib": 1000, "command": "parakeet serve"},
                    "cyberprev": {"peak_mib": 44918, "container": "cyberprev"},
                },
                "hold": {"name": "flash-next", "needs_mib": 95232},
            },
            UUID.lower(): {"hold": {"name": "later"}},
        }
    )
    assert errors == []
    assert declared == {
        "0": CardDeclaration(
            reserve_bytes=512 * MIB,
            hold_name="flash-next",
            hold_bytes=95232 * MIB,
            tenants=(
                Tenant("cyberprev", 44918 * MIB, container="cyberprev"),
                Tenant("speech", 1000 * MIB, command="parakeet serve"),
            ),
        ),
        UUID: CardDeclaration(hold_name="later"),
    }


def test_nothing_declared_is_valid() -> None:
    assert parse_cards({}) == ({}, [])
    assert parse_cards({"1": {}}) == ({"1": NOTHING_DECLARED}, [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reserve": 5}, ["unknown option 'reserve'", "'reserve_mib'"]),
        ({"reserve_mib": -1}, ["reserve_mib -1", "0 to 1,048,576 MiB"]),
        ({"reserve_mib": 47_100_000_000}, ["reserve_mib 47100000000", "write MiB"]),
        ({"reserve_mib": "4 GiB"}, ["reserve_mib", "4 GiB"]),
        ({"reserve_mib": 0.5}, ["reserve_mib is a float (0.5)", "whole number in MiB"]),
        ({"reserve_mib": True}, ["reserve_mib is a bool (True)"]),
        ({"hold": "flash-next"}, ["hold is a str ('flash-next')", "dict"]),
        ({"hold": {}}, ["hold", "name"]),
        ({"hold": {"name": "a\nb"}}, ["hold 'a\\nb' is no name", "letters, digits"]),
        ({"hold": {"name": "flash-next", "need_mib": 1}}, ["unknown option 'need_mib'", "'needs_mib'"]),
        ({"hold": {"name": "flash-next", "needs_mib": -5}}, ["hold flash-next", "needs_mib -5"]),
        ({"tenants": ["cyberprev"]}, ["tenants is a list", "dict"]),
        ({"tenants": {"gen small": {"peak_mib": 1}}}, ["tenant 'gen small' is no name"]),
        ({"tenants": {7: {"peak_mib": 1}}}, ["tenant 7 is no name"]),
        ({"tenants": {"../x": {"peak_mib": 1}}}, ["tenant '../x' is no name"]),
        ({"tenants": {"x": 4096}}, ["tenant x is a int", "peak_mib: 4096, container: x"]),
        ({"tenants": {"x": {}}}, ["tenant x", "peak_mib"]),
        ({"tenants": {"x": {"peak_mib": 0}}}, ["tenant x: peak_mib 0", "1 to"]),
        ({"tenants": {"x": {"peak_mib": 1, "peek_mib": 2}}}, ["unknown option 'peek_mib'", "'peak_mib'"]),
        ({"tenants": {"x": {"peak_mib": 1, "command": "a\nb"}}}, ["tenant x: command 'a\\nb'", "one line"]),
        ({"tenants": {"x": {"peak_mib": 1, "container": " "}}}, ["container ' '"]),
        ({"tenants": {"x": {"peak_mib": 1, "container": 5}}}, ["container is a int (5)"]),
        (
            {"tenants": {"b": {"peak_mib": 1, "command": "serve"}, "a": {"peak_mib": 2, "command": "serve"}}},
            ["tenants b and a have the same container and command"],
        ),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], words: list[str]) -> None:
    errors = parse_cards(card(**changes))[1]
    assert len(errors) == 1, errors
    assert errors[0].startswith("voices_seat_cards, card 0")
    for word in words:
        assert word in errors[0]


def test_every_fault_is_reported_at_once() -> None:
    errors = parse_cards(
        {
            "0": {"reserve_mib": -1, "hold": {"nam": "x"}, "tenants": {"a b": {}, "c": {"peak_mib": "much"}}},
            "one": {},
            "2": 5,
        }
    )[1]
    assert len(errors) == 7, errors  # reserve; hold: unknown and missing; two tenants; a key; a card


def test_tenants_without_a_rule_are_two_tenants() -> None:
    assert parse_cards(card(tenants={"a": {"peak_mib": 1}, "b": {"peak_mib": 2}}))[1] == []


@pytest.mark.parametrize("cards", [None, [], "0", 5])
def test_what_is_no_dict_is_named(cards: object) -> None:
    errors = parse_cards(cards)[1]
    assert errors == [f"voices_seat_cards is a {type(cards).__name__}; it is a dict of cards by index or GPU UUID"]


@pytest.mark.parametrize(
    ("given_key", "key"),
    [
        ("0", "0"),
        (12, "12"),
        (UUID, UUID),
        (UUID.upper(), UUID),
        ("00", ""),
        (-1, ""),
        (True, ""),
        (None, ""),
        (1.0, ""),
        ("", ""),
        ("0,1", ""),
        ("GPU-0", ""),
        (UUID + "\n", UUID),
        (UUID.replace("GPU-", "MIG-"), ""),
        ("٣", ""),
        ("1000", ""),
    ],
)
def test_a_card_is_an_index_or_a_uuid(given_key: object, key: str) -> None:
    assert card_key(given_key) == key


@pytest.mark.parametrize("key", ["first", "MIG-1", True, None, "0 1"])
def test_another_key_is_refused(key: object) -> None:
    errors = parse_cards({key: {}})[1]
    assert len(errors) == 1
    assert f"card {key!r}: it is neither an index nor a GPU UUID" in errors[0]


@pytest.mark.parametrize(("one", "two"), [("0", 0), (UUID, UUID.lower())])
def test_one_key_in_two_writings_is_refused(one: object, two: object) -> None:
    errors = parse_cards({one: {}, two: {"reserve_mib": 1}})[1]
    assert len(errors) == 1
    assert "it stands twice" in errors[0]


def test_on_the_host_a_key_must_be_a_card_and_one_card_have_one_key() -> None:
    uuids = {0: OTHER, 1: UUID}
    assert key_errors(["0", UUID], uuids) == []
    assert key_errors(["1", UUID], uuids) == [
        f"voices_seat_cards names card 1 twice, as 1 and as {UUID}; put all under one key"
    ]
    (missing,) = key_errors(["0", "3"], uuids)
    assert "card 3, which this host does not have" in missing
    assert f"0 ({OTHER}), 1 ({UUID})" in missing
    assert "its cards are none" in key_errors([UUID], {})[0]


def test_a_card_finds_its_declaration_by_either_key() -> None:
    by_index, by_uuid = CardDeclaration(reserve_bytes=1), CardDeclaration(reserve_bytes=2)
    declared = {"0": by_index, UUID: by_uuid}
    assert declared_for(declared, 0, OTHER) is by_index
    assert declared_for(declared, 1, UUID) is by_uuid
    assert declared_for(declared, 2, OTHER) == NOTHING_DECLARED
    # An empty declaration is found too, and not passed over for another.
    assert declared_for({UUID: CardDeclaration(), "0": by_index}, 0, UUID) == NOTHING_DECLARED


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=12,
    )
)
def test_no_input_is_answered_with_a_traceback(given: Any) -> None:
    parse_cards(given)
    parse_cards({"0": given})
    parse_cards({"0": {"hold": given, "reserve_mib": given}})
    parse_cards({"0": {"tenants": given}})
    parse_cards({"0": {"tenants": {"x": given}, "hold": {"name": given, "needs_mib": given}}})
    parse_cards({"0": {"tenants": {"x": {"peak_mib": given, "container": given, "command": given}}}})
