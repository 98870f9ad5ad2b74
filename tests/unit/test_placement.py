"""Placement: the reference host from its facts, the order of the seats, and what is proposed or missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from ansible.module_utils.voices.cards import Card, CardProcess
from ansible.module_utils.voices.cards_spec import MIB, CardDeclaration, Tenant
from ansible.module_utils.voices.placement import plan_host
from ansible.module_utils.voices.placement_rows import Host, HostPlan, Need, Seat, SeatRow
from ansible.module_utils.voices.plan import VoicesError
from hypothesis import given
from hypothesis import strategies as st

TOTAL_MIB, DRIVER_MIB = 97_887, 638
USABLE_MIB = TOTAL_MIB - DRIVER_MIB  # 97,249: what CUDA sees, 94.97 GiB
SEAT_MIB = 10_740
ASKED_MIB = 10_697


def a_card(index: int, *processes: CardProcess, free_mib: int | None = None, total_mib: int = TOTAL_MIB) -> Card:
    """A card whose memory is in use by ``processes``, or by what NVML lists no process for (``free_mib``)."""
    used = sum(process.used_bytes or 0 for process in processes)
    if free_mib is not None:
        used = (total_mib - DRIVER_MIB - free_mib) * MIB
    return Card(
        index=index,
        uuid=f"GPU-0c5d2ab1-1111-2222-3333-44445555{index:04d}",
        name="NVIDIA RTX PRO 6000 Blackwell",
        total_bytes=total_mib * MIB,
        reserved_bytes=DRIVER_MIB * MIB,
        used_bytes=used,
        free_bytes=(total_mib - DRIVER_MIB) * MIB - used,
        processes=processes,
        problem="",
    )


def process(pid: int, used_mib: int, seat: str = "") -> CardProcess:
    return CardProcess(pid=pid, used_bytes=used_mib * MIB, command=f"program {pid}", seat=seat)


def takes(resident_mib: int, request_mib: int = 0, context_mib: int = 0) -> Callable[[Card], Need]:
    return lambda card: Need(resident_mib * MIB, request_mib * MIB, context_mib * MIB)


def a_seat(name: str, mib: int = SEAT_MIB, gpu: str = "", device: str = "gpu", state: str = "present") -> Seat:
    return Seat(name, device, gpu, state, takes(mib))


REFERENCE_TENANTS = CardDeclaration(
    tenants=(Tenant("cyberprev", 47_100 * MIB), Tenant("gen-small", 36_900 * MIB), Tenant("parakeet", 1_352 * MIB))
)


def reference_host(*, seat_mib: int = SEAT_MIB) -> Host:
    """fv-ml1: the seat beside three tenants, two full cards, one held for flash-next (93 of 96 GiB)."""
    tenants = (process(11, 47_100), process(12, 36_900), process(13, 1_352))
    return Host(
        name="fv-ml1",
        cards=(
            a_card(0, *tenants, process(1, seat_mib, "qwen3-4b")),
            a_card(1, free_mib=5_700),
            a_card(2, free_mib=2_400),
            a_card(3),
        ),
        declarations={"0": REFERENCE_TENANTS, "3": CardDeclaration(hold_name="flash-next", hold_bytes=95_232 * MIB)},
    )


REFERENCE_SEAT = Seat("qwen3-4b", "gpu", "0", "present", takes(SEAT_MIB, ASKED_MIB, 470))


def row(plan: HostPlan, seat: str) -> SeatRow:
    (found,) = (one for one in plan.seats if one.seat == seat)
    return found


def left_mib(one: SeatRow) -> tuple[float, float]:
    assert one.headroom
    return one.headroom.left_now_bytes / MIB, one.headroom.left_at_peaks_bytes / MIB


# The reference host.


def test_the_reference_seat_fits_where_it_runs_because_its_own_memory_is_not_counted_against_it() -> None:
    one = row(plan_host(reference_host(), [REFERENCE_SEAT]), "qwen3-4b")
    assert (one.verdict, one.card, one.running) == ("fits", 0, True)
    assert left_mib(one)[1] == USABLE_MIB - 96_092 == 1_157


def test_no_further_seat_has_room_on_any_of_the_four_cards() -> None:
    plan = plan_host(reference_host(), [REFERENCE_SEAT, a_seat("second")])
    one = row(plan, "second")
    assert (one.verdict, one.card) == ("no_room", None)
    assert [(miss.index, miss.missing_bytes // MIB) for miss in one.misses] == [
        (1, 5_040),
        (2, 8_340),
        (0, SEAT_MIB - 1_157),
        (3, 0),
    ]
    assert one.misses[-1].why == "held for flash-next"
    assert one.message == (
        "Seat second has no room without a placement decision (card 1: 5,040 MiB missing; card 2: 8,340 MiB missing; "
        "card 0: 9,583 MiB missing; card 3: held for flash-next)."
    )


@pytest.mark.parametrize(
    ("free_mib", "verdict"), [(SEAT_MIB - 1, "no_room"), (SEAT_MIB, "proposed"), (SEAT_MIB + 1, "proposed")]
)
def test_room_on_card_1_is_proposed_from_the_first_mib_that_suffices(free_mib: int, verdict: str) -> None:
    host = reference_host()
    host = replace(host, cards=(host.cards[0], a_card(1, free_mib=free_mib), *host.cards[2:]))
    one = row(plan_host(host, [REFERENCE_SEAT, a_seat("second")]), "second")
    assert (one.verdict, one.card) == (verdict, 1 if verdict == "proposed" else None)


def test_without_the_hold_the_empty_card_is_proposed() -> None:
    host = replace(reference_host(), declarations={"0": REFERENCE_TENANTS})
    one = row(plan_host(host, [REFERENCE_SEAT, a_seat("second")]), "second")
    assert (one.verdict, one.card) == ("proposed", 3)
    assert left_mib(one) == (USABLE_MIB - SEAT_MIB, USABLE_MIB - SEAT_MIB)


def test_the_seat_that_a_card_is_held_for_gets_it() -> None:
    plan = plan_host(reference_host(), [REFERENCE_SEAT, a_seat("flash-next", 95_232)])
    assert (row(plan, "flash-next").verdict, row(plan, "flash-next").card) == ("proposed", 3)


def test_another_seat_declared_on_the_held_card_is_refused_by_name_of_the_hold() -> None:
    one = row(plan_host(reference_host(), [a_seat("second", gpu="3")]), "second")
    assert one.verdict == "refused"
    assert "flash-next" in one.message


def test_the_cards_rows_say_what_is_used_declared_and_left_at_peaks() -> None:
    plan = plan_host(reference_host(), [REFERENCE_SEAT])
    assert [
        (card.card.index, card.card.used_bytes // MIB, card.room_at_peaks_bytes // MIB)  # type: ignore[operator]
        for card in plan.cards
    ] == [(0, 96_092, 1_157), (1, 91_549, 5_700), (2, 94_849, 2_400), (3, 0, 97_249)]


def test_the_seat_that_is_not_up_yet_is_judged_against_the_tenants_peaks() -> None:
    quiet = replace(reference_host(), cards=(a_card(0, process(12, 36_900)),))
    assert row(plan_host(quiet, [REFERENCE_SEAT]), "qwen3-4b").verdict == "fits"
    larger = replace(REFERENCE_TENANTS.tenants[0], peak_bytes=(47_100 + 1_158) * MIB)
    peaks = CardDeclaration(tenants=(larger, *REFERENCE_TENANTS.tenants[1:]))
    one = row(plan_host(replace(quiet, declarations={"0": peaks}), [REFERENCE_SEAT]), "qwen3-4b")
    assert one.verdict == "refused"
    assert one.headroom
    assert one.headroom.fits_now
    assert left_mib(one)[1] == -1


def test_the_room_of_a_card_counts_the_running_seat_beside_the_tenants_peaks() -> None:
    quiet = replace(reference_host(), cards=(a_card(0, process(12, 30_000), process(1, 5_000, "qwen3-4b")),))
    (card,) = plan_host(quiet, [REFERENCE_SEAT]).cards
    assert card.room_at_peaks_bytes == 1_157 * MIB
    (card,) = plan_host(quiet, []).cards
    assert card.room_at_peaks_bytes == (1_157 + SEAT_MIB) * MIB


# The order in which seats take room.


def cards_of(*free_mib: int) -> Host:
    return Host("h", cards=tuple(a_card(index, free_mib=free) for index, free in enumerate(free_mib)))


def test_best_fit_is_the_card_where_the_least_is_left_and_ties_go_by_index() -> None:
    plan = plan_host(cards_of(9_000, 5_000, 5_000, 4_000), [a_seat("a", 4_500)])
    assert row(plan, "a").card == 1
    assert [miss.index for miss in row(plan, "a").misses] == [3]


def test_the_reserve_of_a_card_is_kept() -> None:
    host = replace(cards_of(5_000, 9_000), declarations={"0": CardDeclaration(reserve_bytes=501 * MIB)})
    assert row(plan_host(host, [a_seat("a", 4_500)]), "a").card == 1
    host = replace(host, declarations={"0": CardDeclaration(reserve_bytes=500 * MIB)})
    assert row(plan_host(host, [a_seat("a", 4_500)]), "a").card == 0


def test_several_seats_are_placed_the_largest_first_and_take_their_room() -> None:
    # By name, a and b would fill card 1 and leave no card for c.
    plan = plan_host(cards_of(6_000, 8_000), [a_seat("a", 3_000), a_seat("b", 3_000), a_seat("c", 8_000)])
    assert [(one.seat, one.card) for one in plan.seats] == [("a", 0), ("b", 0), ("c", 1)]
    plan = plan_host(cards_of(6_000, 8_000), [a_seat(name, 3_000) for name in "abcde"])
    assert [(one.seat, one.card) for one in plan.seats] == [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", None)]


def test_a_running_seat_counts_with_what_it_will_ask_for_again() -> None:
    host = Host("h", cards=(a_card(0, process(1, 2_000, "z")),))
    runs = a_seat("z", 8_000, gpu="0")
    plan = plan_host(host, [runs, a_seat("a", USABLE_MIB - 7_999, gpu="0")])
    assert (row(plan, "z").verdict, row(plan, "a").verdict) == ("fits", "refused")
    assert left_mib(row(plan, "a"))[1] == -1
    assert row(plan_host(host, [runs, a_seat("a", USABLE_MIB - 8_000, gpu="0")]), "a").verdict == "fits"


def test_declared_seats_take_room_by_name_and_a_refused_one_takes_none_from_them() -> None:
    plan = plan_host(cards_of(10_000), [a_seat("a", 6_000, "0"), a_seat("b", 6_000, "0"), a_seat("c", 4_000, "0")])
    assert [(one.seat, one.verdict) for one in plan.seats] == [("a", "fits"), ("b", "refused"), ("c", "fits")]


def test_nothing_is_proposed_in_the_place_of_a_refused_seat() -> None:
    refused = a_seat("a", 12_000, gpu="0")
    plan = plan_host(cards_of(10_000), [refused, a_seat("b", 1_000)])
    assert (row(plan, "a").verdict, row(plan, "b").verdict) == ("refused", "no_room")


def test_two_seats_declared_on_one_card_by_index_and_by_uuid_share_it() -> None:
    host = cards_of(10_000)
    uuid = host.cards[0].uuid
    plan = plan_host(host, [a_seat("a", 6_000, "0"), a_seat("b", 6_000, uuid)])
    assert [(one.verdict, one.card) for one in plan.seats] == [("fits", 0), ("refused", 0)]


def test_a_seat_moved_to_another_card_is_judged_there_without_its_present_memory() -> None:
    host = Host("h", cards=(a_card(0, process(1, 9_000, "a")), a_card(1, free_mib=8_000)))
    one = row(plan_host(host, [a_seat("a", 9_000, "1")]), "a")
    assert (one.verdict, one.running, left_mib(one)[0]) == ("refused", False, -1_000)


def test_a_running_seat_whose_card_left_the_inventory_is_proposed_where_it_runs() -> None:
    host = Host("h", cards=(a_card(0, free_mib=4_600), a_card(1, process(1, 4_000, "b"))))
    plan = plan_host(host, [a_seat("b", 4_500), a_seat("a", USABLE_MIB - 4_499, gpu="1"), a_seat("c", 4_550)])
    assert [(one.seat, one.verdict, one.card) for one in plan.seats] == [
        ("a", "refused", 1),
        ("b", "proposed", 1),
        ("c", "proposed", 0),
    ]
    assert row(plan, "b").running
    assert plan.cards[1].room_at_peaks_bytes == (USABLE_MIB - 4_500) * MIB


def test_stopped_and_absent_seats_take_nothing() -> None:
    plan = plan_host(
        cards_of(5_000), [a_seat("a", 5_000, "0", state="stopped"), a_seat("b", 5_000), a_seat("c", state="absent")]
    )
    assert [(one.seat, one.verdict, one.state) for one in plan.seats] == [
        ("a", "idle", "stopped"),
        ("b", "proposed", "present"),
        ("c", "idle", "absent"),
    ]


# What cannot be said is a row that says why.


def unsizable(card: Card) -> Need:
    raise VoicesError("cannot size this: it has experts")


def test_a_seat_that_cannot_be_sized_is_unknown_and_nothing_is_proposed_beside_it() -> None:
    strange = replace(a_seat("a", gpu="0"), need=unsizable)
    plan = plan_host(cards_of(9_000, 20_000), [strange, a_seat("b", 4_000), replace(a_seat("c"), need=unsizable)])
    assert (row(plan, "a").verdict, row(plan, "a").message) == ("unknown", "cannot size this: it has experts")
    assert (row(plan, "b").verdict, row(plan, "b").card) == ("proposed", 1)
    assert row(plan, "b").misses[0].why == "seat a belongs there and cannot be sized"
    assert (row(plan, "c").verdict, row(plan, "c").message) == ("unknown", "cannot size this: it has experts")


def test_a_running_seat_that_cannot_be_sized_counts_with_what_it_has() -> None:
    host = Host("h", cards=(a_card(0, process(1, USABLE_MIB - 5_000, "a")),))
    plan = plan_host(host, [replace(a_seat("a", gpu="0"), need=unsizable), a_seat("b", 4_000)])
    assert (row(plan, "a").verdict, row(plan, "a").running) == ("unknown", True)
    assert (row(plan, "b").verdict, left_mib(row(plan, "b"))) == ("proposed", (1_000, 1_000))


def test_a_card_that_cannot_be_read_is_a_row_and_nothing_goes_there() -> None:
    host = cards_of(50_000, 6_000)
    host = replace(host, cards=(replace(host.cards[0], problem="it is in MIG mode"), host.cards[1]))
    plan = plan_host(host, [a_seat("a", gpu="0"), a_seat("b", 4_000)])
    assert plan.cards[0].room_at_peaks_bytes is None
    assert (row(plan, "a").verdict, row(plan, "a").message) == ("unknown", "it is in MIG mode")
    assert (row(plan, "b").card, row(plan, "b").misses[0].why) == (1, "it is in MIG mode")


def test_a_host_without_readable_cards_says_why_for_each_gpu_seat() -> None:
    host = Host("h", problem="no NVIDIA driver", memory=memory(8_000))
    plan = plan_host(host, [a_seat("a", gpu="0"), a_seat("b"), a_seat("c", 4_000, device="cpu")])
    assert [(one.verdict, one.message) for one in plan.seats[:2]] == [("unknown", "no NVIDIA driver")] * 2
    assert row(plan, "c").verdict == "fits"


def test_a_card_that_the_host_does_not_have() -> None:
    one = row(plan_host(cards_of(9_000, 9_000), [a_seat("a", gpu="7")]), "a")
    assert (one.verdict, one.message) == (
        "refused",
        "Seat a names gpu 7, which is no card of this host; its cards are 0, 1.",
    )


def test_a_host_that_has_no_card_at_all() -> None:
    one = row(plan_host(Host("h", memory=memory(8_000)), [a_seat("a")]), "a")
    assert (one.verdict, one.message) == (
        "no_room",
        "Seat a has device: gpu, and this host has no cards; set device: cpu, or move it.",
    )


# Host memory, for seats without a card.


def memory(free_mib: int) -> Card:
    card = a_card(0, free_mib=free_mib)
    return replace(card, index=-1, uuid="memory", name="host memory")


def test_cpu_seats_share_host_memory_by_the_same_rule() -> None:
    host = Host("h", memory=memory(8_000))
    plan = plan_host(host, [a_seat("a", 5_000, device="cpu"), a_seat("b", 5_000, device="cpu")])
    assert [(one.verdict, one.card) for one in plan.seats] == [("fits", None), ("refused", None)]
    assert left_mib(row(plan, "b"))[0] == -2_000
    assert plan.memory
    assert plan.memory.room_at_peaks_bytes == 8_000 * MIB


def test_a_cpu_seat_takes_nothing_from_a_card() -> None:
    host = replace(cards_of(9_000), memory=memory(20_000))
    plan = plan_host(host, [a_seat("a", 9_000, device="cpu"), a_seat("b", 9_000)])
    assert [(one.verdict, one.card) for one in plan.seats] == [("fits", None), ("proposed", 0)]


# Whatever the host: what fits is what the rule allows, and all that is placed has room together.

SIZES = st.integers(min_value=0, max_value=12_000)


@st.composite
def hosts(draw: st.DrawFn) -> tuple[Host, list[Seat]]:
    count = draw(st.integers(min_value=0, max_value=4))
    cards = tuple(
        a_card(
            index,
            *(
                process(n, draw(SIZES), draw(st.sampled_from(["", "", "s0", "s1"])))
                for n in range(draw(st.integers(0, 3)))
            ),
            total_mib=40_638,
        )
        for index in range(count)
    )
    declarations = {
        str(index): CardDeclaration(
            reserve_bytes=draw(SIZES) // 8 * MIB,
            hold_name=draw(st.sampled_from(["", "", "held", "s0"])),
            tenants=tuple(Tenant(f"t{n}", (draw(SIZES) + 1) * MIB) for n in range(draw(st.integers(0, 2)))),
        )
        for index in range(count)
        if draw(st.booleans())
    }
    seats = [
        Seat(
            f"s{n}",
            "gpu",
            draw(st.sampled_from(["", "", "0", "1", "9"])),
            draw(st.sampled_from(["present", "present", "stopped"])),
            takes(draw(SIZES) + 1, draw(SIZES), draw(st.integers(0, 600))),
        )
        for n in range(draw(st.integers(0, 4)))
    ]
    return Host("h", cards, declarations), seats


@given(hosts())
def test_what_is_placed_has_room_together(case: tuple[Host, list[Seat]]) -> None:
    host, seats = case
    plan = plan_host(host, seats)
    assert [one.seat for one in plan.seats] == sorted(seat.name for seat in seats)
    placed = [one for one in plan.seats if one.verdict in ("fits", "proposed")]
    for card in host.cards:
        here = [one for one in placed if one.card == card.index]
        declared = host.declarations.get(str(card.index), CardDeclaration())
        own = {one.seat for one in here if one.running}
        others = sum(process.used_bytes or 0 for process in card.processes if process.seat not in own)
        peaks = sum(tenant.peak_bytes for tenant in declared.tenants)
        taken = sum(one.need.committed_bytes for one in here if one.need)
        if here:
            assert max(others, peaks) + taken + declared.reserve_bytes <= card.cuda_total_bytes
        if declared.hold_name:
            assert {one.seat for one in here} <= {declared.hold_name}


@given(hosts())
def test_a_seat_without_room_misses_every_card(case: tuple[Host, list[Seat]]) -> None:
    host, seats = case
    for one in plan_host(host, seats).seats:
        if one.verdict == "no_room":
            assert {miss.index for miss in one.misses} == {card.index for card in host.cards}
            held = [miss for miss in one.misses if "held" in miss.why]
            assert all(miss.missing_bytes > 0 for miss in one.misses if miss not in held)


@given(hosts(), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_its_input(case: tuple[Host, list[Seat]], shuffle: object) -> None:
    host, seats = case
    mixed, cards = list(seats), list(host.cards)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    shuffle.shuffle(cards)  # type: ignore[attr-defined]
    assert plan_host(replace(host, cards=tuple(cards)), mixed) == plan_host(host, seats)
