"""The directory of a Compose project: compose.yaml, the last healthy one, and the lock. All of its file effects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .compose import FILE
from .compose_state import sha256
from .files import locked_within, read_text, write_text
from .plan import VoicesError

PREVIOUS = f"{FILE}.previous"
_WRITTEN = ".written"
_HEALTHY = ".healthy"
_LOCK = ".lock"
_STATE = (FILE, PREVIOUS, _WRITTEN, _HEALTHY)


class ProjectFiles:
    """One project's directory.

    ``.written`` holds the digests of the last two texts that this module wrote, ``.healthy`` that of the text under
    which a run last saw the project healthy.
    """

    def __init__(self, project: str, directory: str) -> None:
        self.project = project
        self.directory = Path(directory)
        self.file = self.directory / FILE
        self.previous = self.directory / PREVIOUS

    def text(self) -> str | None:
        """compose.yaml, or None."""
        return read_text(self.file)

    def previous_text(self) -> str | None:
        """The compose.yaml under which the project was last healthy before its last change, or None."""
        return read_text(self.previous)

    def written(self) -> tuple[str, ...]:
        """Digests of the texts that this module wrote last."""
        return tuple((read_text(self.directory / _WRITTEN) or "").split())

    def known_healthy(self) -> str:
        """Digest of the text under which a run last saw the project healthy, or empty."""
        return (read_text(self.directory / _HEALTHY) or "").strip()

    def note_healthy(self, content: str) -> None:
        """Note that the project is healthy under this text."""
        if self.known_healthy() != sha256(content):
            write_text(self.directory / _HEALTHY, f"{sha256(content)}\n", 0o644)

    def leftover(self) -> bool:
        """Whether anything is there that this module made."""
        return any((self.directory / name).exists() for name in _STATE)

    def write(self, content: str, *, keep_previous: bool, private: bool) -> None:
        """Make ``content`` the compose.yaml; each step is whole, and after a kill at any point the next run is right.

        The digest comes before the text: the other way round, a kill would make our own text look edited by hand.
        ``private``: a secret stands in it, so that only its owner may read it.
        """
        mode = 0o600 if private else 0o644
        before = self.text()
        if keep_previous and before is not None:
            write_text(self.previous, before, self.file.stat().st_mode & 0o777)
        written = self.written()
        ours = [] if before is None else [sha256(before)] if sha256(before) in written else written[-1:]
        known = [*ours, sha256(content)]
        write_text(self.directory / _WRITTEN, "".join(f"{one}\n" for one in dict.fromkeys(known)), 0o644)
        write_text(self.file, content, mode)

    def sweep(self) -> None:
        """Remove the temporary files of runs that were killed. Only under the lock."""
        for name in _STATE:
            for path in self.directory.glob(f".{name}.*"):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all that this module made, the lock last, and the directory when nothing else is in it."""
        self.sweep()
        for name in (*_STATE, _LOCK):
            (self.directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    @contextlib.contextmanager
    def lock(self, wait_s: float) -> Iterator[int]:
        """Be the only run that changes this project; gives the lock's file descriptor. The kernel frees it on death.

        Raises VoicesError after ``wait_s`` seconds.
        """
        path = self.directory / _LOCK
        make = partial(self.directory.mkdir, parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            try:
                handle = held.enter_context(locked_within(path, wait_s, make))
            except TimeoutError:
                raise VoicesError(
                    f"project {self.project}: another run has held {path} for {wait_s:g} s: wait for it to end, "
                    "or end it. Nothing was changed"
                ) from None
            yield handle
