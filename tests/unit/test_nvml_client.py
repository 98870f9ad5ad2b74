"""What is made of a host's cards: the real pynvml against the stand-in for the driver's library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.cards import Card, CardProcess
from ansible.module_utils.voices.cards_spec import MIB
from ansible.module_utils.voices.nvml_client import read_cards
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.nvml import nvml_double

Read = Callable[..., tuple[tuple[Card, ...], str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The cards of a scenario: one by its name, or one given as data."""

    def read_scenario(given: str | dict[str, Any]) -> tuple[tuple[Card, ...], str]:
        data = nvml_double.scenario(given) if isinstance(given, str) else given
        with nvml_double.in_this_process(nvml_double.write(tmp_path / "scenario.json", data)):
            return read_cards()

    return read_scenario


def cards_of(read: Read, name: str) -> tuple[Card, ...]:
    cards, problem = read(name)
    assert problem == ""
    return cards


def used_mib(card: Card) -> dict[int, float | None]:
    return {one.pid: None if one.used_bytes is None else one.used_bytes / MIB for one in card.processes}


# The reference cards, to the byte.


def test_an_empty_h200_has_cudas_total_to_the_byte(read: Read) -> None:
    (card,) = cards_of(read, "h200_empty")
    assert (card.total_bytes, card.reserved_bytes, card.used_bytes) == (150_754_820_096, 644_939_776, 0)
    assert card.cuda_total_bytes == card.free_bytes == 150_109_880_320
    assert (card.index, card.name, card.processes, card.problem, card.notes) == (0, "NVIDIA H200", (), "", ())


def test_the_reference_card_before_and_after_the_seat(read: Read) -> None:
    (before,), (after,) = cards_of(read, "reference_before"), cards_of(read, "reference_with_seat")
    assert before.total_bytes == 97_887 * MIB
    assert before.cuda_total_bytes == 97_249 * MIB
    assert before.free_bytes == 11_897 * MIB
    assert after.used_bytes == 96_092 * MIB
    assert after.used_bytes - before.used_bytes == 10_740 * MIB
    assert used_mib(after) == {5_000_001: 10_740, 5_000_011: 47_100, 5_000_012: 36_900, 5_000_013: 1_352}


def test_the_four_cards_of_the_reference_host(read: Read) -> None:
    cards = cards_of(read, "reference_host")
    assert [card.free_bytes // MIB for card in cards] == [1_157, 5_700, 2_400, 97_249]


def test_cards_are_counted_as_nvml_does_and_not_by_speed(read: Read) -> None:
    first, second = cards_of(read, "other_order")
    assert (first.index, first.name, second.index, second.name) == (0, "NVIDIA T4", 1, "NVIDIA H200")
    assert first.uuid != second.uuid


# What NVML cannot say.


def test_no_card_is_no_problem(read: Read) -> None:
    assert read({"cards": []}) == ((), "")


def test_a_driver_that_is_not_loaded(read: Read) -> None:
    cards, problem = read("driver_not_loaded")
    assert cards == ()
    assert problem.startswith("NVML does not start: Driver Not Loaded (the NVIDIA kernel module is not loaded;")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("LIB_RM_VERSION_MISMATCH", "restart the host"),
        ("NO_PERMISSION", "Insufficient Permissions"),
        ("TIMEOUT", "Timeout"),
        (4711, "NVML does not start: "),
    ],
)
def test_every_other_reason_for_which_nvml_does_not_start_is_said(read: Read, error: str | int, said: str) -> None:
    cards, problem = read({"errors": {"nvmlInitWithFlags": error}})
    assert cards == ()
    assert said in problem


def test_cards_that_cannot_be_counted(read: Read) -> None:
    assert read({"errors": {"nvmlDeviceGetCount_v2": "UNKNOWN"}})[1] == "NVML cannot count the cards: Unknown Error"
    assert read({"count": 4_294_967_295})[1] == "NVML counts 4,294,967,295 cards, which cannot be"


def test_a_card_that_is_split_is_refused_whoever_asks_and_its_neighbour_is_not(read: Read) -> None:
    split, whole, hidden = cards_of(read, "mig")
    assert split.problem.startswith("card 0 is split by MIG, and a part of a card is not sized here")
    assert hidden.problem.startswith("card 2 is split by MIG")
    assert (split.total_bytes, split.uuid != "") == (0, True)
    assert (whole.problem, whole.free_bytes) == ("", 150_109_880_320)


def test_a_part_of_the_hosts_memory(read: Read) -> None:
    (card,) = cards_of(read, "unified_memory")
    assert card.problem == "card 0 has no memory of its own that NVML tells of (unified memory)"
    assert card.name == "NVIDIA GB10"


def test_without_permission_what_is_known_is_told(read: Read) -> None:
    silent, unlisted, closed = cards_of(read, "no_permission")
    assert (silent.used_bytes, used_mib(silent)) == (96_092 * MIB, {5_000_001: None, 5_000_011: None})
    assert (unlisted.used_bytes, unlisted.processes) == (40_000 * MIB, ())
    assert unlisted.notes == ("its processes cannot be listed: Insufficient Permissions",)
    assert closed.problem == "NVML may not tell this user of the memory of card 2: run it as root"


def test_a_card_that_fell_off_the_bus_is_named_and_the_others_are_read(read: Read) -> None:
    first, lost, third = cards_of(read, "lost_card")
    assert lost.problem.startswith("card 1 cannot be opened: GPU is lost (it fell off the bus;")
    assert (first.problem, third.problem, third.index) == ("", "", 2)


def test_a_card_that_falls_off_while_it_is_read(read: Read) -> None:
    (card,) = cards_of(read, "lost_while_read")
    assert card.problem.startswith("the memory of card 0 cannot be read: GPU is lost")


def test_an_old_driver_counts_its_reserve_as_used_and_it_is_subtracted_once(read: Read) -> None:
    (card,) = cards_of(read, "old_driver")
    assert (card.reserved_bytes, card.used_bytes) == (0, 10_000 * MIB + 644_939_776)
    assert card.free_bytes == 150_109_880_320 - 10_000 * MIB
    reserve, unlisted = card.notes
    assert "before R510" in reserve
    assert unlisted == "its processes cannot be listed: Function Not Found"


# Processes that come and go.


def test_a_process_that_goes_between_the_count_and_the_list_is_not_there(read: Read) -> None:
    gone, _come = cards_of(read, "vanishing")
    assert used_mib(gone) == {5_000_001: 1_000}


def test_processes_that_come_between_the_count_and_the_list_are_there(read: Read) -> None:
    _gone, come = cards_of(read, "vanishing")
    assert len(come.processes) == 9
    assert come.notes == ()


def test_a_list_that_never_stands_still_is_a_note(read: Read) -> None:
    (card,) = cards_of(read, "never_still")
    assert (card.processes, card.used_bytes) == ((), 9_000 * MIB)
    assert card.notes == ("its processes cannot be listed: Insufficient Size",)


def test_a_process_with_two_kinds_of_work_counts_once_with_the_larger_number(read: Read) -> None:
    processes = [
        {"pid": 5_000_001, "used_bytes": 300, "kind": "compute"},
        {"pid": 5_000_001, "used_bytes": 200, "kind": "graphics"},
        {"pid": 5_000_002, "used_bytes": None, "kind": "graphics"},
        {"pid": 5_000_002, "used_bytes": 70, "kind": "mps"},
        {"pid": 5_000_003, "used_bytes": 5, "kind": "mps"},
    ]
    (card,), _ = read({"cards": [{"uuid": "u", "total_bytes": 1000, "processes": processes}]})
    assert card.processes == (
        CardProcess(5_000_001, 300),
        CardProcess(5_000_002, 70),
        CardProcess(5_000_003, 5),
    )


# Numbers and names that cannot be.


@pytest.mark.parametrize(
    "numbers",
    [
        {"total_bytes": 0},
        {"total_bytes": 1000, "used_bytes": 1001},
        {"total_bytes": 1000, "used_bytes": 600, "reserved_bytes": 600, "free_bytes": 0},
        {"total_bytes": 2**63, "used_bytes": 0},
        {"total_bytes": 2**64 - 1, "used_bytes": 2**64 - 1},
        {"total_bytes": 1000, "used_bytes": 2**63},
    ],
)
def test_numbers_that_contradict_each_other_are_a_problem(read: Read, numbers: dict[str, int]) -> None:
    (card,), _ = read({"cards": [{"uuid": "u", "name": "n", **numbers}]})
    assert card.problem.startswith("NVML's numbers of card 0 contradict each other")
    assert (card.total_bytes, card.free_bytes) == (0, 0)


def test_of_numbers_that_agree_only_roughly_the_least_free_memory_counts(read: Read) -> None:
    numbers = {"total_bytes": 1000, "reserved_bytes": 100, "used_bytes": 500}
    (more,), _ = read({"cards": [{**numbers, "free_bytes": 450}]})
    (less,), _ = read({"cards": [{**numbers, "free_bytes": 350}]})
    assert (more.free_bytes, less.free_bytes) == (400, 350)


def test_names_are_printable_whatever_the_driver_says(read: Read) -> None:
    hostile = {"uuid": "\x1b[2J\x07", "name": "a\nb", "total_bytes": 9}
    (card, long, none), _ = read({"cards": [hostile, {**hostile, "name": "n" * 95}, {**hostile, "name": "\u00ff"}]})
    assert (card.uuid, card.name, card.problem) == ("?[2J?", "a?b", "")
    assert long.name == "n" * 95
    assert none.name == ""  # no UTF-8


NUMBERS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**31, 2**32, 2**50, 2**63, 2**64 - 1]))
STRINGS = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=40)
FUNCTIONS = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
HOSTILE_CARD = st.fixed_dictionaries(
    {},
    optional={
        "uuid": STRINGS,
        "name": STRINGS,
        "total_bytes": NUMBERS,
        "reserved_bytes": NUMBERS,
        "used_bytes": NUMBERS,
        "free_bytes": NUMBERS,
        "mig": st.booleans(),
        "errors": st.dictionaries(st.sampled_from(FUNCTIONS), st.integers(1, 40) | st.just(999), max_size=3),
        "seen": st.lists(st.integers(0, 12), max_size=6),
        "processes": st.lists(
            st.fixed_dictionaries(
                {"pid": st.integers(0, 2**32 - 1), "used_bytes": st.none() | NUMBERS},
                optional={"kind": st.sampled_from(["compute", "graphics", "mps"])},
            ),
            max_size=12,
        ),
    },
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cards=st.lists(HOSTILE_CARD, max_size=4))
def test_whatever_nvml_says_a_card_is_right_or_says_why_not(read: Read, cards: list[dict[str, Any]]) -> None:
    found, problem = read({"cards": cards})
    assert problem == ""
    assert [card.index for card in found] == list(range(len(cards)))
    for card in found:
        assert (card.uuid + card.name + card.problem).isprintable()
        if card.problem:
            assert (card.total_bytes, card.used_bytes, card.free_bytes, card.processes) == (0, 0, 0, ())
        else:
            assert 0 < card.total_bytes <= 2**50
            assert min(card.reserved_bytes, card.used_bytes, card.free_bytes) >= 0
            assert card.reserved_bytes + card.used_bytes + card.free_bytes <= card.total_bytes
