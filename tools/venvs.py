"""Make the virtual environments under var/venv/, each exactly its lock under requirements/.

usage: tools/python.sh tools/venvs.py NAME [NAME ...]     (controller, host, engine-cpu, dev, resolver)

A stamp inside each environment, written last, names the lock's digest, the interpreter and the place: while it agrees,
nothing is done. A missing or disagreeing stamp (a new lock, a removed Python, a killed installation, a moved clone) has
the environment made again. PYTHON and ENGINE_PYTHON name interpreters; see interpreters.py for the choice without them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from installer import InstallFailed, child, install
from interpreters import Interpreter, NoInterpreter, Search, Wish, probe

ROOT = Path(__file__).resolve().parent.parent
VAR = ROOT / "var"
GIB = 2**30
# These end up in #! lines, PATH, supervisord.conf (%), Jinja templates and comma separated lists of ansible.cfg.
BAD_IN_PATH = " \t\n:;,%$&|<>()[]{}*?!#\"'`\\"


class SetupError(Exception):
    """The set-up cannot go on; the text names the step and the fix."""


@dataclass(frozen=True)
class Environment:
    """One environment: what it needs on disk (measured on Linux, with some room), and how pip is run for it."""

    name: str
    needs_bytes: int
    wish: Wish = field(default_factory=Wish)
    options: tuple[str, ...] = ("--require-hashes",)

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return VAR / "venv" / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin/python"

    @property
    def lock(self) -> Path:
        """What it consists of."""
        return ROOT / "requirements" / f"{self.name}.txt"

    @property
    def stamp(self) -> Path:
        """What it was made from."""
        return self.directory / ".made-from.json"

    @property
    def variable(self) -> str:
        """The variable that names its interpreter."""
        return "ENGINE_PYTHON" if self.name.startswith("engine") else "PYTHON"


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("controller", GIB // 4),
        Environment("host", GIB // 4, Wish(shared=True)),
        # The CPU build of torch is most often at hand for 3.11. No hashes: see requirements/engine-cpu.in.
        Environment("engine-cpu", 3 * GIB, Wish(((3, 11), (3, 12), (3, 13)), shared=True), ("--no-deps",)),
        Environment("dev", GIB // 2),
        Environment("resolver", GIB // 4),
    )
}


def stamp_of(environment: Environment, python: str, version: str) -> dict[str, str]:
    """What an environment is made from. ``version`` has no patch level: a security update keeps the environment."""
    return {
        "lock": hashlib.sha256(environment.lock.read_bytes()).hexdigest(),
        "python": python,
        "version": version,
        "directory": str(environment.directory),
    }


def outdated(environment: Environment) -> str | None:
    """Why the environment has to be made (again), or None when it is what the lock says."""
    try:
        stamp = json.loads(environment.stamp.read_text())
        wanted = stamp_of(environment, stamp["python"], stamp["version"])
    except (FileNotFoundError, NotADirectoryError):
        return "new" if not environment.directory.exists() else "an installation was not finished"
    except (ValueError, KeyError, TypeError):
        return "its stamp is unreadable"
    if stamp.get("lock") != wanted["lock"]:
        return "its lock changed"
    if stamp.get("directory") != wanted["directory"]:
        return f"it was made for {stamp.get('directory')}"
    named = os.environ.get(environment.variable)
    if named and (found := _named(environment)).path != stamp["python"]:
        return f"{environment.variable}={named} is {found.path}"
    if _version_of(environment.python) != stamp["version"]:
        return f"its Python {stamp['version']} ({stamp['python']}) is gone or another"
    return None


def make(environment: Environment, why: str, search: Search, lock_handle: int) -> None:
    """Make the environment from nothing. Raises SetupError, InstallFailed, NoInterpreter, OSError."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"set-up: {environment.name}: {text} ({time.monotonic() - began:.0f} s)", flush=True)

    if environment.directory.is_symlink():
        # venv --clear would empty what the link points to, which need not be ours.
        raise SetupError(
            f"{environment.name}: {environment.directory} is a link to {environment.directory.readlink()}, which the"
            " set-up would empty. Remove the link."
        )
    free = shutil.disk_usage(VAR).free
    if free < environment.needs_bytes:
        raise SetupError(
            f"{environment.name}: {free / GIB:.1f} GiB are free at {VAR},"
            f" it needs {environment.needs_bytes / GIB:g} GiB. Free some, or make var/ a link to a larger disk."
        )
    named = os.environ.get(environment.variable)
    interpreter = _named(environment) if named else search.best(environment.name, environment.wish)
    print(f"set-up: {environment.name}: {why}; Python {interpreter.dotted} ({interpreter.path})", flush=True)
    environment.stamp.unlink(missing_ok=True)
    temporary = VAR / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    _make_empty(environment, interpreter, temporary, lock_handle)
    install(
        environment.python,
        environment.lock,
        options=environment.options,
        log=VAR / "log" / f"pip-{environment.name}.log",
        temporary=temporary,
        root=ROOT,
        lock_handle=lock_handle,
        say=say,
    )
    half = environment.stamp.with_suffix(".half")
    half.write_text(json.dumps(stamp_of(environment, interpreter.path, interpreter.dotted), indent=1) + "\n")
    half.replace(environment.stamp)
    say("done")


def _make_empty(environment: Environment, interpreter: Interpreter, temporary: Path, lock_handle: int) -> None:
    argv = [interpreter.path, "-I", "-m", "venv", "--clear", str(environment.directory)]
    with child(argv, temporary, lock_handle) as venv:
        output = venv.stdout.read() if venv.stdout else ""
    if venv.returncode != 0:
        last = "\n".join(f"  {line}" for line in output.strip().splitlines()[-5:])
        raise SetupError(f"{environment.name}: {interpreter.path} could not make {environment.directory}:\n{last}")


def _named(environment: Environment) -> Interpreter:
    """The interpreter that PYTHON or ENGINE_PYTHON names. Raises SetupError when it cannot be used."""
    named = os.environ[environment.variable]
    found = probe(named)
    if isinstance(found, str):
        raise SetupError(f"{environment.name}: {environment.variable}={named} {found}")
    if not environment.wish.takes(found):
        versions = ", ".join(".".join(map(str, version)) for version in environment.wish.order)
        raise SetupError(
            f"{environment.name}: {environment.variable}={named} is Python {found.dotted}, it needs one of {versions}"
        )
    return found


def _version_of(python: Path) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        run = subprocess.run([str(python), "-I", "-S", "-c", code], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None


@contextlib.contextmanager
def alone() -> Iterator[int]:
    """Hold the set-up's lock, waiting for another set-up in this clone. Yields the lock's file handle."""
    VAR.mkdir(exist_ok=True)
    with open(os.open(VAR / ".setup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"set-up: waiting for another set-up here (process {stream.read().strip() or '?'})", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        stream.truncate()
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield stream.fileno()


def refuse_path(root: Path) -> None:
    """Refuse a clone whose path breaks #! lines and configuration files later, far from the cause."""
    bad = sorted(set(str(root)) & set(BAD_IN_PATH))
    if bad:
        raise SetupError(f"the clone's path {str(root)!r} contains {', '.join(map(repr, bad))}: move it elsewhere.")


def run(names: list[str]) -> None:
    """Bring the named environments up to date. Raises what make() raises."""
    refuse_path(ROOT)
    wanted = [ENVIRONMENTS[name] for name in names]
    if not any(outdated(environment) for environment in wanted):
        return
    # What others may have to run (a service user, when root sets up) must be readable whatever the umask here.
    os.umask(0o022)
    named = (os.environ[name] for name in ("ENGINE_PYTHON", "PYTHON") if os.environ.get(name))
    search = Search(ROOT, tuple(named))
    with alone() as lock_handle:
        for environment in wanted:
            # Asked again under the lock: another set-up may have made it meanwhile.
            if why := outdated(environment):
                make(environment, why, search, lock_handle)


def main(argv: list[str]) -> int:
    """Exit status: 0 made or up to date, 1 failed, 2 usage."""
    unknown = [name for name in argv if name not in ENVIRONMENTS]
    if unknown or not argv:
        print(f"usage: venvs.py NAME [NAME ...], of {', '.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    try:
        run(argv)
    except PermissionError as error:
        owner = _owner(Path(str(error.filename))) if error.filename else "?"
        print(f"set-up: {error} (owner: {owner}).\n  Run as that user, or remove var/ as that user.", file=sys.stderr)
        return 1
    except (SetupError, InstallFailed, NoInterpreter, OSError) as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


def _owner(path: Path) -> str:
    while not path.exists() and path != path.parent:
        path = path.parent
    uid = path.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
