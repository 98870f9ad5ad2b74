"""The adapter store: immutable entries ``<store>/<voice>@<first 12 hex of the digest>/``, and the plan over them.

``plan`` is pure over what a ``Reader`` tells it; ``store_client`` has that reader for a real directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .adapter_files import Adapter, Broken
from .plan import Action, VoicesError
from .store_desired import SHORT, Desired, Voice, entry_name, refuse, voice_of

ALLOWED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM 0.32.0, config/lora.py, MaxLoRARanks
_MIB = 1 << 20


@dataclass(frozen=True)
class Step:
    """An action with what its execution needs: the entry's name and, for a copy, the adapter that was read.

    ``riders`` are the files to refresh beside the weights: those that ``adapter`` lacks go.
    """

    action: Action
    entry: str
    adapter: Adapter | None = None
    riders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The steps, and for each voice the entry that it will have, with the adapter in it."""

    steps: tuple[Step, ...]
    entries: Mapping[str, tuple[str, Adapter]]

    @property
    def actions(self) -> list[Action]:
        return [step.action for step in self.steps]


class Reader(Protocol):
    """What a plan may ask. Answers come as late as possible: a pinned voice's source is never read."""

    def names(self) -> Sequence[str]:
        """The names of all entries in the store, sorted."""

    def entry(self, name: str) -> Adapter | Broken | None:
        """What the entry holds, None when there is none."""

    def source(self, path: str) -> Adapter | Broken:
        """What a source directory holds."""

    def riders_differ(self, source: Adapter, entry: Adapter) -> tuple[str, ...]:
        """The files outside the digest, such as a README, that are not the same in both, by name."""

    def used(self, paths: Iterable[str]) -> set[str]:
        """Those of ``paths`` that are entries of this store, as entry names."""

    def free_bytes(self) -> int:
        """Bytes that new entries may take."""


def plan(desired: Desired, reader: Reader) -> Plan:
    """Desired x actual -> steps: copies and mends by voice, then removals.

    Raises VoicesError with the errors of all voices. Nothing has been changed then.
    """
    names = reader.names()
    wrong: list[str] = []
    steps: list[Step] = []
    entries: dict[str, tuple[str, Adapter]] = {}
    for voice in desired.voices:
        try:
            entry, adapter, step = _place(voice, names, reader)
            _check_rank(adapter, desired.max_lora_rank)
        except VoicesError as error:
            wrong.append(f"voice {voice.name}: {error}")
            continue
        entries[voice.name] = (entry, adapter)
        steps += [step] if step else []
    needed = sum(map(bytes_needed, steps))
    if needed and needed > (free := reader.free_bytes()):
        wrong.append(
            f"the store has room for {free // _MIB} MiB, the new entries need {-(-needed // _MIB)} MiB "
            f"({needed} bytes wanted, {free} free): free the rest, or set voices to absent"
        )
    used = reader.used(desired.in_use) if desired.absent else set()
    for entry in names:
        if voice_of(entry) in desired.absent:
            if entry in used:
                wrong.append(f"voice {voice_of(entry)}: {entry} is still in use: unload it before it is removed")
            else:
                steps.append(Step(Action("forget", entry), entry))
    refuse(wrong)
    return Plan(tuple(steps), entries)


def bytes_needed(step: Step) -> int:
    """Bytes that a step writes."""
    if step.adapter is None:
        return 0
    return sum(file.bytes for file in step.adapter.files if not step.riders or file.name in step.riders)


def _place(voice: Voice, names: Sequence[str], reader: Reader) -> tuple[str, Adapter, Step | None]:
    """The entry that ``voice`` gets, what it holds, and the step that makes it so (None when it is there and whole)."""
    if voice.pin:
        entry = entry_name(voice.name, voice.pin)
        present = reader.entry(entry)
        if isinstance(present, Adapter) and present.digest.startswith(voice.pin):
            return entry, present, None
        wanted = _pinned_source(voice, entry, present, names, reader)
    else:
        wanted = _source(voice, names, reader)
        entry = entry_name(voice.name, wanted.digest)
        present = reader.entry(entry)
    if isinstance(present, Adapter) and present.digest == wanted.digest:
        return entry, present, _refresh(entry, wanted, reader.riders_differ(wanted, present))
    if isinstance(present, Adapter) and entry_name(voice.name, present.digest) == entry:
        raise VoicesError(
            f"two adapters share the first {SHORT} digits of their digests: {entry} holds {present.digest}, the source "
            f"{voice.source} {wanted.digest}; remove the entry that is not wanted"
        )
    if present is not None:
        return entry, wanted, Step(Action("mend", entry), entry, wanted)
    why = "changed source" if any(voice_of(name) == voice.name for name in names) else "new"
    return entry, wanted, Step(Action("store", voice.name, why=why, after=entry), entry, wanted)


def _refresh(entry: str, source: Adapter, riders: tuple[str, ...]) -> Step | None:
    """Files beside the weights follow the source. The weights stay, so whatever serves them does not notice."""
    if not riders:
        return None
    more = f" and {len(riders) - 3} more" if len(riders) > 3 else ""
    return Step(Action("refresh", entry, why=", ".join(riders[:3]) + more), entry, source, riders)


def _source(voice: Voice, names: Sequence[str], reader: Reader) -> Adapter:
    found = reader.source(voice.source)
    if isinstance(found, Adapter):
        return found
    raise VoicesError(f"source {voice.source} {found}{_stored(voice, names, ' (to do without it, pin its digest; ')}")


def _pinned_source(
    voice: Voice, entry: str, present: Adapter | Broken | None, names: Sequence[str], reader: Reader
) -> Adapter:
    """The source of a pinned voice whose entry is missing or damaged: usable only if it holds the pinned digest."""
    found = reader.source(voice.source)
    if isinstance(found, Adapter) and found.digest.startswith(voice.pin):
        return found
    holds = f"holds {found.digest}" if isinstance(found, Adapter) else str(found)
    if present is None:
        raise VoicesError(
            f"digest {voice.pin} is pinned, but {entry} is not in the store and source {voice.source} {holds}: bring "
            f"that source back, or change the pin{_stored(voice, names, ' (')}"
        )
    state = f"holds {present.digest}" if isinstance(present, Adapter) else str(present)
    if isinstance(present, Adapter) and entry_name(voice.name, present.digest) == entry:
        raise VoicesError(f"digest {voice.pin} is pinned, but {entry} {state}: correct the pin after its 12th digit")
    raise VoicesError(
        f"the store's entry {entry} is damaged: it {state}; source {voice.source} cannot mend it: it {holds}. Bring "
        "the source with that digest back, or pin another entry"
    )


def _stored(voice: Voice, names: Sequence[str], lead: str) -> str:
    """The voice's entries, for the end of an error; empty when it has none."""
    own = [name for name in names if voice_of(name) == voice.name]
    return f"{lead}the store has {', '.join(own)})" if own else ""


def _check_rank(adapter: Adapter, limit: int) -> None:
    if limit == 0 or adapter.rank <= limit:
        return
    fitting = next((rank for rank in ALLOWED_RANKS if rank >= adapter.rank), None)
    fix = (
        f"set max_lora_rank to {fitting}"
        if fitting
        else "no setting serves it: train it with a lower rank, or merge it into a carrier of its own"
    )
    raise VoicesError(
        f"its adapter ({adapter.directory}) has rank {adapter.rank}, max_lora_rank is {limit}: {fix} (vLLM allows "
        f"{', '.join(map(str, ALLOWED_RANKS))})"
    )
