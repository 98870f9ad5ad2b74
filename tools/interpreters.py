"""Find the Python that an environment is made with: one that really runs, is new enough and can make environments.

A name on PATH proves nothing: a version manager's shim may be there for a version that is not active, and Debian's
python3 comes without ensurepip. So every candidate is run once and asked.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

OLDEST = (3, 11)
NAMES = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
EXTRA_DIRECTORIES = ("/usr/local/bin", "/usr/bin")
PROBE_TIMEOUT_S = 20

# _base_executable: for an activated virtual environment or a shim, the interpreter behind it.
_PROBE = """
import json, os, sys
try:
    import ensurepip, venv
    able = True
except ImportError:
    able = False
path = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({"path": path, "version": sys.version_info[:2], "able": able, "library": os.__file__}))
"""


class NoInterpreter(Exception):
    """No candidate fits; the text says what each one lacked and what to install or to name."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that ran. ``shared``: every user of the machine can run it."""

    path: str
    version: tuple[int, int]
    shared: bool

    @property
    def dotted(self) -> str:
        """The version as people write it: ``3.11``."""
        return ".".join(map(str, self.version))


@dataclass(frozen=True)
class Wish:
    """Which interpreter an environment wants.

    ``order`` lists the versions it wants, best first (empty: the newest). ``shared``: its programs may be run by a
    service user, so that as root an interpreter below somebody's private home comes last.
    """

    order: tuple[tuple[int, int], ...] = ()
    shared: bool = False

    def rank(self, found: Interpreter, as_root: bool) -> tuple[int, int, int]:
        """Lower is better."""
        private = 0 if found.shared else 1
        version = self.order.index(found.version) if self.order else -found.version[1]
        return (private if self.shared and as_root else 0, version, private)

    def takes(self, found: Interpreter) -> bool:
        """Whether the version is among the wanted ones."""
        return not self.order or found.version in self.order


@dataclass
class Search:
    """The interpreters of this machine, each candidate run once."""

    root: Path
    named: tuple[str, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict)
    _found: list[Interpreter] | None = None

    def all(self) -> list[Interpreter]:
        """Every interpreter that runs, without duplicates, in the order of PATH."""
        if self._found is None:
            found: dict[str, Interpreter] = {}
            for candidate in (*self.named, *self._candidates()):
                result = probe(candidate)
                if isinstance(result, Interpreter):
                    found.setdefault(os.path.realpath(result.path), result)
                else:
                    self.rejected[candidate] = result
            self._found = list(found.values())
        return self._found

    def best(self, name: str, wish: Wish) -> Interpreter:
        """The best interpreter for environment ``name``. Raises NoInterpreter."""
        usable = [found for found in self.all() if wish.takes(found)]
        if not usable:
            versions = ", ".join(".".join(map(str, version)) for version in wish.order) or "3.11 or newer"
            raise NoInterpreter(no_interpreter_message(name, versions, self.rejected, self.all()))
        return min(usable, key=lambda found: wish.rank(found, os.geteuid() == 0))

    def _candidates(self) -> Iterator[str]:
        own = self.root / "var"
        directories = dict.fromkeys([*os.environ.get("PATH", "").split(os.pathsep), *EXTRA_DIRECTORIES])
        for name in NAMES:
            for directory in directories:
                path = Path(directory) / name
                if directory and own not in path.parents and os.access(path, os.X_OK):
                    yield str(path)


def probe(executable: str) -> Interpreter | str:
    """Run ``executable`` once: what it is, or why it cannot be used."""
    try:
        run = subprocess.run(
            [executable, "-I", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    try:
        answer = json.loads(run.stdout)
        version = (int(answer["version"][0]), int(answer["version"][1]))
    except (ValueError, TypeError, KeyError, IndexError):
        return "does not run" + (f" ({run.stderr.strip().splitlines()[0]})" if run.stderr.strip() else "")
    if version < OLDEST:
        return "is Python {}.{}".format(*version)
    if not answer["able"]:
        return "has no venv and ensurepip (Debian, Ubuntu: apt install python{}.{}-venv)".format(*version)
    return Interpreter(answer["path"], version, _for_everybody(answer["path"]) and _for_everybody(answer["library"]))


def no_interpreter_message(name: str, versions: str, rejected: dict[str, str], found: list[Interpreter]) -> str:
    """The refusal for environment ``name``: what was found, and how to name another."""
    variable = "ENGINE_PYTHON" if name.startswith("engine") else "PYTHON"
    lines = [f"{name}: found no interpreter for it; it needs Python {versions}"]
    lines += [f"  {path} {why}" for path, why in rejected.items()]
    lines += [f"  {one.path} is Python {one.dotted}" for one in found]
    return "\n".join([*lines, f"  Install one, or name one: make {variable}=/path/to/python"])


def _for_everybody(path: str) -> bool:
    """Whether any user can read ``path``: its own mode, and that of every directory above it."""
    real = Path(os.path.realpath(path))
    return bool(real.stat().st_mode & 0o004) and all(parent.stat().st_mode & 0o001 for parent in real.parents)
