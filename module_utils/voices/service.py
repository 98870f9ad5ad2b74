"""One long-running process under its own supervisord: what is wanted, what is there, and what a plan for it is. Pure.

``service_client`` reads an ``Actual``, ``service_plan`` makes a ``Plan`` and ``service_apply`` carries it out. The
process itself is started and watched by ``service_run.py`` (the wrapper), which reads ``run/launch.json`` and writes
``run/booted.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .plan import Action, VoicesError
from .processes import Identity

MARK = "VOICES_SERVICE"
"""The environment key that every process of a service carries; its value is the service's directory."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ENVIRONMENT_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Spec:
    """The service as wanted. Times are in seconds; ``directory`` is absolute and resolved."""

    name: str
    directory: str
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    config_file: str = ""
    config: Mapping[str, Any] | None = None
    config_ignore: tuple[str, ...] = ()
    health_url: str = ""
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    health_timeout_s: float = 180.0
    start_seconds: int = 30
    start_retries: int = 3
    stop_seconds: int = 20
    supervisord: str = ""
    python: str = ""
    state: str = "started"
    adopt_environment: tuple[str, ...] = ()
    log_max_mib: int = 10
    log_backups: int = 3

    def path(self, *parts: str) -> str:
        """A path below the service's directory."""
        return "/".join((self.directory, *parts))

    @property
    def log(self) -> str:
        """The process's own log."""
        return self.path("log", "service.log")

    def launch(self) -> dict[str, Any]:
        """What the wrapper is told, without the launch's id and without a process to adopt."""
        return {
            "schema": 1,
            "name": self.name,
            "argv": list(self.argv),
            "environment": dict(self.environment),
            "config_file": self.config_file,
            "stop_seconds": self.stop_seconds,
            "log_max_bytes": self.log_max_mib * 1024 * 1024,
            "log_backups": self.log_backups,
        }


@dataclass(frozen=True)
class Booted:
    """The last process that the wrapper started or adopted, as it noted it. ``flags`` are masked."""

    leader: Identity
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    config_file: str = ""
    flags: Mapping[str, Any] | None = None
    config_sha256: str = ""
    adopted: bool = False
    launch_id: str = ""


@dataclass(frozen=True)
class Candidate:
    """A process that holds our port, as far as it can be read. ``unknown`` says why it cannot be known."""

    leader: Identity
    argv: tuple[str, ...]
    program_directory: str = ""
    config: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = None
    unknown: str = ""


@dataclass(frozen=True)
class Holder:
    """Somebody else on our port. ``pid`` is 0 when only the user can be read. ``orphan``: it carries our mark."""

    pid: int
    user: str
    argv: tuple[str, ...] = ()
    orphan: bool = False
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Actual:
    """The service as it is. ``supervisord``: running, gone or unreachable; ``program``: its word for our process."""

    exists: bool = False
    supervisord: str = "gone"
    program: str = ""
    booted: Booted | None = None
    alive: bool = False
    others: int = 0
    holders: tuple[Holder, ...] = ()
    files: Mapping[str, str | None] = field(default_factory=dict)
    launch: Mapping[str, Any] | None = None
    config_file_sha256: str = ""
    program_directory: str = ""


@dataclass(frozen=True)
class Plan:
    """What to do. ``way``: nothing, start, exchange (a new supervisord around the running process), note, stop."""

    way: str = "nothing"
    actions: tuple[Action, ...] = ()
    adopt: Identity | None = None
    remove: bool = False

    @property
    def reasons(self) -> tuple[str, ...]:
        """The plan in words, one line an action."""
        return tuple(action.line() for action in self.actions)

    @property
    def will_start(self) -> bool:
        """Whether the process is started or restarted, so that its runtime state is lost."""
        return any(action.do in ("start", "restart") for action in self.actions)


def check_spec(spec: Spec) -> None:
    """Refuse a spec that cannot work, before anything is read or touched."""
    problems = []
    if not _NAME.fullmatch(spec.name) or len(spec.name) > 63:
        problems.append(
            f"name {spec.name!r}: lower-case letters, digits and single hyphens, a letter first, at most 63 characters"
        )
    if re.search(r"[\n\r\0]|\s[;#]", spec.directory):
        problems.append(f"dir {spec.directory!r}: supervisord takes white space before ; or # for a comment: rename it")
    if spec.state == "started":
        problems += _started_problems(spec)
    if problems:
        raise VoicesError(f"service {spec.name}: " + "; ".join(problems))


def _started_problems(spec: Spec) -> list[str]:
    problems = []
    if not spec.argv or not spec.argv[0].startswith("/"):
        shown = spec.argv[0] if spec.argv else ""
        problems.append(f"argv[0] is {shown!r}: an absolute path is needed, since supervisord has no shell")
    for key, value in spec.environment.items():
        if not _ENVIRONMENT_KEY.fullmatch(key) or key == MARK:
            problems.append(f"environment key {key!r}: letters, digits and underscores, and not {MARK}")
        elif not isinstance(value, str) or "\0" in value:
            problems.append(f"environment {key}: write the value as a text in quotes")
    if not 0 <= spec.listen_port <= 65535:
        problems.append(f"listen_port {spec.listen_port}: 0 (no port) to 65535")
    if spec.health_url and not spec.health_url.startswith("http://"):
        problems.append(f"health_url {spec.health_url!r}: it must start with http://")
    for label, number, least in (
        ("health_timeout_s", spec.health_timeout_s, 0.1),
        ("start_seconds", spec.start_seconds, 1),
        ("start_retries", spec.start_retries, 0),
        ("stop_seconds", spec.stop_seconds, 1),
        ("log_max_mib", spec.log_max_mib, 1),
        ("log_backups", spec.log_backups, 0),
    ):
        if number < least:
            problems.append(f"{label} is {number}: at least {least}")
    return problems


def environment_texts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The environment with numbers as texts. Booleans stay as they are, for ``check_spec`` to refuse.

    (``True`` could mean ``1``, ``true`` or ``True`` to the program.)
    """
    return {
        str(key): str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for key, value in given.items()
    }
