"""Who holds the store's lock, for the message of a run that waits for it in vain."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from .times import iso_utc


def sign(handle: int) -> None:
    """Write who holds the lock into its file. It is for a message only: a full disk does not stop the holder."""
    text = f"pid {os.getpid()} of uid {os.geteuid()} on {os.uname().nodename} since {iso_utc(time.time())}"
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def held_by(lock: Path) -> str:
    """What the holder wrote; only true while the lock is held."""
    try:
        return lock.read_text(errors="replace").strip()[:200] or "a run that did not sign"
    except OSError:
        return "a run that cannot be read"
