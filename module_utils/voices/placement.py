"""Which declared seat fits on which card of a host, and where a seat without a card would go. Pure.

``headroom.judge`` is the one rule of what fits; this module says in which order the seats are judged and what each of
them leaves to the next. Every size is in bytes.

Order: the seats that run on their card, then the declared ones that do not, by name, as site.yml would bring them up,
then the seats without a card, the largest first. A seat that fits takes its room from those after it. A declared seat
that is refused takes none from the declared ones, because it will not start, but nothing is proposed in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .cards import Card, CardProcess
from .cards_spec import MIB, CardDeclaration, Tenant, declared_for
from .headroom import Headroom, judge, own_bytes
from .placement_rows import CardRow, Host, HostPlan, Miss, Need, Seat, SeatRow
from .plan import VoicesError


def plan_host(host: Host, seats: Sequence[Seat]) -> HostPlan:
    """Every card and every seat of a host. Never raises: what cannot be said is a row that says why."""
    host = replace(host, cards=tuple(sorted(host.cards, key=lambda card: card.index)))
    board = _Board(host)
    rows = [SeatRow(seat.name, seat.device, seat.state, "idle") for seat in seats if seat.state != "present"]
    present = sorted((seat for seat in seats if seat.state == "present"), key=lambda seat: seat.name)
    fixed = [seat for seat in present if seat.device == "cpu" or seat.gpu]
    for seat in present:
        board.note_running(seat)
    rows += [board.settle(seat) for seat in sorted(fixed, key=lambda seat: seat.name not in board.running)]
    loose = [seat for seat in present if seat not in fixed]
    rows += [board.propose(seat) for seat in sorted(loose, key=lambda seat: (-board.largest_bytes(seat), seat.name))]
    return HostPlan(
        host=host.name,
        problem=host.problem,
        cards=tuple(board.card_row(card) for card in host.cards),
        memory=board.card_row(host.memory) if host.memory else None,
        seats=tuple(sorted(rows, key=lambda row: row.seat)),
    )


@dataclass(frozen=True)
class _Taken:
    """Room of one seat on one card, whatever its processes take of it now."""

    seat: str
    index: int
    bytes: int


class _Board:
    """The host's cards while seats are put on them. Only ``taken``, ``running`` and what is doubtful change."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.taken: list[_Taken] = []
        self.refused: list[_Taken] = []
        self.running: set[str] = set()
        self.doubtful: dict[int, str] = {}

    def place_of(self, seat: Seat) -> Card | None:
        """The card that the seat names, or where it runs, or host memory; None when the host has no such card."""
        if seat.device == "cpu":
            return self.host.memory
        if not seat.gpu:
            return next((card for card in self.host.cards if _runs(seat, card)), None)
        return next((card for card in self.host.cards if seat.gpu in (str(card.index), card.uuid)), None)

    def note_running(self, seat: Seat) -> None:
        """A seat that runs on its card has its room there before any other is judged."""
        card = self.place_of(seat)
        if card and _runs(seat, card):
            self.running.add(seat.name)
            need = _need(seat, card)
            if isinstance(need, Need):
                self.taken.append(_Taken(seat.name, card.index, need.committed_bytes))

    def settle(self, seat: Seat) -> SeatRow:
        """The verdict on a seat that has a card (or is on host memory)."""
        running = seat.name in self.running
        row = SeatRow(seat.name, seat.device, seat.state, "unknown", running=running)
        card = self.place_of(seat)
        if seat.device == "gpu" and self.host.problem:
            return replace(row, message=self.host.problem)
        if card is None:
            return self._nowhere(seat, row)
        row = replace(row, card=None if seat.device == "cpu" else card.index)
        if card.problem:
            return replace(row, message=card.problem)
        need = _need(seat, card)
        if isinstance(need, str):
            if not running:
                self.doubtful[card.index] = f"seat {seat.name} belongs there and cannot be sized"
            return replace(row, message=need)
        verdict = self._judge(seat, card, need, self.taken)
        if not verdict.fits and seat.device == "gpu":
            verdict = self._judge(seat, card, need, self.taken, alternatives=True)
        room = _Taken(seat.name, card.index, need.committed_bytes)
        if not running:
            (self.taken if verdict.fits else self.refused).append(room)
        return replace(
            row, verdict="fits" if verdict.fits else "refused", need=need, headroom=verdict, message=verdict.message
        )

    def _nowhere(self, seat: Seat, row: SeatRow) -> SeatRow:
        if seat.device == "cpu":
            return replace(row, message=self.host.problem or "host memory could not be read")
        cards = ", ".join(str(card.index) for card in self.host.cards) or "none"
        why = f"Seat {seat.name} names gpu {seat.gpu}, which is no card of this host; its cards are {cards}."
        return replace(row, verdict="refused", message=why)

    def propose(self, seat: Seat) -> SeatRow:
        """The card where the least is left after the seat, at peaks; before it those where it runs or is expected."""
        row = SeatRow(seat.name, seat.device, seat.state, "unknown", running=seat.name in self.running)
        if self.host.problem:
            return replace(row, message=self.host.problem)
        if not self.host.cards:
            why = f"Seat {seat.name} has device: gpu, and this host has no cards; set device: cpu, or move it."
            return replace(row, verdict="no_room", message=why)
        fitting: list[tuple[bool, bool, int, int, Card, Need, Headroom]] = []
        misses: list[Miss] = []
        unsized: list[str] = []
        sized = False
        for card in self.host.cards:
            why = card.problem or self.doubtful.get(card.index, "")
            need = "" if why else _need(seat, card)
            if not isinstance(need, Need):
                unsized += [need] if need else []
                misses.append(Miss(card.index, 0, why or need))
                continue
            sized = True
            runs = _runs(seat, card)
            verdict = self._judge(seat, card, need, self.taken if runs else self.taken + self.refused)
            if verdict.fits:
                expected = self._declared(card).hold_name == seat.name
                order = (not runs, not expected, verdict.left_at_peaks_bytes, card.index)
                fitting.append((*order, card, need, verdict))
            else:
                misses.append(_miss(card, verdict))
        if not fitting:
            if unsized and not sized:
                return replace(row, message=unsized[0])
            nearest = tuple(sorted(misses, key=lambda miss: (miss.missing_bytes == 0, miss.missing_bytes, miss.index)))
            return replace(row, verdict="no_room", misses=nearest, message=_no_room(seat.name, nearest))
        *_, card, need, verdict = min(fitting, key=lambda found: found[:4])
        self.taken = [taken for taken in self.taken if taken.seat != seat.name]
        self.taken.append(_Taken(seat.name, card.index, need.committed_bytes))
        return replace(
            row,
            verdict="proposed",
            card=card.index,
            need=need,
            headroom=verdict,
            misses=tuple(misses),
            message=f'Seat {seat.name} has no gpu yet; the best fit is card {card.index}: set gpu: "{card.index}".',
        )

    def largest_bytes(self, seat: Seat) -> int:
        """The most that the seat takes on any card; 0 when it cannot be sized."""
        needs = (_need(seat, card) for card in self.host.cards if not card.problem)
        return max((need.committed_bytes for need in needs if isinstance(need, Need)), default=0)

    def card_row(self, card: Card) -> CardRow:
        """The card with the room that is left at the declared tenants' peaks beside the seats that run on it."""
        declared = self._declared(card)
        if card.problem:
            return CardRow(card, declared, None, card.notes)
        runs = [taken for taken in self.taken if taken.seat in self.running]
        empty = self._judge(_NOBODY, card, Need(0), runs)
        return CardRow(card, declared, empty.left_at_peaks_bytes, (*card.notes, *empty.warnings))

    def _declared(self, card: Card) -> CardDeclaration:
        return declared_for(self.host.declarations, card.index, card.uuid)

    def _judge(
        self, seat: Seat, card: Card, need: Need, taken: Sequence[_Taken], *, alternatives: bool = False
    ) -> Headroom:
        """The seat on the card, with the room of the other seats gone and its own processes' memory given back."""
        others = [self._beside(seat, other, taken) for other in self.host.cards if alternatives and other != card]
        card, declared = self._beside(seat, card, taken)
        return judge(
            card,
            request_bytes=need.request_bytes,
            resident_bytes=need.resident_bytes,
            context_bytes=need.context_bytes,
            loaded_bytes=need.loaded_bytes,
            declared=declared,
            seat=seat.name,
            others=others,
        )

    def _beside(self, seat: Seat, card: Card, taken: Sequence[_Taken]) -> tuple[Card, CardDeclaration]:
        """The card as the seat finds it."""
        declared = self._declared(card)
        for other in taken:
            if other.index == card.index and other.seat != seat.name:
                card, declared = _with_seat(card, declared, other)
        return _owned(card, seat.name), declared


#: No seat: what is left for the next one.
_NOBODY = Seat("", "gpu", "", "present", lambda card: Need(0))


def _runs(seat: Seat, card: Card) -> bool:
    return any(process.seat == seat.name for process in card.processes)


def _need(seat: Seat, card: Card) -> Need | str:
    """What the seat takes on the card, or why that cannot be said."""
    try:
        return seat.need(card)
    except VoicesError as error:
        return str(error)


def _owned(card: Card, seat: str) -> Card:
    """The card with the seat's own processes marked as such."""
    mine = tuple(replace(process, own=bool(seat) and process.seat == seat) for process in card.processes)
    return replace(card, processes=mine)


def _with_seat(card: Card, declared: CardDeclaration, taken: _Taken) -> tuple[Card, CardDeclaration]:
    """The card with another seat on it: as a tenant whose peak is what that seat takes.

    One that runs holds what it holds; one that does not is counted as if it had started before.
    """
    mark = f"voices seat <{taken.seat}>"
    own = tuple(process for process in card.processes if process.seat == taken.seat)
    others = tuple(process for process in card.processes if process.seat != taken.seat)
    now = own_bytes(_owned(card, taken.seat))
    starts = 0 if own else taken.bytes
    up = CardProcess(pid=0, used_bytes=now + starts, command=mark)
    card = replace(
        card,
        used_bytes=card.used_bytes + starts,
        free_bytes=card.free_bytes - starts,
        processes=(*others, up),
    )
    # First of all, so that no other tenant's rule finds its process.
    tenant = Tenant(f"seat {taken.seat}", max(now, taken.bytes), command=mark)
    return card, replace(declared, tenants=(tenant, *declared.tenants))


def _miss(card: Card, verdict: Headroom) -> Miss:
    if verdict.held_for:
        return Miss(card.index, 0, f"held for {verdict.held_for}")
    return Miss(card.index, verdict.missing_bytes, f"{_mib(verdict.missing_bytes)} MiB missing")


def _no_room(seat: str, misses: Sequence[Miss]) -> str:
    nearest = "; ".join(f"card {miss.index}: {miss.why}" for miss in misses)
    return f"Seat {seat} has no room without a placement decision ({nearest})."


def _mib(size_bytes: int) -> str:
    """MiB for people, rounded up: what is missing is never said to be less."""
    return f"{-(-size_bytes // MIB):,}"
