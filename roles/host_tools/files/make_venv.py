"""Make a virtual environment from a lock, beside the one in use, and put it in that one's place in one step.

Run by the Python that the environment is made with; JSON on standard input: ``venv`` (the path that others use, a link)
and ``lock`` (the text of a requirements file, every requirement with a hash). Prints "made DIRECTORY", or "kept
DIRECTORY" when another run made the same meanwhile. Exit status 1 with the reason on standard error: the link is as it
was. Killed at any instant it leaves at most a directory without a stamp, which the next making removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STAMP = ".made-from"
# A person's or a machine's pip settings may name an index, a proxy or a certificate, but not another place or less.
FOREIGN = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_NO_DEPS", "PIP_REQUIREMENT", "PIP_DRY_RUN")
UNREACHED = "ConnectionError|NewConnection|Connection refused|Timeout|timed out|name resolution|unreachable|Proxy|SSL"
HINTS = (
    ("No space left|quota exceeded", "The disk is full: free space below {parent}."),
    ("HASHES|hashes are required", "The lock and the package index disagree: run make lock, or look at the index."),
    (UNREACHED, "pip did not reach its package index: see index-url, proxy and cert in the host's /etc/pip.conf."),
    ("No matching distribution", "The index has no built package for this Python and machine."),
)


class MakeFailed(Exception):
    """The environment cannot be made; the text says why and what to do."""


def stamp_of(lock: str) -> str:
    """What an environment of this lock, made with this Python, carries: three lines, see look.sh."""
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{hashlib.sha256(lock.encode()).hexdigest()}\n{sys.executable}\n{version}\n"


def is_current(venv: Path, lock: str) -> bool:
    """Whether ``venv`` is a finished environment of this lock and Python, and runs."""
    try:
        stamp = (venv / STAMP).read_text()
        run = subprocess.run([venv / "bin/python", "-I", "-S", "-c", ""], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return stamp == stamp_of(lock) and run.returncode == 0


def run(what: str, argv: list[str], parent: Path) -> None:
    """Run a step. Raises MakeFailed with the end of its output and what to do."""
    environment = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    done = subprocess.run(
        argv,
        env={**environment, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    # Of a connection that was tried again and again, once is enough.
    retries = [line for line in lines if line.startswith("WARNING: Retrying")][-1:]
    told = retries + [line for line in lines if re.match(r"ERROR|Error:", line.strip())] or lines
    hint = next((text for pattern, text in HINTS if re.search(pattern, done.stdout)), "")
    raise MakeFailed("\n".join([f"{what} failed ({done.returncode}):", *told[-6:], hint.format(parent=parent)]).strip())


def make(venv: Path, lock: str) -> Path:
    """Make the environment in a new directory beside ``venv``. Raises MakeFailed, OSError; then nothing is left."""
    directory = Path(tempfile.mkdtemp(prefix=f"{venv.name}.", dir=venv.parent))
    python = str(directory / "bin/python")
    try:
        directory.chmod(0o755)
        run("python -m venv", [sys.executable, "-I", "-m", "venv", str(directory)], venv.parent)
        (directory / "requirements.txt").write_text(lock)
        # Built packages only: a host has no compilers, and no package's own code runs while it is installed.
        pip = [python, "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet"]
        pip += ["--require-hashes", "--only-binary", ":all:", "--requirement", str(directory / "requirements.txt")]
        run("pip install", pip, venv.parent)
        (directory / STAMP).write_text(stamp_of(lock))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


def put_in_place(venv: Path, directory: Path) -> None:
    """Point the link to ``directory``; whoever uses it has the old or the new one at every instant."""
    half = venv.with_name(f".{venv.name}.link")
    half.unlink(missing_ok=True)
    half.symlink_to(directory.name)
    half.replace(venv)


def forget_old(venv: Path) -> None:
    """Remove the environments and half-made ones beside ``venv`` that no running process was started from."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_bytes())
    made_here = re.compile(re.escape(venv.name) + r"\.[a-z0-9_]{8}")  # what mkdtemp adds
    for directory in venv.parent.iterdir():
        if not made_here.fullmatch(directory.name) or directory.is_symlink() or directory.samefile(venv):
            continue
        mark = f"{directory}/".encode()
        if not any(mark in command for command in commands):
            shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    """Exit status: 0 made or kept, 1 failed."""
    wish = json.load(sys.stdin)
    venv, lock = Path(wish["venv"]), str(wish["lock"])
    # A service user may have to run what root makes, whatever the umask here.
    os.umask(0o022)
    try:
        venv.parent.mkdir(parents=True, exist_ok=True)
        with open(venv.with_name(f".{venv.name}.lock"), "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if is_current(venv, lock):
                print(f"kept {venv.resolve()}")
                return 0
            if venv.exists() and not venv.is_symlink():
                raise MakeFailed(f"{venv} is no link that the role made")
            directory = make(venv, lock)
            put_in_place(venv, directory)
            forget_old(venv)
    except (MakeFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"made {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
