"""Answers about an engine's source, kept with what they rest on, so that a changed engine is asked again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .engine_source import Source
from .files import read_text, write_text

_FORMAT = 1
"""Raise it with every change of what an answer says or of how it is found: older entries are then asked again."""
_MOST_FILES = 5_000


class Cache:
    """One directory; ``None`` keeps nothing. ``engine`` is an image's id, or the place of a source that has none."""

    def __init__(self, directory: Path | None, engine: str, *, write: bool) -> None:
        self.directory = directory
        self.engine = engine
        self.write = write
        self.hits = 0

    def answer(
        self, question: Mapping[str, Any], files: Callable[[str], str], ask: Callable[[], tuple[Any, Mapping[str, str]]]
    ) -> Any:
        """The kept answer to ``question`` while all that it rests on is unchanged, else that of ``ask``, which is kept.

        ``files`` gives the sha256 of a file of the source now ("" for none), ``ask`` the answer and those it rests on.
        """
        if self.directory is None:
            return ask()[0]
        asked = {"format": _FORMAT, "engine": self.engine, "question": question}
        path = self.directory / f"{hashlib.sha256(_canonical(asked)).hexdigest()[:24]}.json"
        kept = _read(path)
        if kept is not None and kept["asked"] == json.loads(_canonical(asked)) and _same(kept["files"], files):
            self.hits += 1
            return kept["answer"]
        answer, used = ask()
        if self.write:
            # Without an image's id an answer rests on the files that were read, and on those that were not there.
            text = json.dumps({"asked": asked, "files": dict(used), "answer": answer}, sort_keys=True, indent=1)
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True, mode=0o700)
            write_text(path, f"{text}\n")
        return answer


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _read(path: Path) -> dict[str, Any] | None:
    """An entry; None when there is none or it is damaged, which asking again mends."""
    try:
        found = json.loads(read_text(path) or "null")
    except (ValueError, RecursionError, IsADirectoryError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict) or len(found["files"]) > _MOST_FILES:
        return None
    well = "answer" in found and isinstance(found.get("asked"), dict)
    return found if well and all(isinstance(one, str) for one in found["files"].values()) else None


def _same(kept: Mapping[str, str], files: Callable[[str], str]) -> bool:
    return all(files(path) == digest for path, digest in kept.items())


def file_digest(source: Source) -> Callable[[str], str]:
    """The sha256 of a source's file, "" when it is not there."""

    def digest(path: str) -> str:
        content = source.read(path)
        return "" if content is None else hashlib.sha256(content).hexdigest()

    return digest
