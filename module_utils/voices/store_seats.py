"""What the other seats of a host have in their engine.yaml: paths that they will load at their next start."""

from __future__ import annotations

from pathlib import Path

from .engine_directory import EngineDirectory
from .plan import VoicesError


def persisted_elsewhere(seats_dir: str, seat: str) -> list[str]:
    """The adapter paths in the engine.yaml of every seat below ``seats_dir`` but ``seat``.

    A seat that left the inventory may run on, so the directory is asked and not the inventory. Raises VoicesError when
    a file cannot be read: then nobody knows what is in use.
    """
    found: list[str] = []
    for path in sorted(Path(seats_dir).glob("*/engine/engine.yaml")):
        if path.parents[1].name == seat:
            continue
        try:
            read = EngineDirectory(str(path)).read_engine_file()
        except OSError as error:
            raise VoicesError(f"{path} cannot be read: {error.strerror}") from error
        found += read[1].values() if read else []
    return found
