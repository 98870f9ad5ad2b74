"""The adapter store on disk: what it holds, and the only code that writes into it.

An entry appears and disappears in one rename, so that no reader ever sees half of one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .adapter_files import Adapter, Broken, File, pieces_of, read_adapter
from .files import locked, sync_directory
from .plan import VoicesError
from .store import Desired, Plan, Step, entry_name, plan, voice_of

# Names that begin with a dot and hold no @, so that nothing can take them for an entry.
_INCOMING, _OUTGOING, _LOCK = ".incoming-", ".outgoing-", ".lock"


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
