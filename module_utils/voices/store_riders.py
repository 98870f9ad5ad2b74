"""The files that ride along with an adapter, such as a README or a gate record, and that may change in its entry.

The digest does not cover them. vLLM reads none of them, so an entry that serves can have them replaced, file by file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from .adapter_files import Adapter, File, pieces_of
from .files import sync_directory


def riders_differ(source: Adapter, entry: Adapter) -> tuple[str, ...]:
    """Names of the files outside the digest that only one of them has, or that differ. Raises OSError, VoicesError."""
    mine, other = _riders(source), _riders(entry)
    return tuple(
        name
        for name in sorted({*mine, *other})
        if name not in mine or name not in other or not _same(mine[name], other[name])
    )


def _riders(adapter: Adapter) -> dict[str, File]:
    return {file.name: file for file in adapter.files if not file.counted}


def _same(one: File, other: File) -> bool:
    if one.bytes != other.bytes:
        return False
    return all(a == b for a, b in zip_longest(pieces_of(one.path), pieces_of(other.path)))


def put_riders(copies: Path, entry: Path, names: Iterable[str]) -> None:
    """Bring ``names`` in ``entry`` to what ``copies`` holds: what it lacks goes, the rest is renamed into its place.

    What goes goes first, because a file may have become a directory of the same name.
    """
    wanted = [name for name in names if (copies / name).is_file()]
    for name in names:
        if name not in wanted:
            _take_away(entry / name, entry)
    folders = {entry}
    for name in wanted:
        target = entry / name
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True)
            for folder in [parent for parent in target.parents if entry in parent.parents]:
                folder.chmod(0o755)  # the engine may run as another user
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        os.rename(copies / name, target)
        folders.add(target.parent)
    for folder in folders:
        sync_directory(folder)


def _take_away(path: Path, entry: Path) -> None:
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a folder that still holds something stays
        for folder in [parent for parent in path.parents if entry in parent.parents]:
            folder.rmdir()
