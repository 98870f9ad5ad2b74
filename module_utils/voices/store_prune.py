"""Which entries of the store may go, and which entry a voice goes back to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .adapter_files import Adapter, Broken
from .plan import Action, VoicesError
from .store_desired import SHORT, voice_of
from .store_notes import Notes

MIN_PREFIX = 8  # hex digits by which a person may name an entry


def last_used(entry: str, notes: Notes, stored_at: Mapping[str, float]) -> float:
    """When the entry was last in use or stored; ``stored_at`` is the file system's word for entries without a note."""
    return max(notes.last_used(entry), stored_at.get(entry, 0.0))


def prune(
    entries: Iterable[str],
    voices: Collection[str],
    keep: int,
    in_use: Collection[str],
    age: Callable[[str], float],
) -> list[Action]:
    """Of each voice the ``keep`` entries of the greatest ``age`` stay, and every one of ``in_use``, which count too."""
    actions: list[Action] = []
    by_voice: dict[str, list[str]] = {}
    for entry in entries:
        if (voice := voice_of(entry)) in voices and voice is not None:
            by_voice.setdefault(voice, []).append(entry)
    for _, own in sorted(by_voice.items()):
        left = len(own)
        for entry in sorted(own, key=lambda name: (age(name), name)):
            if left <= keep:
                break
            if entry not in in_use:
                actions.append(Action("prune", entry, why=f"{left} kept, limit {keep}"))
                left -= 1
    return actions


@dataclass(frozen=True)
class Choice:
    """The entry a rollback goes to, and why it is this one, for a person."""

    entry: str
    why: str


@dataclass(frozen=True)
class History:
    """A voice's entries on a seat. ``present``: the one that engine.yaml names; ``pin``: the inventory's digest."""

    voice: str
    seat: str
    entries: Sequence[str]
    present: str
    notes: Notes
    pin: str = ""

    def stored(self, entry: str) -> float:
        return self.notes.stored.get(entry, 0.0)

    def since(self, entry: str) -> float | None:
        """When this seat last began to serve ``entry``; None when it never did."""
        use = self.notes.use(entry, self.seat)
        return use.since if use else None

    def used(self) -> list[str]:
        """What the seat served besides the present entry, the latest first."""
        times = {entry: time for entry in self.entries if (time := self.since(entry)) is not None}
        return sorted((entry for entry in times if entry != self.present), key=lambda name: -times[name])


def choose(history: History, to: str) -> Choice:
    """Where a rollback goes; raises VoicesError where that is not clear. See ``by_digest`` and ``by_history``."""
    return by_digest(history, to) if to else by_history(history)


def by_digest(history: History, to: str) -> Choice:
    """The entry whose digest begins with ``to``. Digits behind the entry's name are for who verifies it."""
    if not (MIN_PREFIX <= len(to) <= 64 and set(to) <= set("0123456789abcdef")):
        raise VoicesError(
            f"to is {to!r:.80}: name an entry by 8 to 64 lower-case hex digits of its digest (in quotes: "
            f'-e \'{{"to": "..."}}\' where it is all digits){_there(history)}'
        )
    found = [entry for entry in history.entries if _digits(entry).startswith(to[:SHORT])]
    if len(found) == 1:
        return Choice(found[0], "named")
    what = "is not in the store" if not found else f"is ambiguous: it begins {', '.join(found)}"
    raise VoicesError(f"an entry of {history.voice} with the digest {to} {what}{_there(history)}")


def by_history(history: History) -> Choice:
    """Without a name: an inventory's pin that is not live yet, else the entry in use before the present one.

    A run that was killed has pinned and not loaded: the pin is what was asked for. And a voice that serves an entry
    older than another that served is back already: going back from there would be going forward.
    """
    voice, seat, present = history.voice, history.seat, history.present
    if history.pin and not _digits(present).startswith(history.pin[:SHORT]):
        return by_digest(history, history.pin)
    if not present:
        raise VoicesError(
            f"{voice} is not in the engine.yaml of seat {seat}, so there is nothing to go back from: run site.yml, or "
            f"name an entry with -e to=DIGEST{_there(history)}"
        )
    used = history.used()
    newer = [entry for entry in used if history.stored(entry) > history.stored(present)]
    if newer:
        return Choice(present, f"it is back already, from {newer[0]}; to go further, name an entry{_there(history)}")
    if used:
        return Choice(used[0], f"in use before {present}")
    raise VoicesError(
        f"no entry of {voice} is known to have been in use on seat {seat} before {present}: name one with "
        f"-e to=DIGEST{_there(history)}"
    )


def _digits(entry: str) -> str:
    return entry.rpartition("@")[2]


def _there(history: History) -> str:
    return f" (the store has {', '.join(history.entries) or 'none'} of {history.voice})"


def verified(choice: Choice, found: Adapter | Broken | None, to: str) -> Adapter:
    """The adapter in the chosen entry. Raises VoicesError for one that is missing, damaged, or another than named."""
    if isinstance(found, Adapter) and found.digest.startswith(_digits(choice.entry)):
        if found.digest.startswith(to):
            return found
        raise VoicesError(f"{choice.entry} holds {found.digest}, and to is {to}: correct it after its {SHORT}th digit")
    state = f"holds {found.digest}" if isinstance(found, Adapter) else str(found or "is not there")
    raise VoicesError(
        f"the store's entry {choice.entry} is damaged: it {state}. Nothing goes back to it; bring a source with that "
        "digest back and run site.yml with it pinned, or name another entry"
    )
