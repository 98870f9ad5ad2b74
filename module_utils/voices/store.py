"""The adapter store: immutable entries ``<store>/<voice>@<first 12 hex of the digest>/``.

``plan`` is pure over what a ``Reader`` tells it; ``StoreClient`` is that reader for a real directory, and the only part
that writes. An entry appears and disappears in one rename, so that no reader ever sees half of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .adapter_files import Adapter, Broken, File, pieces_of, read_adapter
from .files import locked, sync_directory
from .names import voice_name_error
from .plan import Action, VoicesError

ALLOWED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM 0.32.0, config/lora.py, MaxLoRARanks
SHORT = 12  # hex digits of the digest in an entry's name
_MIB = 1 << 20
_PIN = re.compile(r"[0-9a-f]{12,64}")
_ENTRY = re.compile(r"(?P<voice>.+)@[0-9a-f]{12}")
# Names that begin with a dot and hold no @, so that nothing can take them for an entry.
_INCOMING, _OUTGOING, _LOCK = ".incoming-", ".outgoing-", ".lock"


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


# --- the plan (pure) --------------------------------------------------------------------------------------------------


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


# --- the client -------------------------------------------------------------------------------------------------------


@dataclass
class StoreClient:
    """Reads and writes one store directory, which need not exist yet. ``warnings`` collects what was left undone."""

    store: Path
    warnings: list[str] = field(default_factory=list)
    _read: dict[str, Adapter | Broken] = field(default_factory=dict)

    # reading: nothing here writes, so that check mode may use it all

    def names(self) -> list[str]:
        return [name for name in self._listed() if voice_of(name)]

    def entry(self, name: str) -> Adapter | Broken | None:
        path = self.store / name
        if not os.path.lexists(path):
            return None
        if path.is_symlink():
            return Broken(("is a link, not a directory of the store",))
        return self._cached(str(path))

    def source(self, path: str) -> Adapter | Broken:
        real = os.path.realpath(path)  # so that two voices with one source are read once
        store = os.path.realpath(self.store)
        if os.path.commonpath((real, store)) == real:
            return Broken((f"contains the store {self.store}",))
        found = self._cached(real)
        parent, name = os.path.split(real)
        voice = voice_of(name) if parent == store else None
        if voice and isinstance(found, Adapter) and entry_name(voice, found.digest) != name:
            return Broken((f"is a damaged entry of the store: it holds {found.digest}",))
        return found

    def used(self, paths: Iterable[str]) -> set[str]:
        store = os.path.realpath(self.store)
        pairs = (os.path.split(os.path.normpath(path)) for path in paths)
        return {name for parent, name in pairs if os.path.realpath(parent) == store}

    def free_bytes(self) -> int:
        where = self.store
        while not where.exists() and where != where.parent:
            where = where.parent
        state = os.statvfs(where)
        # What a dead run left is cleared before anything is copied, so it counts as room.
        return state.f_bavail * state.f_frsize + sum(map(_tree_bytes, self.temporaries()))

    def temporaries(self) -> list[Path]:
        """Directories that a run is filling or removing, or was when it died."""
        return [self.store / name for name in self._listed() if name.startswith((_INCOMING, _OUTGOING))]

    def _listed(self) -> list[str]:
        try:
            return sorted(os.listdir(self.store))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise VoicesError(f"the store {self.store} cannot be read: {_reason(error)}") from error

    def _cached(self, path: str) -> Adapter | Broken:
        if path not in self._read:
            self._read[path] = read_adapter(path)
        return self._read[path]

    # writing

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Make the store if it is missing, and be its only writer: all ``temporaries`` are then those of dead runs."""
        with contextlib.ExitStack() as held:
            try:
                if not self.store.is_dir():
                    self.store.mkdir(parents=True, exist_ok=True)
                    self.store.chmod(0o755)
                held.enter_context(locked(self.store / _LOCK))
            except OSError as error:
                raise VoicesError(f"the store {self.store} cannot be written: {_reason(error)}") from error
            yield

    def reread(self, entries: Iterable[str]) -> None:
        """Forget what these entries held when they were last read."""
        for name in entries:
            self._read.pop(str(self.store / name), None)

    def clear_temporaries(self) -> None:
        """Remove what dead runs left. Only under ``exclusive``."""
        for path in self.temporaries():
            self._remove(path)

    def apply(self, step: Step) -> None:
        """Do one step, whole or not at all. Only under ``exclusive``. Raises VoicesError."""
        target = self.store / step.entry
        try:
            if step.adapter is None:
                self._retire(target)
            else:
                copy = self._copy(step.adapter)
                try:
                    self._put(copy, target, mend=step.action.do == "mend")
                except BaseException:
                    self._remove(copy)
                    raise
            sync_directory(self.store)
        except OSError as error:
            raise VoicesError(
                f"{step.action.line()}: {_reason(error)}; nothing of it was kept, a later run begins it anew"
            ) from error

    def _put(self, copy: Path, target: Path, *, mend: bool) -> None:
        if not mend:
            os.rename(copy, target)
            return
        # Two renames and nothing between them: the standard library cannot exchange two directories in one call.
        aside = self._aside()
        os.rename(target, aside)
        try:
            os.rename(copy, target)
        except BaseException:
            os.rename(aside, target)
            raise
        self._remove(aside)

    def _retire(self, target: Path) -> None:
        aside = self._aside()
        os.rename(target, aside)
        self._remove(aside)

    def _aside(self) -> Path:
        return self.store / f"{_OUTGOING}{secrets.token_hex(8)}"

    def _copy(self, adapter: Adapter) -> Path:
        """A verified and synced copy of ``adapter``'s files in a directory of its own inside the store."""
        copy = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self.store))
        try:
            for file in adapter.files:
                _copy_file(file, copy)
            for folder, _, _ in os.walk(copy):
                os.chmod(folder, 0o755)  # noqa: S103 - the engine may run as another user
                sync_directory(Path(folder))
            found = read_adapter(str(copy))
            if not isinstance(found, Adapter) or found.digest != adapter.digest:
                got = found.digest if isinstance(found, Adapter) else str(found)
                raise VoicesError(
                    f"{adapter.directory} changed while it was copied (planned {adapter.digest}, "
                    f"copied: {got}): nothing of it was kept; run again when nobody writes to it"
                )
        except BaseException:
            self._remove(copy)
            raise
        return copy

    def _remove(self, path: Path) -> None:
        """Remove something that has no entry's name any more. A failure costs disk space only, so it is a warning."""
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            self.warnings.append(f"{path} is left over and could not be removed: {_reason(error)}; remove it by hand")


def _copy_file(file: File, directory: Path) -> None:
    target = directory / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "wb", buffering=0) as stream:
        for piece in pieces_of(file.path):
            _write(handle, piece)
        os.fchmod(handle, 0o444)
        os.fsync(stream.fileno())


def _write(handle: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _reason(error: OSError) -> str:
    return f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)


def _tree_bytes(path: Path) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def converge(desired: Desired, client: StoreClient, *, check: bool) -> Plan:
    """Plan, and unless ``check`` do it. Returns the plan that was made, or done. Raises VoicesError.

    A real run that has something to write plans a second time under the store's lock, because another run may have
    written the same entries while this one waited. Sources and untouched entries are not read again.
    """
    made = plan(desired, client)
    if check or not (made.steps or client.temporaries()):
        return made
    with client.exclusive():
        client.clear_temporaries()
        client.reread(step.entry for step in made.steps)
        made = plan(desired, client)
        for number, step in enumerate(made.steps):
            try:
                client.apply(step)
            except VoicesError as error:
                done = [before.action.line() for before in made.steps[:number]]
                raise VoicesError(f"{error}" + (f" (done before: {'; '.join(done)})" if done else "")) from error
    return made
