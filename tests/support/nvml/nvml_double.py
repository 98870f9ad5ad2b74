"""The stand-in for the NVIDIA driver's library: builds it, and puts scenarios before it. See README.md beside this.

python -m tests.support.nvml.nvml_double NAME     prints the variables under which a program sees the scenario NAME
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
HERE = Path(__file__).resolve().parent
SOURCE = HERE / "nvml_double.c"
SCENARIOS = HERE / "scenarios"
SONAME = "libnvidia-ml.so.1"
BUILT = HERE.parents[2] / "var/cache/nvml-double"
_KEYS = {
    "a scenario": {"what", "driver", "errors", "count", "cards"},
    "a card": {
        *("uuid", "name", "total_bytes", "reserved_bytes", "used_bytes", "free_bytes"),
        *("mig", "errors", "processes", "seen"),
    },
    "a process": {"pid", "running", "used_bytes", "kind"},
}
_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]


class NoCompiler(RuntimeError):
    """The double cannot be built here."""


def compiler() -> str:
    """The C compiler. Raises NoCompiler."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    raise NoCompiler(
        "no C compiler (cc, gcc, clang) on PATH, and the tests of the cards build a stand-in for the NVIDIA driver's "
        "library: install gcc and libc6-dev"
    )


def build(directory: Path | None = None) -> Path:
    """The directory of the built library, which is named as the driver's; ``directory``, or one below var/.

    Built anew only when its source is another one. Raises NoCompiler.
    """
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(_FLAGS).encode()).hexdigest()[:16]
    directory = directory or BUILT / digest
    built = directory / f"built-from-{digest}"
    if not built.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as made:
            unfinished = Path(made) / SONAME
            command = [compiler(), *_FLAGS, f"-Wl,-soname,{SONAME}", "-o", str(unfinished), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                raise NoCompiler(f"{shlex.join(command)} failed:\n{done.stderr}")
            unfinished.replace(directory / SONAME)
        built.touch()
    return directory


def scenario(name: str, pids: Mapping[int, int] | None = None) -> dict[str, Any]:
    """The scenario in ``scenarios/NAME.json``; ``pids`` puts real processes in the place of its own."""
    found: dict[str, Any] = json.loads((SCENARIOS / f"{name}.json").read_text())
    for card in found.get("cards", []):
        for process in card.get("processes", []):
            if "pid" in process:
                process["pid"] = (pids or {}).get(process["pid"], process["pid"])
    return found


def write(path: Path, data: Mapping[str, Any]) -> Path:
    """Put a scenario there in one step: a program that reads it meanwhile sees the old one or the new one.

    Raises ValueError for a key that the library does not know, and would not miss.
    """
    _check("a scenario", data)
    for card in data.get("cards", []):
        _check("a card", card)
        for process in card.get("processes", []):
            _check("a process", process)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(json.dumps(data))
    return unfinished.replace(path)


def environment(directory: Path, path: Path | None = None) -> dict[str, str]:
    """The variables under which a new process loads the library in ``directory``, and sees the scenario in ``path``."""
    there = os.environ.get("LD_LIBRARY_PATH", "")
    found = {"LD_LIBRARY_PATH": ":".join([str(directory), *([there] if there else [])])}
    return found | ({"VOICES_NVML_SCENARIO": str(path)} if path else {})


def without_driver(directory: Path) -> dict[str, str]:
    """The variables under which a new process finds no driver, on a machine that has one too: the loader refuses it."""
    (directory / SONAME).write_text("")
    return environment(directory)


def _check(what: str, given: Mapping[str, Any]) -> None:
    if unknown := sorted(set(given) - _KEYS[what]):
        raise ValueError(f"{what} has no {', '.join(unknown)}; known are {', '.join(sorted(_KEYS[what]))}")


@contextmanager
def in_this_process(path: Path) -> Iterator[None]:
    """Let pynvml of this process see the scenario in ``path``.

    A library that is loaded already is what the loader takes for its name; pynvml then loads "libnvidia-ml.so.1" as
    ever.
    """
    ctypes.CDLL(str(build() / SONAME))
    before = os.environ.get("VOICES_NVML_SCENARIO")
    os.environ["VOICES_NVML_SCENARIO"] = str(path)
    try:
        yield
    finally:
        os.environ.pop("VOICES_NVML_SCENARIO")
        if before is not None:
            os.environ["VOICES_NVML_SCENARIO"] = before


if __name__ == "__main__":
    for key, value in environment(build(), SCENARIOS / f"{sys.argv[1]}.json").items():
        print(f"export {key}={shlex.quote(value)}")
