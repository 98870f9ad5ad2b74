"""The adapter store: immutable entries ``<store>/<voice>@<first 12 hex of the digest>/``, and the plan over them.

``plan`` is pure over what a ``Reader`` tells it; ``store_client`` has that reader for a real directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .adapter_files import Adapter, Broken
from .names import voice_name_error
from .plan import Action, VoicesError

ALLOWED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM 0.32.0, config/lora.py, MaxLoRARanks
SHORT = 12  # hex digits of the digest in an entry's name
_MIB = 1 << 20
_PIN = re.compile(r"[0-9a-f]{12,64}")
_ENTRY = re.compile(r"(?P<voice>.+)@[0-9a-f]{12}")


@dataclass(frozen=True)
class Voice:
    """One wanted voice; ``pin`` is the digest the inventory insists on (12 to 64 hex digits) or empty."""

    name: str
    source: str
    pin: str = ""


@dataclass(frozen=True)
class Desired:
    """What a run asks of the store. ``max_lora_rank`` 0 leaves ranks unchecked."""

    voices: tuple[Voice, ...] = ()
    absent: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    max_lora_rank: int = 0


@dataclass(frozen=True)
class Step:
    """An action with what its execution needs: the entry's name and, for a copy, the adapter that was read."""

    action: Action
    entry: str
    adapter: Adapter | None = None


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

    def used(self, paths: Iterable[str]) -> set[str]:
        """Those of ``paths`` that are entries of this store, as entry names."""

    def free_bytes(self) -> int:
        """Bytes that new entries may take."""


def desired_from(
    voices: Mapping[str, Any], absent: Sequence[str] = (), in_use: Sequence[str] = (), max_lora_rank: int = 0
) -> Desired:
    """Check a module's parameters. Raises VoicesError naming everything that is wrong with them."""
    wrong: list[str] = []
    wanted: list[Voice] = []
    for name in sorted(voices, key=str):
        problems, voice = _voice(name, voices[name])
        wrong += problems
        if voice is not None:
            wanted.append(voice)
    for name in absent:
        wrong += [problem] if (problem := voice_name_error(name)) else []
        if name in voices:
            wrong.append(f"voice {name!r} is both in voices and in absent: keep it in one of them")
    if max_lora_rank < 0:
        wrong.append(f"max_lora_rank is {max_lora_rank}: set a rank, or 0 for no check")
    _refuse(wrong)
    return Desired(tuple(wanted), tuple(sorted(set(absent))), tuple(in_use), max_lora_rank)


def _voice(name: Any, options: Any) -> tuple[list[str], Voice | None]:
    wrong = [problem] if (problem := voice_name_error(name)) else []
    if not isinstance(options, Mapping):
        return [*wrong, f"voice {name!r} is {options!r:.80}, not a map with source and, optionally, digest"], None
    wrong += [
        f"voice {name!r} has the unknown key {key!r}; the keys are source and digest"
        for key in sorted(set(options) - {"source", "digest"}, key=str)
    ]
    source, pin = options.get("source"), options.get("digest")
    if not isinstance(source, str) or not os.path.isabs(source) or "\0" in source:
        wrong.append(f"voice {name!r} has the source {source!r:.200}; a source is an absolute path")
    # An unquoted pin of digits only is a number to YAML, and may have lost its leading zeros.
    if pin not in (None, "") and not (isinstance(pin, str) and _PIN.fullmatch(pin)):
        wrong.append(f"voice {name!r} has the digest {pin!r:.80}; a pin is 12 to 64 lower-case hex digits, in quotes")
    return wrong, None if wrong else Voice(str(name), str(source), pin or "")


def entry_name(voice: str, digest: str) -> str:
    """The entry of ``voice`` for a digest or a pin of it."""
    return f"{voice}@{digest[:SHORT]}"


def voice_of(entry: str) -> str | None:
    """The voice that an entry's name begins with, or None for a name that is no entry's."""
    found = _ENTRY.fullmatch(entry)
    return found["voice"] if found and voice_name_error(found["voice"]) is None else None


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
    needed = sum(step.adapter.total_bytes for step in steps if step.adapter)
    if needed and needed > (free := reader.free_bytes()):
        wrong.append(
            f"the store has room for {free // _MIB} MiB, the new entries need {-(-needed // _MIB)} MiB: "
            "free the rest, or set voices to absent"
        )
    used = reader.used(desired.in_use) if desired.absent else set()
    for entry in names:
        if voice_of(entry) in desired.absent:
            if entry in used:
                wrong.append(f"voice {voice_of(entry)}: {entry} is still in use: unload it before it is removed")
            else:
                steps.append(Step(Action("forget", entry), entry))
    _refuse(wrong)
    return Plan(tuple(steps), entries)


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
        return entry, present, None
    if isinstance(present, Adapter) and entry_name(voice.name, present.digest) == entry:
        raise VoicesError(
            f"two adapters share the first {SHORT} digits of their digests: {entry} holds {present.digest}, the source "
            f"{voice.source} {wanted.digest}; remove the entry that is not wanted"
        )
    if present is not None:
        return entry, wanted, Step(Action("mend", entry), entry, wanted)
    why = "changed source" if any(voice_of(name) == voice.name for name in names) else "new"
    return entry, wanted, Step(Action("store", voice.name, why=why, after=entry), entry, wanted)


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


def _refuse(wrong: Sequence[str]) -> None:
    if len(wrong) == 1:
        raise VoicesError(wrong[0])
    if wrong:
        raise VoicesError(f"{len(wrong)} errors, nothing was changed:\n" + "\n".join(f"- {line}" for line in wrong))
