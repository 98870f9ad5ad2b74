"""File effects that are either whole or not there. The only place where modules write text files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.1


def read_text(path: Path) -> str | None:
    """The file's text, or None when there is no such file (or no such directory)."""
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_text(path: Path, text: str, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Replace ``path`` atomically: readers see the old text or the new, also after a kill or a full disk.

    The temporary file has ``mode`` before the first byte is written, so a secret is never readable by others. ``owner``
    (uid, gid) is who the file belongs to afterwards, which takes root; unset, root leaves it to whom it belonged.
    """
    if owner is None and os.geteuid() == 0 and path.exists():
        owner = (path.stat().st_uid, path.stat().st_gid)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as stream:
            os.fchmod(stream.fileno(), mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), *owner)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename in ``directory`` survive a power loss."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked_within(path: Path, wait_s: float, make_directory: Callable[[], object]) -> Iterator[int]:
    """Like ``locked``, but raises TimeoutError after ``wait_s`` seconds; gives the lock's file descriptor.

    The holder may remove the lock's directory, as an absent service does: ``make_directory`` then makes it again, and a
    lock on a file that is no longer the one at ``path`` does not count.
    """
    deadline = time.monotonic() + wait_s
    while True:
        make_directory()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _try_lock(handle, path):
                yield handle
                return
        finally:
            os.close(handle)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was held for {wait_s:g} s")
        time.sleep(_POLL_S)


def _try_lock(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(handle).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if missing). The kernel frees it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
