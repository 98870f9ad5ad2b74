"""One long-running process under its own supervisord: what is wanted, what is there, and the plan between them. Pure.

``service_client`` reads an ``Actual`` and carries a ``Plan`` out. The process itself is started and watched by
``service_run.py`` (the wrapper), which reads ``run/launch.json`` and writes ``run/booted.json``.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .engine_argv import VLLM, differences, effective_flags, parse_command
from .flags import SECRET_FLAGS, mask_flags
from .plan import Action, VoicesError
from .processes import Identity

MARK = "VOICES_SERVICE"
"""The environment key that every process of a service carries; its value is the service's directory."""

SETTLED = ("RUNNING", "STARTING", "BACKOFF")
"""supervisord's states in which it keeps the process up by itself (supervisor.states)."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ENVIRONMENT_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_WORD = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")
_SECRET_FLAG = re.compile(r"(^|-)(key|token|password|secret)s?$")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Failure)\b: \S")
_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|\b(error|Error|fatal):")
_HARMLESS = re.compile(r"\b(DEBUG|INFO|WARNING)\b|Warning: ")
_LONGEST_SOCKET = 95  # sun_path holds 107 bytes (unix(7)); supervisord binds to "<path>.<pid>" first
_SHORTEST_MASKED = 6  # masking a shorter value would blank ordinary words out of every message


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


# ---------------------------------------------------------------------------------------------------- what is wanted


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


def socket_path(directory: str, uid: int, temporary: str, recorded: str = "") -> str:
    """Where supervisord listens: ``run/supervisord.sock``, or a short path when that is too long for a socket.

    ``recorded`` is the path in the present supervisord.conf; a short one in use is kept, so that another TMPDIR does
    not move it.
    """
    usual = f"{directory}/run/supervisord.sock"
    if len(usual.encode()) <= _LONGEST_SOCKET:
        return usual
    digest = hashlib.sha256(directory.encode()).hexdigest()[:12]
    leaf = f"voices-{uid}-{digest}/supervisord.sock"
    return recorded if recorded.endswith("/" + leaf) else f"{temporary.rstrip('/')}/{leaf}"


def recorded_socket(conf: str | None) -> str:
    """The socket path in the text of a supervisord.conf, or an empty text."""
    found = re.search(r"^\[unix_http_server\]\nfile=(.+)$", conf or "", re.MULTILINE)
    return found.group(1).replace("%%", "%") if found else ""


def render_supervisord_conf(spec: Spec, socket: str, as_root: bool = False) -> str:
    """The text of supervisord.conf. It holds no secret and nothing about the process: that is in launch.json.

    The process's output does not pass through supervisord: a pipe would break, and with it the process, whenever
    supervisord or the wrapper is killed. Hence ``stdout_logfile`` is only what the wrapper says before it has
    opened the service's log. ``stopwaitsecs`` leaves the wrapper the time to kill what does not stop.
    """

    def text(value: str) -> str:
        return value.replace("%", "%%")

    command = " ".join(shlex.quote(part) for part in (spec.python, "-I", spec.path("service_run.py"), spec.directory))
    return f"""\
; Written by supervised_service; edits are overwritten.
; supervisord: {spec.supervisord}
[unix_http_server]
file={text(socket)}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{text(socket)}

[supervisord]
identifier={spec.name}
nodaemon=false
umask=077
nocleanup=true
directory={text(spec.path("run"))}
pidfile={text(spec.path("run", "supervisord.pid"))}
logfile={text(spec.path("log", "supervisord.log"))}
logfile_maxbytes=1MB
logfile_backups=1
{"user=root" if as_root else "; not root"}

[program:{spec.name}]
command={text(command)}
directory={text(spec.path("run"))}
autostart=true
autorestart=true
startsecs={spec.start_seconds}
startretries={spec.start_retries}
stopsignal=TERM
stopwaitsecs={spec.stop_seconds + 15}
redirect_stderr=true
stdout_logfile={text(spec.path("log", "wrapper.log"))}
stdout_logfile_maxbytes=1MB
stdout_logfile_backups=1
"""


# ------------------------------------------------------------------------------------------------------------ secrets


def looks_secret(key: str) -> bool:
    """Whether an environment key names a secret (KEY, TOKEN, PASSWORD, SECRET)."""
    return bool(_SECRET_WORD.search(key.upper()))


def shown_value(key: str, value: str | None) -> str | None:
    """An environment value as it may be printed."""
    if value is None or not looks_secret(key):
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def shown_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment as it may be printed."""
    return {key: shown_value(key, value) if isinstance(value, str) else value for key, value in environment.items()}


def shown_argv(argv: Sequence[str]) -> str:
    """A command line as it may be printed: the values of secret options are masked."""
    parts: list[str] = []
    hide = False
    for part in argv:
        name, equals, value = part.partition("=")
        secret = part.startswith("-") and _is_secret_flag(name.lstrip("-").replace("_", "-"))
        if secret and equals:
            parts.append(f"{name}={_digest(value)}")
        elif hide and not part.startswith("--"):
            parts.append(_digest(part))
            continue  # an option may take several values
        else:
            parts.append(part)
        hide = secret and not equals
    return shlex.join(parts)


def secret_values(
    environment: Mapping[str, Any], config: Mapping[str, Any] | None, argv: Sequence[str] = ()
) -> set[str]:
    """The values that no message may hold."""
    found = [value for key, value in environment.items() if looks_secret(key)]
    for flags in (config or {}, parse_command(argv).flags):
        for key, value in flags.items():
            if _is_secret_flag(str(key).replace("_", "-")):
                found += value if isinstance(value, list) else [value]
    return {str(value) for value in found if len(str(value)) >= _SHORTEST_MASKED}


def mask_text(text: str, secrets: Iterable[str]) -> str:
    """``text`` with each secret replaced by ``***``."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _is_secret_flag(name: str) -> bool:
    return name in SECRET_FLAGS or bool(_SECRET_FLAG.search(name))


def _digest(text: str) -> str:
    return str(mask_flags({SECRET_FLAGS[0]: text})[SECRET_FLAGS[0]])


def counted_flags(config: Mapping[str, Any], ignore: Iterable[str]) -> dict[str, Any]:
    """A configuration without the ignored keys, masked: what is compared and digested."""
    ignored = set(ignore)
    return mask_flags({str(key): value for key, value in config.items() if str(key) not in ignored})


# --------------------------------------------------------------------------------------------------------------- plan


def plan_service(spec: Spec, actual: Actual, desired_files: Mapping[str, str]) -> Plan:
    """The plan from what is to what is wanted. ``desired_files``: name in the service's directory -> text.

    Raises VoicesError when the port is held by something that is neither ours nor as the inventory says.
    """
    if spec.state != "started":
        return _plan_down(spec, actual)
    adopt = _adoptable(spec, actual)
    if adopt is not None and not actual.alive:
        why = f"pid {adopt.pid} runs as the inventory says"
        return Plan("exchange", (Action("adopt", spec.name, why=why),), adopt)
    if actual.alive or (actual.booted is not None and actual.supervisord == "running" and actual.program in SETTLED):
        changes = restart_reasons(spec, actual)
        if changes:
            return Plan("start", tuple(Action("restart", spec.name, *change) for change in changes))
        if actual.supervisord == "running" and actual.program in SETTLED:
            return _plan_files(spec, actual, desired_files)
        assert actual.booted is not None  # noqa: S101 - alive means that it was noted
        why = f"pid {actual.booted.leader.pid} runs on, but {_down_reason(actual)}"
        return Plan("exchange", (Action("adopt", spec.name, why=why),))
    if actual.supervisord == "running" and actual.program in SETTLED and actual.launch is not None:
        # The first boot is under way: the wrapper has not noted a process yet.
        if not _launch_differs(spec, actual):
            return _plan_files(spec, actual, desired_files)
        return _plan_start(spec, "it was starting with other settings")
    return _plan_start(spec, "it is new" if actual.launch is None else _down_reason(actual))


def _plan_start(spec: Spec, why: str) -> Plan:
    return Plan("start", (Action("start", spec.name, why=why),))


def _plan_down(spec: Spec, actual: Actual) -> Plan:
    actions = []
    if actual.alive or actual.others or actual.supervisord != "gone":
        actions.append(Action("stop", spec.name))
    remove = spec.state == "absent" and actual.exists
    if remove:
        actions.append(Action("remove", spec.name))
    return Plan("stop" if actions else "nothing", tuple(actions), None, remove)


def _plan_files(spec: Spec, actual: Actual, desired_files: Mapping[str, str]) -> Plan:
    changed = sorted(name for name, text in desired_files.items() if actual.files.get(name) != text)
    actions = [Action("write", name, why=f"{spec.name} runs on") for name in changed]
    if _launch_differs(spec, actual):
        actions.append(Action("write", "launch.json", why=f"{spec.name} runs on"))
    if not actions:
        return Plan()
    return Plan("exchange" if changed else "note", tuple(actions))


def _launch_differs(spec: Spec, actual: Actual) -> bool:
    there = {key: value for key, value in (actual.launch or {}).items() if key not in ("launch_id", "adopt")}
    return there != spec.launch()


def _down_reason(actual: Actual) -> str:
    if actual.supervisord == "running":
        return f"supervisord says {actual.program or 'that it does not know it'}"
    return {"gone": "its supervisord is not running", "unreachable": "its supervisord does not answer"}[
        actual.supervisord
    ]


def restart_reasons(spec: Spec, actual: Actual) -> list[tuple[str, Any, Any]]:
    """(what, before, after) for each setting in which the process that runs differs from the wanted one."""
    booted = actual.booted
    if booted is None:
        return []
    reasons: list[tuple[str, Any, Any]] = []
    if spec.config_file != booted.config_file:
        reasons.append(("config_file", booted.config_file or None, spec.config_file or None))
    elif spec.config_file and spec.config is not None:
        if booted.flags is None:
            reasons.append(("config_file", "(unreadable when it started)", spec.config_file))
        else:
            changed = differences(
                counted_flags(booted.flags, spec.config_ignore), counted_flags(spec.config, spec.config_ignore)
            )
            # A secret shows as changed and no more: check mode cannot know the digest of one that is yet to be made.
            reasons += [(f"{key} changed", None, None) if key in SECRET_FLAGS else (key, b, a) for key, b, a in changed]
    elif spec.config_file and booted.config_sha256 != actual.config_file_sha256:
        reasons.append((f"content of {spec.config_file}", booted.config_sha256[:12], actual.config_file_sha256[:12]))
    if spec.argv != booted.argv:
        reasons.append(("argv", shown_argv(booted.argv), shown_argv(spec.argv)))
    for key in sorted(spec.environment.keys() | booted.environment.keys()):
        before, after = booted.environment.get(key), spec.environment.get(key)
        if before != after:
            reasons.append((f"environment {key}", shown_value(key, before), shown_value(key, after)))
    return reasons


# ------------------------------------------------------------------------------------------------------- who is there


def adoption_differences(spec: Spec, candidate: Candidate, program_directory: str = "") -> list[str]:
    """In what the process that holds the port differs from the wanted one; empty when it can be taken over.

    ``program_directory`` is where the wanted executable lies: the same flags from another virtual environment are
    another engine.
    """
    if candidate.unknown:
        return [candidate.unknown]
    desired, there = parse_command(spec.argv), parse_command(candidate.argv)
    found = []
    if desired.program != there.program:
        found.append(f"program {shlex.join(there.program)} here, {shlex.join(desired.program)} wanted")
    elif there.program == VLLM and program_directory != candidate.program_directory:
        found.append(f"program in {candidate.program_directory or '(unknown)'} here, {program_directory} wanted")
    pairs = differences(
        effective_flags(there, candidate.config, spec.config_ignore),
        effective_flags(desired, spec.config, spec.config_ignore),
    )
    found += [f"{key} {_shown(before)} here, {_shown(after)} wanted" for key, before, after in pairs]
    for key in spec.adopt_environment:
        wanted = spec.environment.get(key)
        if candidate.environment is None:
            found.append(f"environment {key} unreadable here")
        elif candidate.environment.get(key) != wanted:
            before = shown_value(key, candidate.environment.get(key))
            found.append(f"environment {key} {_shown(before)} here, {_shown(shown_value(key, wanted))} wanted")
    return found


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _adoptable(spec: Spec, actual: Actual) -> Identity | None:
    """The process on our port that is as wanted, or None when the port is free or only our orphans hold it."""
    for holder in actual.holders:
        differ: list[str] = []
        if holder.candidate is not None:
            differ = adoption_differences(spec, holder.candidate, actual.program_directory)
            if not differ and not actual.alive and len(actual.holders) == 1:
                return holder.candidate.leader
        if not holder.orphan:
            raise VoicesError(_port_refusal(spec, actual, holder, differ))
    return None


def _port_refusal(spec: Spec, actual: Actual, holder: Holder, differ: list[str]) -> str:
    who = f"pid {holder.pid} (user {holder.user})" if holder.pid else f"a process of user {holder.user}"
    command = shown_argv(holder.argv) if holder.argv else "its command line is not readable"
    lines = [f"service {spec.name}: port {spec.listen_host}:{spec.listen_port} is taken by {who}: {command}."]
    if actual.alive and actual.booted is not None:
        lines.append(f"The service itself runs as pid {actual.booted.leader.pid}; both may be asked by its clients.")
    if differ:
        lines.append("It is not taken over, because it is not as the inventory says: " + "; ".join(differ) + ".")
    stop = f"Stop that process (kill {holder.pid})" if holder.pid else "Have that process stopped by its user"
    lines.append(f"Nothing was changed. {stop} or give the service another port.")
    return " ".join(lines)


# ----------------------------------------------------------------------------------------------------------- failures

_LAUNCH_LINE = "service_run: launch {launch_id} "


def log_of_launch(text: str, launch_id: str) -> str:
    """The part of a log that the latest start of a launch wrote and that says something.

    The wrapper puts one line before each start. A start that has only just begun says nothing about why the one
    before it ended, so the last one with an error wins, else the last one with any text.
    """
    if not launch_id:
        return text
    parts = text.split(_LAUNCH_LINE.format(launch_id=launch_id))[1:]
    starts = [part.partition("\n")[2] for part in parts]
    for wanted in (lambda part: _EXCEPTION.search(part) or _ERROR.search(part), str.strip):
        for part in reversed(starts):
            if wanted(part):
                return part
    return ""


def error_lines(text: str, secrets: Iterable[str] = (), tail: int = 15) -> tuple[list[str], list[str]]:
    """(errors, last lines) of a log: plain text, secrets masked, long lines cut.

    Errors are the distinct lines that end a traceback (``SomeError: why``) or are logged as errors: the first four
    and the last four, because the root cause comes first and the summary last.
    """
    lines = [mask_text(_ANSI.sub("", line), secrets).rstrip() for line in text.splitlines()]
    lines = [line if len(line) <= 400 else line[:397] + "..." for line in lines if line.strip()]
    raised = _distinct(line for line in lines if _EXCEPTION.search(line) and not _HARMLESS.search(line))
    errors = raised or _distinct(line for line in lines if _ERROR.search(line))
    if len(errors) > 8:
        errors = [*errors[:4], *errors[-4:]]
    return errors, lines[-tail:]


def _distinct(lines: Iterable[str]) -> list[str]:
    seen: dict[str, str] = {}
    for line in lines:
        # vLLM logs one exception several times, each under another prefix: "(EngineCore pid=1) ERROR [x.py:1] ".
        found = _EXCEPTION.search(line)
        seen.setdefault(line[found.start() :] if found else line, line)
    return list(seen.values())


def failure_message(
    spec: Spec, seconds: float, what: str, state: str, log_text: str, secrets: Iterable[str], previous: str
) -> str:
    """Why a service did not get healthy, for a person. ``previous`` is the kept last healthy configuration, or ''."""
    known = set(secrets)
    lines = [
        f"service {spec.name} is not healthy after {seconds:.1f} s (limit {spec.health_timeout_s:g} s): {what}",
        f"supervisord says {state or 'nothing'}; log: {spec.log}",
    ]
    errors, last = error_lines(log_text, known)
    if errors:
        lines += ["errors of this start:", *(f"  {line}" for line in errors)]
    if last:
        lines += ["last lines of this start:", *(f"  {line}" for line in last)]
    else:
        lines.append("this start wrote nothing into the log")
    if previous:
        lines.append(f"the configuration that was last healthy is kept: {previous}")
    return mask_text("\n".join(lines), known)
