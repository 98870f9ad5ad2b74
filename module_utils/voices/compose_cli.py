"""The Compose program: what it makes of a file (reads only), and ``up``. The only place that starts it."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

from .compose_config import Desired, parse_desired, parse_hashes
from .plan import VoicesError

OLDEST = (2, 20)
"""The oldest Compose that this was run with (2.20.1, 2.24.7 and 2.40.3 were)."""

_READ_TIMEOUT_S = 60.0
_VERSION = re.compile(r"v?(\d+)\.(\d+)\S*")
# All that Compose sees of the module's environment: a file must mean the same whoever runs the play.
_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "XDG_RUNTIME_DIR", "DOCKER_CONFIG")
# Lines such as " Container voices-tiny-engine-1  Starting", and what pulls print.
_PROGRESS = re.compile(
    r"\s*(Container|Network|Volume|Image|Service) .*\s(\w+ing|\w+ed|Recreate|Healthy|Skipped.*)( [\d.]+s)?\s*$"
)


@dataclass(frozen=True)
class UpResult:
    """How ``up`` ended: exit status, what it said besides progress, and whether it was ended for taking too long."""

    rc: int
    errors: str
    timed_out: bool = False
    seconds: float = 0.0


class Compose:
    """Compose for one project on one engine."""

    def __init__(self, argv: Sequence[str], docker_host: str, project: str, directory: str) -> None:
        self.argv = list(argv)
        self.project = project
        self.directory = directory
        self.environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        self.environment["DOCKER_HOST"] = docker_host

    def desired(self, content: str) -> Desired:
        """The project that ``content`` asks for. Reads only. Raises VoicesError for Compose missing, old or unhappy."""
        with ThreadPoolExecutor(3) as pool:
            version = pool.submit(self._run, ["version", "--short"])
            config = pool.submit(self._config, content, "--format", "json")
            hashes = pool.submit(self._config, content, "--hash", "*")
            self._check_version(version.result())
            done = config.result()
            if done.returncode == 0:
                return parse_desired(self.project, content, done.stdout, self._checked(hashes.result()))
        raise VoicesError(
            f"project {self.project}: Compose does not take the content as a compose.yaml: {_tidy(done.stderr)}. "
            "Nothing was changed"
        )

    def hashes(self, text: str) -> dict[str, str]:
        """Service to hash of another text; empty when Compose does not take it."""
        done = self._config(text, "--hash", "*")
        return parse_hashes(done.stdout) if done.returncode == 0 else {}

    def up(
        self, file: str, *, wait_s: float | None, stop_s: int, pull: str, limit_s: float | None, lock: int
    ) -> UpResult:
        """``up --detach``, with ``--wait`` for health unless ``wait_s`` is None.

        ``limit_s``: seconds after which it is ended (None: a pull may take any time). It inherits the lock, so that the
        project stays locked when the module is killed and Compose runs on.
        """
        arguments = f"up --detach --no-build --quiet-pull --timeout {stop_s} --pull {pull}".split()
        if wait_s is not None:
            arguments += ["--wait", "--wait-timeout", str(max(1, math.ceil(wait_s)))]
        arguments = ["--ansi", "never", *self._project(), "--file", file, *arguments]
        began = time.monotonic()
        # A file, not a pipe: a Compose whose module was killed would die of a pipe in the middle of a recreate.
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            rc = self._start(arguments, said, limit_s, lock)
            said.seek(0)
            errors = _without_progress(said.read())
        return UpResult(-1 if rc is None else rc, errors, rc is None, time.monotonic() - began)

    # ------------------------------------------------------------------------------------------------------ inside

    def _project(self) -> list[str]:
        return ["--project-name", self.project, "--project-directory", self.directory]

    def _config(self, content: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run([*self._project(), "--file", "-", "config", *arguments], content)

    def _run(
        self,
        arguments: Sequence[str],
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.argv, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                env=self.environment,
                cwd="/",
                timeout=_READ_TIMEOUT_S,
                check=False,
            )
        except OSError as error:
            raise VoicesError(self._absent(f"{self.argv[0]}: {error.strerror}")) from error

    def _start(self, arguments: Sequence[str], said: IO[str], limit_s: float | None, lock: int) -> int | None:
        """The exit status, or None when it was ended after ``limit_s`` seconds."""
        try:
            return subprocess.run(
                [*self.argv, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=self.environment,
                cwd="/",
                timeout=limit_s,
                pass_fds=(lock,),
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            raise VoicesError(self._absent(f"{self.argv[0]}: {error.strerror}")) from error

    def _absent(self, why: str) -> str:
        return (
            f"project {self.project}: Compose does not run here as `{' '.join(self.argv)}`: {why}. Install the Compose "
            "plugin of Docker (docker-compose-plugin or docker-compose-v2), have this play do it "
            "(docker_host_manage: true), or name its command in `compose`. Nothing was changed"
        )

    def _check_version(self, done: subprocess.CompletedProcess[str]) -> None:
        said = done.stdout.strip()
        found = _VERSION.fullmatch(said)
        if done.returncode != 0 or not found:
            raise VoicesError(
                self._absent(f"`version --short` ended with {done.returncode}: {_tidy(done.stderr or said)}")
            )
        if (int(found[1]), int(found[2])) < OLDEST:
            raise VoicesError(
                f"project {self.project}: Compose is {said}, and {'.'.join(map(str, OLDEST))} or later is needed: "
                "install a newer Compose plugin. Nothing was changed"
            )

    def _checked(self, done: subprocess.CompletedProcess[str]) -> str:
        if done.returncode != 0:
            raise VoicesError(
                f"project {self.project}: `{' '.join(self.argv)} config --hash` ended with {done.returncode}: "
                f"{_tidy(done.stderr)}"
            )
        return done.stdout


def _tidy(text: str) -> str:
    """What a program said, on one line, as far as a person can read it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-8:]) or "it said nothing"


def _without_progress(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _PROGRESS.fullmatch(line)]
    return "\n".join(lines[-10:])
