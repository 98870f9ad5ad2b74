"""Whether a seat fits on a card, now and when every tenant is at its peak. Pure; sizes are bytes.

An engine opens its CUDA context, then looks how much is free, and refuses to start when that is less than its share of
the card's total (vLLM, v1/worker/utils.py, request_memory). So what it finds is what is free now less its own context.
A seat that runs gives its memory back to its own replacement. Facts: docs/decisions/0003-sizing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .cards import Card, CardProcess
from .cards_spec import CardDeclaration, Tenant
from .headroom_text import Ask, Room, mib, missing_mib, sentences


@dataclass(frozen=True)
class Headroom:
    """The verdict. ``left_*_bytes`` are negative where something is missing.

    ``fits_now``: the engine would start, and what the policy keeps free stays free. ``fits_at_peaks``: there is room
    for the seat and every declared tenant at its peak. ``held_for`` is the seat that the card is kept for, "" when it
    is free for this one. ``free_for_engine_bytes`` is what the engine would find, and ``committed_bytes`` what the
    others hold at their peaks.
    """

    fits_now: bool
    fits_at_peaks: bool
    left_now_bytes: int
    left_at_peaks_bytes: int
    held_for: str
    own_bytes: int
    free_for_engine_bytes: int
    committed_bytes: int
    message: str
    warnings: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether the seat may start."""
        return self.fits_now and self.fits_at_peaks and not self.held_for

    @property
    def missing_bytes(self) -> int:
        """By how much it does not fit; 0 when it fits, or when room is not the reason."""
        return max(0, -self.left_now_bytes, -self.left_at_peaks_bytes)


@dataclass(frozen=True)
class Peaks:
    """What others hold of a card once every declared tenant is at its peak; ``warnings`` name who is above it now."""

    committed_bytes: int
    warnings: tuple[str, ...]


def judge(
    card: Card,
    *,
    request_bytes: int,
    resident_bytes: int,
    context_bytes: int,
    declared: CardDeclaration,
    seat: str,
    loaded_bytes: int = 0,
    others: Sequence[tuple[Card, CardDeclaration]] = (),
) -> Headroom:
    """The verdict on ``seat`` on ``card``.

    ``request_bytes``: what its engine asks for; ``resident_bytes``: what NVML shows of it after its start;
    ``loaded_bytes``: what it holds once it had its largest batch (0: no more than that); ``context_bytes``: the part
    of it that is taken before the engine looks. ``others`` are the host's other cards, for the alternatives.
    """
    ask = Ask(seat, request_bytes, resident_bytes, max(request_bytes, resident_bytes, loaded_bytes), context_bytes)
    verdict = _judge(card, declared, ask)
    if verdict.fits or not others:
        return verdict
    shown = [_alternative(other, of_other, ask) for other, of_other in others if not other.problem]
    elsewhere = f"The host's other cards: {'; '.join(shown) if shown else 'none can be read'}."
    return replace(verdict, message=f"{verdict.message} {elsewhere}")


def own_bytes(card: Card) -> int:
    """What the seat in question holds now; 0 when NVML does not say, which can only make a verdict stricter.

    Never more than the card has in use: NVML's sums do not always agree.
    """
    own = [process.used_bytes for process in card.processes if process.own]
    return 0 if None in own else min(card.used_bytes, sum(size for size in own if size is not None))


def at_peaks(card: Card, declared: CardDeclaration) -> Peaks:
    """What the others commit the card to.

    A tenant that is found counts its peak, or what it holds where that is more. Everything else that is there counts
    too, and so does each tenant that is not found, unless what is there may be it: what cannot be read may be any of
    them, what can be read only one without a rule.
    """
    others = [process for process in card.processes if not process.own]
    tenants = [_tenant_of(process, declared.tenants) for process in others]
    known = committed = ruled = ruleless = 0
    warnings = []
    for tenant in declared.tenants:
        sizes = [process.used_bytes for process, owner in zip(others, tenants, strict=True) if owner is tenant]
        if not sizes or None in sizes:
            ruled += tenant.peak_bytes if tenant.container or tenant.command else 0
            ruleless += 0 if tenant.container or tenant.command else tenant.peak_bytes
            continue
        present = sum(size for size in sizes if size is not None)
        known += present
        committed += max(tenant.peak_bytes, present)
        if present > tenant.peak_bytes:
            warnings.append(
                f"tenant {tenant.name} holds {mib(present)} MiB of card {card.index}, more than its declared peak of "
                f"{mib(tenant.peak_bytes)} MiB; declare the larger one"
            )
    loose = [process for process, owner in zip(others, tenants, strict=True) if owner is None]
    strangers = sum(process.used_bytes or 0 for process in loose if process.readable)
    unread = max(0, card.used_bytes - own_bytes(card) - known - strangers)
    # Where every process says what it is, what is left over is the driver's: no tenant hides in it.
    hidden = not others or any(
        not process.readable or (owner is not None and process.used_bytes is None)
        for process, owner in zip(others, tenants, strict=True)
    )
    may_be_ruled = min(ruled, unread) if hidden else 0
    may_be_ruleless = min(ruleless, strangers + unread - may_be_ruled)
    absent = ruled + ruleless - may_be_ruled - may_be_ruleless
    return Peaks(committed + unread + strangers + absent, tuple(warnings))


def _judge(card: Card, declared: CardDeclaration, ask: Ask) -> Headroom:
    own = own_bytes(card)
    free = card.free_bytes + own
    peaks = at_peaks(card, declared)
    found = free - ask.context_bytes
    room = Room(
        own_bytes=own,
        found_bytes=found,
        committed_bytes=peaks.committed_bytes,
        left_now_bytes=min(found - ask.request_bytes, free - ask.resident_bytes - declared.reserve_bytes),
        left_at_peaks_bytes=card.cuda_total_bytes - peaks.committed_bytes - declared.reserve_bytes - ask.most_bytes,
    )
    held_for = declared.hold_name if declared.hold_name not in ("", ask.seat) else ""
    return Headroom(
        fits_now=room.left_now_bytes >= 0,
        fits_at_peaks=room.left_at_peaks_bytes >= 0,
        left_now_bytes=room.left_now_bytes,
        left_at_peaks_bytes=room.left_at_peaks_bytes,
        held_for=held_for,
        own_bytes=own,
        free_for_engine_bytes=found,
        committed_bytes=peaks.committed_bytes,
        message=" ".join(sentences(card, declared, ask, room, held_for)),
        warnings=peaks.warnings,
    )


def _alternative(card: Card, declared: CardDeclaration, ask: Ask) -> str:
    """One of the host's other cards, with what it has left."""
    verdict = _judge(card, declared, ask)
    if verdict.held_for:
        return f"card {card.index} is held for {verdict.held_for}"
    if verdict.fits:
        spare = min(verdict.left_now_bytes, verdict.left_at_peaks_bytes)
        return f"card {card.index} has room, {mib(spare)} MiB to spare"
    return f"card {card.index} has {mib(card.free_bytes)} MiB free, {missing_mib(-verdict.missing_bytes)} MiB too few"


def _tenant_of(process: CardProcess, tenants: Sequence[Tenant]) -> Tenant | None:
    """The first tenant whose rule finds the process; of a rule with both parts both have to."""
    for tenant in tenants:
        ruled = tenant.container or tenant.command
        if ruled and tenant.container in ("", process.container) and tenant.command in process.command:
            return tenant
    return None
