"""Who uses which entry of the store since when: the notes that pruning and rollback go by. Pure.

An entry says what a voice is, not when it served. ``.uses.json`` in the store says that, by entry and by seat. Losing
it costs the order of use and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from .plan import VoicesError

_FORMAT = 1
_TICK_S = 1e-6


@dataclass(frozen=True)
class Use:
    """One seat's use of one entry, in seconds since the epoch. ``since``: when it last began to serve, None when it
    never did; ``until``: when that had ended; ``held``: the seat serves it, or is about to."""

    since: float | None = None
    until: float | None = None
    held: bool = True


@dataclass(frozen=True)
class Notes:
    """``stored`` says when an entry came into the store, ``uses`` {entry: {seat: use}}."""

    stored: Mapping[str, float] = field(default_factory=dict)
    uses: Mapping[str, Mapping[str, Use]] = field(default_factory=dict)

    def use(self, entry: str, seat: str) -> Use | None:
        return self.uses.get(entry, {}).get(seat)

    def with_use(self, entry: str, seat: str, use: Use | None) -> Notes:
        """The same with this use; None takes it away."""
        seats = {name: other for name, other in self.uses.get(entry, {}).items() if name != seat}
        if use is not None:
            seats[seat] = use
        uses = {name: other for name, other in self.uses.items() if name != entry}
        return replace(self, uses={**uses, entry: seats} if seats else uses)

    def last_used(self, entry: str) -> float:
        """When the entry last served or came in, 0.0 when nothing is known. A moment of use that lasts is its start."""
        times = [self.stored.get(entry, 0.0)]
        for use in self.uses.get(entry, {}).values():
            times += [time for time in (use.since, use.until) if time is not None]
        return max(times)


def after(notes: Notes, now: float) -> float:
    """``now``, or right after the latest note: a clock that was set back does not turn the order round."""
    latest = max((notes.last_used(entry) for entry in {*notes.stored, *notes.uses}), default=0.0)
    return max(now, latest + _TICK_S)


def held(notes: Notes, seat: str, entries: Collection[str]) -> Notes:
    """``seat`` is about to serve ``entries``: nobody may take them away meanwhile."""
    for entry in sorted(entries):
        use = notes.use(entry, seat)
        if use is None or not use.held:
            notes = notes.with_use(entry, seat, replace(use or Use(), held=True))
    return notes


def served(notes: Notes, seat: str, entries: Collection[str], now: float) -> Notes:
    """``seat`` serves ``entries`` and nothing else. What it held and never served is forgotten."""
    now = after(notes, now)
    for entry in sorted({*entries, *(name for name, seats in notes.uses.items() if seat in seats)}):
        use = notes.use(entry, seat)
        if entry in entries:
            if use is None or use.since is None or use.until is not None:
                notes = notes.with_use(entry, seat, Use(since=now))
            elif not use.held:
                notes = notes.with_use(entry, seat, replace(use, held=True))
        elif use is not None and use.since is None:
            notes = notes.with_use(entry, seat, None)
        elif use is not None and (use.held or use.until is None):
            notes = notes.with_use(entry, seat, replace(use, until=use.until or now, held=False))
    return notes


def came_in(notes: Notes, entries: Collection[str], now: float) -> Notes:
    """``entries`` were stored now."""
    now = after(notes, now) if entries else now
    return replace(notes, stored={**notes.stored, **dict.fromkeys(sorted(entries), now)})


def without(notes: Notes, gone: Collection[str]) -> Notes:
    """The same without the entries that are ``gone``."""
    return Notes(
        {entry: time for entry, time in notes.stored.items() if entry not in gone},
        {entry: seats for entry, seats in notes.uses.items() if entry not in gone},
    )


def as_text(notes: Notes) -> str:
    """The file's text."""
    entries = {
        entry: {
            "stored": notes.stored.get(entry),
            "seats": {
                seat: {"since": use.since, "until": use.until, "held": use.held}
                for seat, use in sorted(notes.uses.get(entry, {}).items())
            },
        }
        for entry in sorted({*notes.stored, *notes.uses})
    }
    return json.dumps({"format": _FORMAT, "entries": entries}, indent=1) + "\n"


def from_text(text: str, path: str) -> Notes:
    """The notes in a file's ``text``. Raises VoicesError naming ``path``."""
    try:
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']!r} is not {_FORMAT}")
        stored, uses = {}, {}
        for entry, noted in data["entries"].items():
            if noted["stored"] is not None:
                stored[entry] = float(noted["stored"])
            if seats := {seat: _use(use) for seat, use in noted["seats"].items()}:
                uses[entry] = seats
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise VoicesError(
            f"{path} cannot be understood ({type(error).__name__}: {error}): remove it; only the order in which "
            "entries were used is lost with it"
        ) from None
    return Notes(stored, uses)


def _use(noted: Mapping[str, float | bool | None]) -> Use:
    since, until, in_use = noted["since"], noted["until"], noted["held"]
    if not isinstance(in_use, bool):
        raise ValueError(f"held is {in_use!r}")
    return Use(None if since is None else float(since), None if until is None else float(until), in_use)
