"""The store's whole plan, copies, prunings and notes of use, and its execution under the store's lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from . import store_notes
from .adapter_files import Adapter
from .plan import VoicesError
from .store import Plan, Step, plan
from .store_client import StoreClient
from .store_desired import Desired, voice_of
from .store_notes import Notes
from .store_prune import prune


@dataclass(frozen=True)
class Around:
    """What the store cannot know: the host's seats, what their engine files name, and the time.

    ``persisted`` gives the paths that other seats than the named one will load; it raises VoicesError where that
    cannot be told, and then nothing is pruned.
    """

    seats_dir: str = ""
    persisted: Callable[[str, str], Iterable[str]] = lambda seats_dir, seat: ()
    now: Callable[[], float] = time.time

    def seat_exists(self, seat: str) -> bool:
        return not self.seats_dir or (Path(self.seats_dir) / seat).is_dir()


NOTHING_AROUND = Around()


def converge(desired: Desired, client: StoreClient, *, check: bool, around: Around = NOTHING_AROUND) -> Plan:
    """Plan, and unless ``check`` do it. Returns the plan that was made, or done. Raises VoicesError.

    A real run that has something to write plans a second time under the store's lock, because another run may have
    written the same entries while this one waited. Sources and untouched entries are not read again.
    """
    made, before, notes = _planned(desired, client, around)
    if check or not (made.steps or client.temporaries() or notes != before):
        return made
    with client.exclusive():
        client.clear_temporaries()
        client.reread(step.entry for step in made.steps)
        made, before, notes = _planned(desired, client, around)
        for number, step in enumerate(made.steps):
            try:
                client.apply(step)
            except VoicesError as error:
                done = [earlier.action.line() for earlier in made.steps[:number]]
                raise VoicesError(f"{error}" + (f" (done before: {'; '.join(done)})" if done else "")) from error
        if notes is not None and notes != before:
            client.write_notes(notes)
    return made


def _planned(desired: Desired, client: StoreClient, around: Around) -> tuple[Plan, Notes | None, Notes | None]:
    """The plan, the notes as they are and as they will be (None without a seat, or when they cannot be read)."""
    made = plan(desired, client)
    if not desired.seat:
        return made, None, None
    try:
        before = client.notes()
    except VoicesError as error:
        warn(client, f"{error}; until then nothing is pruned")
        return made, None, None
    notes = _noted(desired, client, around, made, before)
    made = replace(made, steps=(*made.steps, *_prunings(desired, client, around, made, notes)))
    gone = {step.entry for step in made.steps if step.action.do in ("forget", "prune")}
    there = {*client.names(), *(step.entry for step in made.steps)}
    lost = {entry for entry in {*notes.stored, *notes.uses} if entry not in there}
    return made, before, store_notes.without(notes, gone | lost)


def _noted(desired: Desired, client: StoreClient, around: Around, made: Plan, notes: Notes) -> Notes:
    now = around.now()
    notes = store_notes.came_in(notes, {step.entry for step in made.steps if step.action.do == "store"}, now)
    wanted = {entry for entry, _ in made.entries.values()}
    if desired.serves is None:
        return store_notes.held(notes, desired.seat, wanted)
    unknown = {
        name: client.stored_at(name)
        for name in client.names()
        if voice_of(name) in desired.prune and name not in notes.stored
    }
    notes = replace(notes, stored={**unknown, **notes.stored})
    notes = store_notes.served(notes, desired.seat, client.used(desired.serves), now)
    return store_notes.held(notes, desired.seat, wanted)


def _prunings(desired: Desired, client: StoreClient, around: Around, made: Plan, notes: Notes) -> list[Step]:
    if not desired.keep or not desired.prune:
        return []
    try:
        elsewhere = client.used(around.persisted(around.seats_dir, desired.seat))
    except VoicesError as error:
        warn(client, f"nothing is pruned, because it cannot be told what is in use: {error}")
        return []
    ours = client.used((*desired.in_use, *(desired.serves or ()))) | {entry for entry, _ in made.entries.values()}
    held = {
        entry
        for entry, seats in notes.uses.items()
        for seat, use in seats.items()
        if use.held and seat != desired.seat and around.seat_exists(seat)
    }
    forgotten = {step.entry for step in made.steps if step.action.do == "forget"}
    # In check mode an entry that this run will serve is not there yet, and counts all the same.
    names = ({*client.names()} | ours) - forgotten
    actions = prune(
        names,
        desired.prune,
        desired.keep,
        ours | held | elsewhere | {*desired.pinned},
        lambda entry: max(notes.last_used(entry), client.stored_at(entry)),
    )
    return [Step(action, action.what) for action in actions]


def drift(desired: Desired, client: StoreClient) -> list[dict[str, str]]:
    """What no run puts right by itself, by name: damaged entries of the past, and sources that left their pin behind.

    It reads every entry of the voices in ``prune`` and the source of every pinned voice, so it is for check mode.
    """
    found = []
    for voice in desired.voices:
        source = client.source(voice.source) if voice.pin else None
        if isinstance(source, Adapter) and not source.digest.startswith(voice.pin):
            why = f"its source {voice.source} now holds {source.digest[:12]}, and {voice.pin} is pinned and served"
            found.append({"what": voice.name, "why": why})
    for name in client.names():
        if voice_of(name) in desired.prune:
            entry = client.entry(name)
            if not isinstance(entry, Adapter) or entry.digest[:12] != name.rpartition("@")[2]:
                holds = f"holds {entry.digest}" if isinstance(entry, Adapter) else str(entry)
                found.append({"what": name, "why": f"it no longer matches its digest: it {holds}"})
    return found


def warn(client: StoreClient, text: str) -> None:
    """Once, though a run plans twice."""
    if text not in client.warnings:
        client.warnings.append(text)
