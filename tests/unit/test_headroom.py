"""Whether a seat fits: the reference card from its facts, the engine's own words, and hundreds of random cards."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from ansible.module_utils.voices.cards import Card, CardProcess
from ansible.module_utils.voices.cards_spec import MIB, NOTHING_DECLARED, CardDeclaration, Tenant
from ansible.module_utils.voices.headroom import Headroom, judge
from ansible.module_utils.voices.headroom_text import engine_refusal, missing_mib
from hypothesis import given, settings
from hypothesis import strategies as st

TOTAL_MIB, DRIVER_MIB, CONTEXT_MIB = 97_887, 638, 469
CUDA_MIB = TOTAL_MIB - DRIVER_MIB


def a_card(*processes: CardProcess, used_mib: float | None = None, index: int = 0) -> Card:
    """A reference card; ``used_mib`` where more is used than the processes hold."""
    used = sum(one.used_bytes or 0 for one in processes) if used_mib is None else round(used_mib * MIB)
    total, reserved = TOTAL_MIB * MIB, DRIVER_MIB * MIB
    return Card(index, f"GPU-{index}", "RTX PRO 6000", total, reserved, used, total - reserved - used, processes)


def holds(pid: int, mib: int | None, command: str = "", container: str = "", own: bool = False) -> CardProcess:
    return CardProcess(pid, None if mib is None else mib * MIB, command, container, own)


def ask(card: Card, mib: float, declared: CardDeclaration = NOTHING_DECLARED, **more: object) -> Headroom:
    """A seat that asks for and takes ``mib``."""
    sizes = {"request_bytes": round(mib * MIB), "resident_bytes": round(mib * MIB), "context_bytes": CONTEXT_MIB * MIB}
    return judge(card, **{**sizes, "declared": declared, "seat": "qwen3-4b", **more})  # type: ignore[arg-type]


# The reference deployment's refused bring-up: 0.12 asked, 11.16 of 94.97 GiB free, from the card's state before.


def request_mib(utilization: float) -> float:
    return math.ceil(CUDA_MIB * MIB * utilization) / MIB


REFUSAL = (
    "Free memory on device cuda:0 (11.16/94.97 GiB) on startup is less than desired GPU memory utilization "
    "(0.12, 11.4 GiB)"
)


def test_the_refused_bring_up_from_the_cards_state_before_the_context() -> None:
    verdict = ask(a_card(used_mib=CUDA_MIB - 11_897), request_mib(0.12))
    assert not verdict.fits_now
    assert verdict.free_for_engine_bytes == 11_428 * MIB
    assert (
        "asks for 11,670 MiB and would find 11,428 free of 97,249 (11,897 free, less 469 for its CUDA context): "
        f"242 MiB are missing. It would say: {REFUSAL}." in verdict.message
    )


def test_the_refused_bring_up_from_what_the_engine_itself_found() -> None:
    total = CUDA_MIB * MIB
    assert engine_refusal(11_428 * MIB, total, math.ceil(total * 0.12)) == REFUSAL
    assert engine_refusal(11_428 * MIB, total, 11_428 * MIB) == ""
    assert engine_refusal(11_428 * MIB, total, 11_428 * MIB + 1) != ""


def test_the_refused_bring_up_seen_while_the_engine_holds_its_context_already() -> None:
    card = a_card(holds(1, 85_352, "tenants"), holds(9, 469, own=True))
    verdict = ask(card, request_mib(0.12))
    assert card.free_bytes == 11_428 * MIB
    assert (verdict.free_for_engine_bytes, verdict.own_bytes) == (11_428 * MIB, 469 * MIB)
    assert REFUSAL in verdict.message


@pytest.mark.parametrize(
    ("utilization", "free_mib", "fits"),
    [(0.12, 11_897, False), (0.11, 11_897, True), (0.12, 12_138, False), (0.12, 12_139, True), (0.1175, 11_897, True)],
)
def test_the_refusal_moves_with_what_is_asked_and_what_is_free(utilization: float, free_mib: int, fits: bool) -> None:
    assert ask(a_card(used_mib=CUDA_MIB - free_mib), request_mib(utilization)).fits is fits


def test_the_context_is_what_makes_the_difference() -> None:
    card = a_card(used_mib=CUDA_MIB - 11_897)
    assert ask(card, 11_670).fits_now is False
    assert ask(card, 11_670, context_bytes=0).fits_now is True


# The seat's own memory, tenants and their peaks.


def test_what_the_seat_holds_is_not_counted_against_its_replacement() -> None:
    tenants = (holds(1, 47_100), holds(2, 36_900), holds(3, 1_352))
    declared = CardDeclaration(tenants=(Tenant("cyberprev", 47_100 * MIB), Tenant("gen-small", 36_900 * MIB)))
    own = holds(9, 10_740, own=True)
    there, strange = a_card(*tenants, own), a_card(*tenants, replace(own, own=False))
    assert ask(there, 10_740, declared).fits
    assert ask(there, 10_740, declared).left_at_peaks_bytes == 1_157 * MIB
    assert not ask(strange, 10_740, declared).fits


def test_a_tenant_at_its_peak_counts_though_it_holds_less_now() -> None:
    card = a_card(holds(1, 20_000, "gen --port 1"))
    declared = CardDeclaration(tenants=(Tenant("gen", 90_000 * MIB, command="gen"),))
    verdict = ask(card, 10_000, declared)
    assert (verdict.fits_now, verdict.fits_at_peaks) == (True, False)
    assert verdict.committed_bytes == 90_000 * MIB
    assert "2,751 MiB are missing" in verdict.message


def test_a_tenant_that_does_not_run_counts_beside_what_is_there() -> None:
    card = a_card(holds(1, 40_000, "somebody"))
    declared = CardDeclaration(tenants=(Tenant("gen", 50_000 * MIB, container="gen"),))
    assert ask(card, 1_000, declared).committed_bytes == 90_000 * MIB


def test_a_tenant_without_a_rule_may_be_what_is_there() -> None:
    card = a_card(holds(1, 40_000, "somebody"))
    assert ask(card, 1_000, CardDeclaration(tenants=(Tenant("gen", 50_000 * MIB),))).committed_bytes == 50_000 * MIB
    assert ask(card, 1_000, CardDeclaration(tenants=(Tenant("gen", 30_000 * MIB),))).committed_bytes == 40_000 * MIB


def test_what_cannot_be_read_may_be_the_tenant_whose_rule_finds_nothing() -> None:
    card = a_card(holds(1, None), used_mib=40_000)
    declared = CardDeclaration(tenants=(Tenant("gen", 50_000 * MIB, container="gen"),))
    assert ask(card, 1_000, declared).committed_bytes == 50_000 * MIB


def test_two_processes_of_a_tenant_are_one_tenant() -> None:
    card = a_card(holds(1, 10_000, container="gen"), holds(2, 15_000, container="gen"))
    declared = CardDeclaration(tenants=(Tenant("gen", 20_000 * MIB, container="gen"),))
    verdict = ask(card, 1_000, declared)
    assert verdict.committed_bytes == 25_000 * MIB
    assert verdict.warnings == (
        "tenant gen holds 25,000 MiB of card 0, more than its declared peak of 20,000 MiB; declare the larger one",
    )


def test_a_container_and_a_command_both_have_to_agree() -> None:
    card = a_card(holds(1, 10_000, "serve --port 1", "gen"), holds(2, 10_000, "serve --port 2", "gen"))
    declared = CardDeclaration(tenants=(Tenant("one", 30_000 * MIB, "gen", "--port 1"),))
    assert ask(card, 1_000, declared).committed_bytes == 40_000 * MIB


def test_own_memory_that_nvml_does_not_tell_is_not_given_back() -> None:
    verdict = ask(a_card(holds(1, None, own=True), used_mib=90_000), 10_000)
    assert (verdict.own_bytes, verdict.fits) == (0, False)
    half = ask(a_card(holds(1, None, own=True), holds(2, 9_000, own=True), used_mib=90_000), 10_000)
    assert (half.own_bytes, half.fits) == (0, False)


def test_what_cannot_be_read_may_be_a_tenant_without_a_rule_too() -> None:
    declared = CardDeclaration(tenants=(Tenant("a", 30_000 * MIB), Tenant("b", 20_000 * MIB, command="b")))
    assert ask(a_card(holds(1, 60_000)), 1_000, declared).committed_bytes == 60_000 * MIB
    assert ask(a_card(holds(1, 35_000)), 1_000, declared).committed_bytes == 50_000 * MIB
    assert ask(a_card(holds(1, 60_000, "stranger")), 1_000, declared).committed_bytes == 80_000 * MIB


# Reserve, hold, the largest batch, the other cards.


def test_a_reserve_stays_free() -> None:
    card = a_card(used_mib=CUDA_MIB - 20_000)
    assert ask(card, 15_000, CardDeclaration(reserve_bytes=5_000 * MIB)).fits
    assert not ask(card, 15_000, CardDeclaration(reserve_bytes=5_001 * MIB)).fits
    assert not ask(card, 15_000, CardDeclaration(reserve_bytes=5_001 * MIB)).fits_now


def test_a_reserve_stays_free_at_the_tenants_peaks_too() -> None:
    card = a_card(holds(1, 20_000, "gen"))
    tenants = (Tenant("gen", 80_000 * MIB, command="gen"),)
    room = CUDA_MIB - 80_000
    assert ask(card, room - 500, CardDeclaration(reserve_bytes=500 * MIB, tenants=tenants)).fits
    tight = ask(card, room - 500, CardDeclaration(reserve_bytes=501 * MIB, tenants=tenants))
    assert (tight.fits_now, tight.fits_at_peaks, tight.left_at_peaks_bytes) == (True, False, -MIB)


def test_a_held_card_is_refused_by_the_name_of_its_hold_and_taken_by_the_seat_it_is_held_for() -> None:
    declared = CardDeclaration(hold_name="flash-next", hold_bytes=95_232 * MIB)
    verdict = ask(a_card(), 10_000, declared)
    assert (verdict.fits, verdict.held_for, verdict.missing_bytes) == (False, "flash-next", 0)
    assert "held for flash-next" in verdict.message
    assert ask(a_card(), 10_000, declared, seat="flash-next").fits


def test_the_largest_batch_counts_at_peaks_and_not_at_the_start() -> None:
    card = a_card(used_mib=CUDA_MIB - 11_600)
    verdict = ask(card, 11_126, loaded_bytes=12_490 * MIB)
    assert (verdict.fits_now, verdict.fits_at_peaks, verdict.left_at_peaks_bytes) == (True, False, -890 * MIB)


def test_the_other_cards_are_named_with_what_they_have() -> None:
    held = CardDeclaration(hold_name="flash-next")
    others = [
        (a_card(used_mib=CUDA_MIB - 5_700, index=1), NOTHING_DECLARED),
        (a_card(used_mib=CUDA_MIB - 2_400, index=2), NOTHING_DECLARED),
        (a_card(index=3), held),
        (replace(a_card(index=4), problem="fell off the bus"), NOTHING_DECLARED),
        (a_card(index=5), NOTHING_DECLARED),
    ]
    message = ask(a_card(used_mib=96_092), 10_740, others=others).message
    assert message.endswith(
        "The host's other cards: card 1 has 5,700 MiB free, 5,509 MiB too few; card 2 has 2,400 MiB free, 8,809 MiB "
        "too few; card 3 is held for flash-next; card 5 has room, 86,040 MiB to spare."
    )


# What NVML may say that cannot be, and how it is said.


def test_no_more_is_given_back_than_the_card_has_in_use() -> None:
    card = a_card(holds(9, 2**43, own=True), used_mib=90_000)
    verdict = ask(card, 97_249 - 469)
    assert (verdict.own_bytes, verdict.free_for_engine_bytes) == (90_000 * MIB, (97_249 - 469) * MIB)
    assert verdict.fits
    assert not ask(card, 97_249 - 468).fits


def test_what_is_missing_is_never_said_to_be_nothing() -> None:
    assert [missing_mib(left) for left in (0, -1, -MIB, -MIB - 1, 5)] == ["0", "1", "1", "2", "0"]
    assert ": 1 MiB are missing" in ask(a_card(used_mib=CUDA_MIB - 1_000), 531 + 2**-20).message


def test_an_engine_that_would_find_less_than_nothing_is_said_to_find_nothing() -> None:
    verdict = ask(a_card(used_mib=CUDA_MIB - 100), 1_000)
    assert "would find 0 free of 97,249 (100 free, less 469 for its CUDA context): 1,369 MiB are" in verdict.message


def test_without_tenants_the_message_speaks_of_none() -> None:
    message = ask(a_card(used_mib=CUDA_MIB - 11_600), 11_126, loaded_bytes=12_490 * MIB).message
    assert "when it has had its largest batch: others hold 85,649 MiB, the seat up to 12,490, of 97,249" in message
    assert "tenants" not in message


def test_host_memory_is_called_that() -> None:
    memory = Card(-1, "", "host memory", 8_000 * MIB, 0, 5_000 * MIB, 3_000 * MIB)
    verdict = ask(memory, 3_001, request_bytes=0, context_bytes=0)
    assert verdict.message.startswith(
        "Seat qwen3-4b does not fit on host memory now: it takes 3,001 MiB, and 3,000 MiB"
    )
    assert ask(memory, 3_000, request_bytes=0, context_bytes=0).fits


# What cannot be read, and tenants of whom nothing says which process they are.


REFERENCE = CardDeclaration(
    tenants=(Tenant("cyberprev", 47_100 * MIB), Tenant("gen-small", 36_900 * MIB), Tenant("parakeet", 1_352 * MIB))
)


@pytest.mark.parametrize("command", ["", "program"])
def test_tenants_without_a_rule_are_what_is_there_whether_or_not_it_can_be_read(command: str) -> None:
    tenants = [holds(pid, mib, command) for pid, mib in ((1, 47_100), (2, 36_900), (3, 1_352))]
    assert ask(a_card(*tenants), 10_740, REFERENCE).left_at_peaks_bytes == 1_157 * MIB


def test_tenants_are_found_in_memory_of_which_no_process_is_listed() -> None:
    assert ask(a_card(used_mib=85_352), 10_740, REFERENCE).left_at_peaks_bytes == 1_157 * MIB


def test_nobody_hides_in_what_is_left_over_when_every_process_says_what_it_is() -> None:
    gen = CardDeclaration(tenants=(Tenant("gen", 5_000 * MIB, container="gen"),))
    known = a_card(holds(1, 40_000, "somebody"), used_mib=40_009)
    assert ask(known, 1_000, gen).committed_bytes == 45_009 * MIB
    unknown = a_card(holds(1, 40_000, "somebody"), holds(2, 9), used_mib=40_009)
    assert ask(unknown, 1_000, gen).committed_bytes == 45_000 * MIB


# Never a squeeze, never a refusal of what has room: a rule of its own, written from the words of the decision.


@dataclass(frozen=True)
class Scene:
    """A card with what is asked of it, and, known only to the test, whose each part of its memory is (MiB)."""

    card: Card
    declared: CardDeclaration
    request: int
    resident: int
    loaded: int
    context: int
    own: int
    found: dict[str, int]  # by tenant: what its processes hold
    strangers: int
    unread: int


SIZES = st.integers(0, 30_000)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Tenants found by their container or command or not at all, the seat itself, strangers, and the unreadable."""
    running: list[CardProcess] = []
    found: dict[str, int] = {}
    tenants = []
    for number, name in enumerate("abcd"):
        rule = draw(st.sampled_from(["container", "command", ""]))
        tenants.append(
            Tenant(
                name,
                draw(SIZES) * MIB,
                container=name if rule == "container" else "",
                command=f"--{name}" if rule == "command" else "",
            )
        )
        for part in range(draw(st.integers(0, 2)) if rule else 0):
            size = draw(SIZES)
            command, container = (f"serve --{name}", "") if rule == "command" else ("serve", name)
            running.append(holds(10 * number + part + 1, size, command, container))
            found[name] = found.get(name, 0) + size
    own = [draw(SIZES) for _ in range(draw(st.integers(0, 2)))]
    strangers = [draw(SIZES) for _ in range(draw(st.integers(0, 2)))]
    nameless = [draw(SIZES) for _ in range(draw(st.integers(0, 2)))]
    running += [holds(100 + n, size, "VLLM::EngineCore", own=True) for n, size in enumerate(own)]
    running += [holds(200 + n, size, "stranger") for n, size in enumerate(strangers)]
    running += [holds(300 + n, draw(st.sampled_from([size, None]))) for n, size in enumerate(nameless)]
    used = sum(own) + sum(strangers) + sum(nameless) + sum(found.values())
    declared = CardDeclaration(
        reserve_bytes=draw(st.integers(0, 2_000)) * MIB,
        hold_name=draw(st.sampled_from(["", "", "", "qwen3-4b", "flash-next"])),
        tenants=tuple(draw(st.permutations(tenants)))[: draw(st.integers(0, 4))],
    )
    ruled = {tenant.name for tenant in declared.tenants}
    # A process of a tenant that is not declared is a stranger's.
    undeclared = sum(size for name, size in found.items() if name not in ruled)
    resident = draw(st.integers(1, 60_000))
    return Scene(
        a_card(*running, used_mib=used),
        declared,
        request=draw(st.integers(1, 60_000)),
        resident=resident,
        loaded=resident + draw(st.integers(0, 3_000)),
        context=draw(st.integers(0, 600)),
        own=sum(own),
        found={name: size for name, size in found.items() if name in ruled},
        strangers=sum(strangers) + undeclared,
        unread=sum(nameless),
    )


def oracle_committed(scene: Scene) -> int:
    """The least that the others may commit (MiB), by trying every way in which absent tenants may be what is there."""
    absent = [tenant for tenant in scene.declared.tenants if tenant.name not in scene.found]
    peaks = {tenant.name: tenant.peak_bytes // MIB for tenant in scene.declared.tenants}
    ruled = sum(peaks[tenant.name] for tenant in absent if tenant.container or tenant.command)
    ruleless = sum(peaks[tenant.name] for tenant in absent if not (tenant.container or tenant.command))
    seen = any(not one.own for one in scene.card.processes)
    readable = seen and all(one.readable for one in scene.card.processes if not one.own)
    least = None
    step = max(1, scene.unread // 50)
    for hidden in {*range(0, scene.unread + 1, step), scene.unread, min(ruled, scene.unread)}:
        # ``hidden`` of the unread memory is of tenants with a rule, if any process could be theirs.
        theirs = 0 if readable else min(hidden, ruled)
        rest = scene.unread - theirs + scene.strangers
        committed = theirs + (ruled - theirs) + max(rest, ruleless)
        least = committed if least is None else min(least, committed)
    assert least is not None
    return least + sum(max(size, peaks[name]) for name, size in scene.found.items())


def oracle(scene: Scene) -> bool:
    """Whether it fits, from the words of the rule and from what the test knows of the card."""
    total, reserve = CUDA_MIB, scene.declared.reserve_bytes // MIB
    others = sum(scene.found.values()) + scene.strangers + scene.unread
    free = total - others
    starts = scene.request <= free - scene.context
    stays = scene.resident + reserve <= free
    room = oracle_committed(scene) + max(scene.request, scene.resident, scene.loaded) + reserve <= total
    return starts and stays and room and scene.declared.hold_name in ("", "qwen3-4b")


def verdict_on(scene: Scene) -> Headroom:
    return judge(
        scene.card,
        request_bytes=scene.request * MIB,
        resident_bytes=scene.resident * MIB,
        context_bytes=scene.context * MIB,
        declared=scene.declared,
        seat="qwen3-4b",
        loaded_bytes=scene.loaded * MIB,
    )


@settings(max_examples=500)
@given(scenes())
def test_it_fits_exactly_when_there_is_room_now_and_at_peaks(scene: Scene) -> None:
    verdict = verdict_on(scene)
    assert verdict.committed_bytes == oracle_committed(scene) * MIB
    assert verdict.fits is oracle(scene), verdict


@settings(max_examples=300)
@given(scenes())
def test_it_never_says_fits_where_the_engine_would_refuse_or_the_peaks_are_above_the_total(scene: Scene) -> None:
    """The two promises by themselves, from the card's own numbers."""
    verdict = verdict_on(scene)
    card = scene.card
    if verdict.fits:
        assert scene.request * MIB <= card.free_bytes + scene.own * MIB - scene.context * MIB
        known_peaks = sum(
            max(tenant.peak_bytes, scene.found.get(tenant.name, 0) * MIB) for tenant in scene.declared.tenants
        )
        assert known_peaks + scene.request * MIB <= card.cuda_total_bytes
        assert card.used_bytes - scene.own * MIB + scene.loaded * MIB <= card.cuda_total_bytes
    else:
        assert verdict.held_for or verdict.missing_bytes > 0


@settings(max_examples=200)
@given(scenes(), st.integers(1, 20_000))
def test_one_more_mib_in_use_or_declared_never_turns_a_refusal_into_a_yes(scene: Scene, more: int) -> None:
    before = verdict_on(scene)
    fuller = replace(scene.card, used_bytes=scene.card.used_bytes + more, free_bytes=scene.card.free_bytes - more)
    larger = replace(
        scene.declared,
        tenants=tuple(replace(tenant, peak_bytes=tenant.peak_bytes + more) for tenant in scene.declared.tenants),
    )
    for changed in (
        replace(scene, card=fuller),
        replace(scene, declared=larger),
        replace(scene, request=scene.request + 1),
    ):
        after = verdict_on(changed)
        assert after.left_now_bytes <= before.left_now_bytes
        assert after.left_at_peaks_bytes <= before.left_at_peaks_bytes


def test_both_verdicts_occur_in_the_random_cards() -> None:
    """A property that only ever sees refusals would prove nothing."""
    seen = set()

    @settings(max_examples=200, database=None, derandomize=True)
    @given(scenes())
    def look(scene: Scene) -> None:
        seen.add(oracle(scene))

    look()
    assert seen == {True, False}
