"""Run pip for a lock: show how far it is, keep its whole output in a log, and say what to do when it fails."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

# A line every ten seconds in the first minute, every thirty after: never silent, never hundreds of lines.
QUIET_S, LATER_QUIET_S = 10, 30

# What a person's own pip settings must not change here: where packages go.
_FOREIGN = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_NO_DEPS", "PIP_REQUIREMENT")

# (what pip printed, what to do), most telling first.
_HELP = (
    (
        r"No space left on device|Disk quota exceeded",
        "The disk is full. Free space at {root}/var, or make var/ a link to a larger disk.",
    ),
    (
        r"NewConnectionError|ConnectionError|Connection refused|ConnectTimeout|Read timed out|name resolution"
        r"|Network is unreachable|ProxyError|SSLError",
        "pip did not reach its package index. Check the network and HTTPS_PROXY, or set PIP_INDEX_URL to a mirror.",
    ),
    (
        r"(No matching distribution found for|Cannot install) torch==",
        "pip found no CPU build of torch for this Python and machine. Point PIP_EXTRA_INDEX_URL at PyTorch's CPU wheel"
        " index, or PIP_FIND_LINKS at a directory with the wheel; make ENGINE_PYTHON=... takes another Python.",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "The index serves other files than the lock was made from. Try another index; do not remove the hash.",
    ),
    (
        r"No matching distribution found|Could not find a version that satisfies",
        "The index has no build of that package for this Python and machine. Try another Python (make PYTHON=...,"
        " ENGINE_PYTHON=... for the engine) or another index (PIP_INDEX_URL).",
    ),
)


class InstallFailed(Exception):
    """pip failed; the text holds its last lines, where its whole output is, and what to do."""


@dataclass
class Progress:
    """How far pip is, read off its output."""

    total: int
    fetched: int = 0
    installing: int = 0
    now: str = ""

    def take(self, line: str) -> None:
        """Take one line of pip's output into account."""
        text = line.strip()
        if text.startswith("Collecting "):
            self.fetched += 1
            self.now = text.split()[1]
        elif text.startswith("Downloading "):
            self.now = text.removeprefix("Downloading ").rsplit("/", 1)[-1]
        elif text.startswith("Installing collected packages:"):
            self.installing = text.count(",") + 1

    def text(self, installed: int) -> str:
        """One line for a person; ``installed`` counts the packages that are in place."""
        if self.installing:
            return f"installing, {min(installed, self.installing)} of {self.installing} packages"
        return f"fetching, package {self.fetched} of at most {self.total}" + (f": {self.now}" if self.now else "")


def requirements(lock: Path) -> list[str]:
    """The pinned requirements of a lock, without hashes and comments."""
    return [line.split(" \\")[0].strip() for line in lock.read_text().splitlines() if re.match(r"[a-zA-Z0-9]", line)]


def pip_environment(temporary: Path) -> dict[str, str]:
    """The environment for pip: the person's own, except what would put packages or temporary files elsewhere."""
    kept = {k: v for k, v in os.environ.items() if k not in _FOREIGN and not k.startswith("PYTHON")}
    # Beside the environment: /tmp is small on some machines, and a wheel of 200 MB is unpacked there.
    return {**kept, "TMPDIR": str(temporary), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@contextlib.contextmanager
def child(argv: list[str], temporary: Path, lock_handle: int) -> Iterator[subprocess.Popen[str]]:
    """Run a program of the set-up, its output on one pipe, in a process group that ends when this process is told to.

    Its standard input is the set-up's lock file (nothing is read from it): the lock is so held until the program and
    all that it started have ended, even if this process is killed.
    """
    with subprocess.Popen(
        argv,
        stdin=lock_handle,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=pip_environment(temporary),
        start_new_session=True,
    ) as process:
        previous = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            yield process
            process.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def install(
    python: Path,
    lock: Path,
    *,
    options: tuple[str, ...],
    log: Path,
    temporary: Path,
    root: Path,
    lock_handle: int,
    say: Callable[[str], None],
) -> None:
    """Install ``lock`` with ``python``'s pip. Raises InstallFailed."""
    argv = [str(python), "-I", "-m", "pip", "install", "--progress-bar", "off", "--only-binary", ":all:"]
    argv += [*options, "--requirement", str(lock)]
    progress = Progress(total=len(requirements(lock)))
    tail: deque[str] = deque(maxlen=400)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as transcript, child(argv, temporary, lock_handle) as pip, _shown(progress, python, say):
        for line in pip.stdout or ():
            transcript.write(line)
            tail.append(line.rstrip())
            progress.take(line)
    if pip.returncode != 0:
        raise InstallFailed(failure_message(lock.stem, list(tail), log, root, pip.returncode))


def failure_message(name: str, tail: list[str], log: Path, root: Path, code: int) -> str:
    """What pip said last of environment ``name``, its log, and the fix."""
    text = "\n".join(tail)
    fix = next((advice for pattern, advice in _HELP if re.search(pattern, text)), "See the log for what pip did.")
    errors = [line for line in tail if line.startswith("ERROR")][-4:] or [line for line in tail if line][-6:]
    lines = [
        f"{name}: pip failed (exit status {code})",
        *(f"  {line}" for line in errors),
        f"  Its whole output: {log}",
    ]
    return "\n".join([*lines, f"  {fix.format(root=root)}"])


@contextlib.contextmanager
def _shown(progress: Progress, python: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Say now and then how far pip is."""
    done = threading.Event()

    def tick() -> None:
        began = time.monotonic()
        while not done.wait(QUIET_S if time.monotonic() - began < 60 else LATER_QUIET_S):
            say(progress.text(sum(1 for _ in python.parent.parent.glob("lib/python*/site-packages/*.dist-info"))))

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
