"""Put a tiny carrier and tiny voices where the example fleet's inventory expects the real ones.

usage: python -m tests.support.fleet_files claim DIRECTORY
       python -m tests.support.fleet_files make DIRECTORY CARRIER VOICE ...
       python -m tests.support.fleet_files remove DIRECTORY

A DIRECTORY that exists and was not claimed here is refused: on a machine of the fleet the real models lie there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.support.tiny_carrier import write_adapter, write_carrier

MARK = ".made-for-tests"


def claim(directory: Path) -> None:
    """Make ``directory`` ours for a test."""
    mark = directory / MARK
    if directory.exists() and not mark.exists():
        raise SystemExit(f"{directory} exists and was not made for tests: this scenario does not run on a fleet host")
    directory.mkdir(parents=True, exist_ok=True)
    mark.touch()


def make(directory: Path, carrier: str, voices: list[str]) -> None:
    """Write ``directory/carrier`` and ``directory/voice-adapters/VOICE``."""
    claim(directory)
    write_carrier(directory / carrier, positions=32768)
    for voice in voices:
        write_adapter(directory / "voice-adapters" / voice, voice)


def remove(directory: Path) -> None:
    """Remove what ``make`` made, and the parent when that leaves it empty."""
    if (directory / MARK).exists():
        shutil.rmtree(directory)
        if not any(directory.parent.iterdir()):
            directory.parent.rmdir()


def main(verb: str, directory: str, *rest: str) -> None:
    """Do what the command line says."""
    if verb == "claim":
        claim(Path(directory))
    elif verb == "make":
        make(Path(directory), rest[0], list(rest[1:]))
    elif verb == "remove":
        remove(Path(directory))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
