"""What a placement is made from and what comes of it. Data only; every size is in bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .cards import Card
from .cards_spec import CardDeclaration
from .headroom import Headroom

#: What a row says in one word: ``fits`` and ``refused`` of a seat with a card, ``proposed`` and ``no_room`` of one
#: without, ``unknown`` when its size or its card cannot be told, ``idle`` for a seat that is stopped or absent.
VERDICTS = ("fits", "refused", "proposed", "no_room", "unknown", "idle")


@dataclass(frozen=True)
class Need:
    """What a seat takes on one card, in bytes.

    ``request_bytes`` must be free when the engine starts, ``resident_bytes`` is what NVML shows of it once it is up,
    ``loaded_bytes`` what it holds after its largest batch (0: no more), ``context_bytes`` the part of it that is taken
    before the engine looks. ``details`` is the sizing, as plain data.
    """

    resident_bytes: int
    request_bytes: int = 0
    context_bytes: int = 0
    loaded_bytes: int = 0
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def committed_bytes(self) -> int:
        """What must stay its own: the most that it holds, and a restart asks for the request again."""
        return max(self.resident_bytes, self.request_bytes, self.loaded_bytes)


@dataclass(frozen=True)
class Seat:
    """A declared seat. ``gpu`` is a card's index or UUID, "" without a placement decision.

    ``need`` says what it takes on a card and raises VoicesError when that cannot be said.
    """

    name: str
    device: str
    gpu: str
    state: str
    need: Callable[[Card], Need]


@dataclass(frozen=True)
class Host:
    """What is known of a host. ``problem`` says why nothing is known of its cards; ``memory`` is its own as a card."""

    name: str
    cards: tuple[Card, ...] = ()
    declarations: Mapping[str, CardDeclaration] = field(default_factory=dict)
    memory: Card | None = None
    problem: str = ""


@dataclass(frozen=True)
class Miss:
    """A card that a seat without one does not get. ``missing_bytes`` is 0 where room is not the reason."""

    index: int
    missing_bytes: int
    why: str


@dataclass(frozen=True)
class SeatRow:
    """What comes of one seat. ``card`` is the index of its card or of the proposed one, None on the host or nowhere."""

    seat: str
    device: str
    state: str
    verdict: str
    card: int | None = None
    need: Need | None = None
    headroom: Headroom | None = None
    running: bool = False
    message: str = ""
    misses: tuple[Miss, ...] = ()


@dataclass(frozen=True)
class CardRow:
    """One card: as it is, what is declared of it, and what is left at the tenants' peaks (None when not readable)."""

    card: Card
    declared: CardDeclaration
    room_at_peaks_bytes: int | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostPlan:
    """The rows of one host, cards by index and seats by name."""

    host: str
    problem: str
    cards: tuple[CardRow, ...]
    memory: CardRow | None
    seats: tuple[SeatRow, ...]
