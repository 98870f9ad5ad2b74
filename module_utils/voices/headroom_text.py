"""The verdict of ``headroom`` in words. Pure; sizes are bytes, and MiB in what is read."""

from __future__ import annotations

from dataclasses import dataclass

from .cards import Card
from .cards_spec import MIB, CardDeclaration

GIB = 1024 * MIB

FIX = (
    "A seat that does not fit is not started. Make it smaller (kv_cache_mib, max_loras, gpu_memory_utilization), or "
    "move it (gpu)."
)


@dataclass(frozen=True)
class Ask:
    """What the seat needs of the card: see ``headroom.judge``. ``most_bytes`` is the largest that it ever takes."""

    seat: str
    request_bytes: int
    resident_bytes: int
    most_bytes: int
    context_bytes: int


@dataclass(frozen=True)
class Room:
    """What ``headroom.judge`` found out. ``left_*_bytes`` are negative where something is missing."""

    own_bytes: int
    found_bytes: int
    committed_bytes: int
    left_now_bytes: int
    left_at_peaks_bytes: int


def sentences(card: Card, declared: CardDeclaration, ask: Ask, room: Room, held_for: str) -> list[str]:
    """The verdict on one card: that it fits, or every reason why not and what to do."""
    where = f"card {card.index}" if card.index >= 0 else "host memory"
    if held_for:
        needs = f", which needs {mib(declared.hold_bytes)} MiB" if declared.hold_bytes else ""
        return [
            f"Seat {ask.seat} does not go onto {where}: it is held for {held_for}{needs}. "
            "Choose another card, or take the hold out of voices_seat_cards."
        ]
    if min(room.left_now_bytes, room.left_at_peaks_bytes) >= 0:
        return [
            f"Seat {ask.seat} fits on {where}: it takes {mib(ask.resident_bytes)} MiB, up to {mib(ask.most_bytes)}; "
            f"{mib(room.left_now_bytes)} MiB are left now and {mib(room.left_at_peaks_bytes)} at the tenants' peaks."
        ]
    found = []
    if room.left_now_bytes < 0:
        found.append(_now(card, declared, ask, room, where))
    if room.left_at_peaks_bytes < 0:
        found.append(_at_peaks(card, declared, ask, room, where))
    return [*found, FIX]


def engine_refusal(free_bytes: int, cuda_total_bytes: int, request_bytes: int) -> str:
    """The engine's own words (vLLM 0.26.0, v1/worker/utils.py, request_memory), "" when it would start.

    ``free_bytes`` is what it finds. Its utilization is what the request is of the total, to four digits.
    """
    if free_bytes >= request_bytes:
        return ""
    return (
        f"Free memory on device cuda:0 ({_gib(free_bytes)}/{_gib(cuda_total_bytes)} GiB) on startup is less than "
        f"desired GPU memory utilization ({round(request_bytes / cuda_total_bytes, 4)}, {_gib(request_bytes)} GiB)"
    )


def mib(size_bytes: int) -> str:
    """MiB for people, ``1,234``, to the nearest."""
    return f"{round(size_bytes / MIB):,}"


def missing_mib(left_bytes: int) -> str:
    """What is missing where ``left_bytes`` is negative; rounded up, so that it is never said to be nothing."""
    return f"{max(0, -(left_bytes // MIB)):,}"


def _now(card: Card, declared: CardDeclaration, ask: Ask, room: Room, where: str) -> str:
    own = f" and {mib(room.own_bytes)} of its own" if room.own_bytes else ""
    missing = f"{missing_mib(room.left_now_bytes)} MiB are missing."
    if room.found_bytes < ask.request_bytes:
        words = engine_refusal(max(0, room.found_bytes), card.cuda_total_bytes, ask.request_bytes)
        return (
            f"Seat {ask.seat} does not fit on {where} now: its engine asks for {mib(ask.request_bytes)} MiB and would "
            f"find {mib(max(0, room.found_bytes))} free of {mib(card.cuda_total_bytes)} ({mib(card.free_bytes)} free"
            f"{own}, less {mib(ask.context_bytes)} for its CUDA context): {missing} It would say: {words}."
        )
    reserve = f", with {mib(declared.reserve_bytes)} to be kept free" if declared.reserve_bytes else ""
    return (
        f"Seat {ask.seat} does not fit on {where} now: it takes {mib(ask.resident_bytes)} MiB{reserve}, and "
        f"{mib(card.free_bytes)} MiB{own} are free: {missing}"
    )


def _at_peaks(card: Card, declared: CardDeclaration, ask: Ask, room: Room, where: str) -> str:
    if declared.tenants:
        others = f"when its tenants are at their peaks: they take {mib(room.committed_bytes)} MiB"
    else:
        others = f"when it has had its largest batch: others hold {mib(room.committed_bytes)} MiB"
    reserve = f" and the reserve of {mib(declared.reserve_bytes)}" if declared.reserve_bytes else ""
    return (
        f"Seat {ask.seat} does not fit on {where} {others}, the seat up to {mib(ask.most_bytes)}{reserve}, of "
        f"{mib(card.cuda_total_bytes)}: {missing_mib(room.left_at_peaks_bytes)} MiB are missing."
    )


def _gib(size_bytes: int) -> str:
    """As vLLM prints it (utils/mem_utils.py, format_gib)."""
    return f"{round(size_bytes / GIB, 2)}"
