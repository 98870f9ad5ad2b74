"""All that ``supervised_service`` reads and does: files, ``/proc``, supervisord over its socket, health over HTTP."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import processes
from .engine_argv import parse_command
from .files import read_text, write_text
from .flags import flags_sha256, mask_flags
from .plan import VoicesError
from .processes import Identity, Listener, Process
from .service import (
    MARK,
    Actual,
    Booted,
    Candidate,
    Holder,
    Plan,
    Spec,
    counted_flags,
    failure_message,
    log_of_launch,
    recorded_socket,
    render_supervisord_conf,
    secret_values,
    shown_argv,
    socket_path,
)
from .supervisor_rpc import Supervisor, running_with

HTTP_TIMEOUT_S = 5.0
POLL_S = 0.1
LATE_ENDS = 2
START_ERROR_S = 0.02  # start times are in ticks of 0.01 s, and so is the uptime that they are added to
LOG_TAIL_BYTES = 256 * 1024
PASSED_ON = ("PATH", "HOME", "LANG", "USER", "TMPDIR")


class ServiceClient:
    """Reads one service's state and carries a plan out."""

    def __init__(
        self,
        spec: Spec,
        parse_yaml: Callable[[bytes], Any],
        wrapper: str | None = None,
        wrapper_source: str = "",
    ) -> None:
        self.spec = spec
        self.parse_yaml = parse_yaml
        self.wrapper = wrapper
        self.wrapper_source = wrapper_source
        conf = read_text(Path(spec.path("supervisord.conf")))
        self.socket_file = socket_path(spec.directory, os.geteuid(), _system_temporary(), recorded_socket(conf))
        self.supervisor = Supervisor(self.socket_file, spec.path("supervisord.conf"), spec.name)
        self.table: dict[int, Process] = {}

    # ----------------------------------------------------------------------------------------------- files

    def desired_files(self) -> dict[str, str]:
        """supervisord.conf and the wrapper as wanted: name below the service's directory -> text."""
        wrapper = self.wrapper if self.wrapper is not None else read_text(Path(self.wrapper_source))
        if wrapper is None:
            raise VoicesError(
                f"service {self.spec.name}: wrapper_source {self.wrapper_source} does not exist on this host: "
                "give the path of the role's files/service_run.py"
            )
        conf = render_supervisord_conf(self.spec, self.socket_file, as_root=os.geteuid() == 0)
        return {"supervisord.conf": conf, "service_run.py": wrapper}

    @contextlib.contextmanager
    def lock(self, wait_s: float) -> Iterator[None]:
        """Be the only run that changes this service. Makes nothing when there is no directory and none is wanted."""
        directory = Path(self.spec.directory)
        if self.spec.state != "started" and not directory.exists():
            yield
            return
        deadline = time.monotonic() + wait_s
        while True:
            self._private_directory(directory)
            handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if self._try_lock(handle, directory / ".lock"):
                    yield
                    return
            finally:
                os.close(handle)
            if time.monotonic() > deadline:
                raise VoicesError(
                    f"service {self.spec.name}: another run has held {directory}/.lock for {wait_s:g} s; "
                    "wait for it to end, or end it"
                )
            time.sleep(POLL_S)

    @staticmethod
    def _try_lock(handle: int, path: Path) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us may have removed the directory: then this lock guards nothing.
            return path.stat().st_ino == os.fstat(handle).st_ino
        except (BlockingIOError, FileNotFoundError):
            return False

    def _private_directory(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise VoicesError(
                f"service {self.spec.name}: {directory} belongs to {processes.user_name(status.st_uid)} and not to "
                f"{processes.user_name(os.geteuid())}: run as its owner, or choose another dir"
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            directory.chmod(0o700)

    def _socket_directory(self) -> Path | None:
        parent = Path(self.socket_file).parent
        return None if parent == Path(self.spec.path("run")) else parent

    def _check_socket_directory(self) -> None:
        parent = self._socket_directory()
        if parent is None:
            return
        with contextlib.suppress(FileExistsError):
            parent.mkdir(mode=0o700)
        status = parent.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise VoicesError(
                f"service {self.spec.name}: {parent} must be a directory of {processes.user_name(os.geteuid())} with "
                f"mode 0700, but it is {stat.S_IMODE(status.st_mode):04o} of {processes.user_name(status.st_uid)}: "
                "somebody else may have put it there; remove it, or choose a shorter dir"
            )

    def _read_json(self, name: str) -> dict[str, Any] | None:
        try:
            data = json.loads(read_text(Path(self.spec.path("run", name))) or "null")
        except ValueError:
            return None
        return data if isinstance(data, dict) else None

    # ---------------------------------------------------------------------------------------------- reading

    def read(self) -> Actual:
        """The service as it is. Changes nothing, and works when nothing exists."""
        spec = self.spec
        self.table = processes.process_table()
        booted = self._read_booted()
        alive = booted is not None and processes.is_alive(booted.leader)
        program = self.supervisor.program_state()
        if program or self.supervisor.pid():
            supervisord = "running"
        else:
            supervisord = "unreachable" if self.supervisor.find(self.table) else "gone"
        launch = self._read_json("launch.json")
        # Reading every environment takes its time: only when there may be something to find that way.
        ours = self.members(booted, marked=not alive or spec.state != "started")
        others = len(ours) + len(self._wrappers()) - (1 if alive else 0)
        started = spec.state == "started"
        return Actual(
            exists=Path(spec.directory).is_dir(),
            supervisord=supervisord,
            program=program,
            booted=booted,
            alive=alive,
            others=others,
            holders=tuple(self._holders(self.members(booted, marked=False))) if started else (),
            files={name: read_text(Path(spec.path(name))) for name in ("supervisord.conf", "service_run.py")},
            launch=launch,
            config_file_sha256=_sha256(_read_bytes(spec.config_file)) if started and spec.config_file else "",
            program_directory=_program_directory(spec.argv, os.environ.get("PATH", ""), "/") if started else "",
        )

    def _read_booted(self) -> Booted | None:
        data = self._read_json("booted.json")
        leader = Identity.from_dict(data)
        if data is None or leader is None:
            return None
        content = _read_bytes(self.spec.path("run", "booted_config"))
        config = self._parse(content)
        return Booted(
            leader=leader,
            argv=tuple(data.get("argv") or ()),
            environment=data.get("environment") or {},
            config_file=data.get("config_file") or "",
            flags=None if config is None else mask_flags(config),
            config_sha256=_sha256(content),
            adopted=bool(data.get("adopted")),
            launch_id=str(data.get("launch_id") or ""),
        )

    def _parse(self, content: bytes | None) -> dict[str, Any] | None:
        """The YAML mapping in a file's content, or None when it is no such thing."""
        if content is None:
            return None
        try:
            data = self.parse_yaml(content)
        except ValueError:
            return None
        return data if isinstance(data, dict) else None

    def members(self, booted: Booted | None, marked: bool) -> set[Identity]:
        """The living processes of the service, without its supervisord and wrapper."""
        data = self._read_json("booted.json") or {}
        carrying: set[int] = set()
        if marked:
            readable = {pid: one for pid, one in self.table.items() if one.uid == os.geteuid() or os.geteuid() == 0}
            carrying = processes.marked(readable, MARK, self.spec.directory)
        found = processes.members(
            self.table,
            processes.boot_id(),
            booted.leader if booted else None,
            int(data.get("group") or 0),
            self._recorded(),
            carrying,
        )
        us = processes.ancestors(self.table, os.getpid())
        return {one for one in found if one.pid not in us}

    def _recorded(self) -> list[Identity]:
        """The processes that the wrapper noted as the service's."""
        noted = (self._read_json("members.json") or {}).get("members") or []
        return [Identity(int(pid), int(start), str(boot)) for pid, start, boot in noted]

    def _wrappers(self) -> list[Identity]:
        """The service's wrappers: one, or two for a moment while one takes over from another."""
        return running_with(self.table, ["-I", self.spec.path("service_run.py"), self.spec.directory])

    # ------------------------------------------------------------------------------------ who holds the port

    def _holders(self, ours: set[Identity]) -> list[Holder]:
        spec = self.spec
        if not spec.listen_port:
            return []
        found: dict[tuple[int, str], Holder] = {}
        for listener in processes.listeners(spec.listen_port, spec.listen_host, self._with_first(ours)):
            if any(one.pid in listener.pids for one in ours):
                continue
            pid = self._server_of(listener)
            holder = Holder(pid, processes.user_name(listener.uid))
            if pid:
                environment = processes.environment(pid) or {}
                holder = Holder(
                    pid,
                    holder.user,
                    tuple(processes.command_line(pid) or ()),
                    environment.get(MARK) == spec.directory,
                    self._candidate(pid),
                )
            found[(pid, holder.user)] = holder
        return [found[key] for key in sorted(found)]

    def _with_first(self, ours: set[Identity]) -> dict[int, Process]:
        """Our own processes alone, when the port is theirs: reading everybody's descriptors takes its time."""
        own = {one.pid: self.table[one.pid] for one in ours if one.pid in self.table}
        found = processes.listeners(self.spec.listen_port, self.spec.listen_host, own)
        return own if found and all(one.pids for one in found) else self.table

    def _server_of(self, listener: Listener) -> int:
        """The process to name for a listener: its owner, or the ancestor with the same program that started it."""
        if not listener.pids:
            return 0
        pid = min(listener.pids, key=lambda one: self.table[one].start_time if one in self.table else 0)
        program = parse_command(processes.command_line(pid) or ()).program
        while pid in self.table:
            parent = self.table[pid].parent
            if parse_command(processes.command_line(parent) or ()).program != program:
                break
            pid = parent
        return pid

    def _candidate(self, pid: int) -> Candidate | None:
        identity, argv = processes.identify(pid), processes.command_line(pid)
        process = processes.read_process(pid)
        if identity is None or argv is None or process is None:
            return None
        environment = processes.environment(pid)
        base = processes.working_directory(pid) or "/"
        path = (environment or {}).get("PATH", "")
        config, unknown = None, ""
        command = parse_command(argv)
        if command.config_file:
            config_file = os.path.join(base, command.config_file)
            config, unknown = self._config_of(config_file, processes.started_at(process))
        return Candidate(identity, tuple(argv), _program_directory(argv, path, base), config, environment, unknown)

    def _config_of(self, config_file: str, started: float) -> tuple[dict[str, Any] | None, str]:
        try:
            status = os.stat(config_file)
            config = self._parse(Path(config_file).read_bytes())
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
            return None, f"its --config file {config_file} {why}, so what it runs with cannot be known"
        newer_s = max(status.st_mtime, status.st_ctime) - started
        if newer_s > START_ERROR_S:
            return None, (
                f"its --config file {config_file} was changed {newer_s:.2f} s after the process started, "
                "so what it runs with cannot be known"
            )
        return config, "" if config is not None else f"its --config file {config_file} is not a YAML mapping"

    # --------------------------------------------------------------------------------------------- applying

    def apply(self, plan: Plan, desired: Mapping[str, str]) -> None:
        """Carry the plan out. For ``start`` and ``exchange``, supervisord runs afterwards; health is another step."""
        if plan.way == "stop":
            self.stop_everything()
            if plan.remove:
                self._remove()
            return
        if plan.way == "note":
            self._write_launch(self._present_launch_id(), None)
            return
        if plan.way == "nothing":
            return
        self.check_executables()
        for directory in (self.spec.directory, self.spec.path("run"), self.spec.path("log")):
            self._private_directory(Path(directory))
        self._check_socket_directory()
        if plan.way == "start":
            self.stop_everything()
            self._write_launch(secrets.token_hex(6), None)
        elif plan.adopt is not None:
            self._clear_for(plan.adopt)
            self._write_launch(secrets.token_hex(6), plan.adopt)
        else:
            # The wrapper goes on watching while there is no supervisord, until the next one takes the process over.
            self._kill_supervisord()
            self._write_launch(self._present_launch_id(), None)
        for name, text in desired.items():
            if read_text(Path(self.spec.path(name))) != text:
                write_text(Path(self.spec.path(name)), text)
        self._start_supervisord()

    def _present_launch_id(self) -> str:
        """The id of the launch that runs, so that the wrapper knows its process again."""
        for name in ("booted.json", "launch.json"):
            known = (self._read_json(name) or {}).get("launch_id")
            if known:
                return str(known)
        return secrets.token_hex(6)

    def _write_launch(self, launch_id: str, adopt: Identity | None) -> None:
        launch = {**self.spec.launch(), "launch_id": launch_id, "adopt": adopt.as_dict() if adopt else None}
        write_text(Path(self.spec.path("run", "launch.json")), json.dumps(launch, indent=1))

    def check_executables(self) -> None:
        """Refuse before anything is stopped when what is needed to start it again is missing."""
        for label, path in (("supervisord", self.spec.supervisord), ("python", self.spec.python)):
            if not os.access(path, os.X_OK) or not os.path.isfile(path):
                why = f"{label} {path} is not an executable file: install it first"
                raise VoicesError(f"service {self.spec.name}: {why}")

    def _start_supervisord(self) -> None:
        environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        with tempfile.TemporaryFile() as output:  # no pipe: the daemon would keep it open
            done = subprocess.run(
                [self.spec.supervisord, "-c", self.spec.path("supervisord.conf")],
                env=environment,
                cwd=self.spec.path("run"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60,
                check=False,
                umask=0o077,  # it opens its log before it takes the umask from its configuration
            )
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        if done.returncode != 0:
            why = f"{self.spec.supervisord} did not start (rc {done.returncode}): {said}"
            raise VoicesError(f"service {self.spec.name}: {why}")

    def _kill_supervisord(self) -> None:
        """End supervisord and nothing else: asked nicely, it would stop the process first."""
        found = self.supervisor.find(processes.process_table())
        for one in found:
            processes.send(one, signal.SIGKILL)
        processes.wait_gone(found, 5)

    def stop_everything(self) -> None:
        """Stop supervisord, its wrapper, and every process of the service, in that order, by identity."""
        limit_s = self.spec.stop_seconds + 20
        booted = self._read_booted()
        if self.supervisor.shut_down():
            processes.wait_gone(self.supervisor.find(processes.process_table()), limit_s)
        self._kill_supervisord()
        self.table = processes.process_table()
        processes.terminate(self._wrappers(), limit_s)  # each stops the process first
        self.table = processes.process_table()
        left = self.members(booted, marked=True)
        leader = {booted.leader} & left if booted else set()
        processes.terminate(leader, self.spec.stop_seconds)  # it may stop the others itself
        self.table = processes.process_table()
        self._end(self.members(booted, marked=True) | {one for one in left if processes.is_alive(one)})

    def _clear_for(self, adopt: Identity) -> None:
        """End what is left of the service, except the process to adopt and all that belongs to it."""
        booted = self._read_booted()
        self._kill_supervisord()
        self.table = processes.process_table()
        wrappers = self._wrappers()
        for one in wrappers:
            processes.send(one, signal.SIGUSR1)
        processes.terminate(processes.wait_gone(wrappers, 5), 0)
        self.table = processes.process_table()
        head = self.table.get(adopt.pid)
        group = adopt.pid if head is not None and head.group == adopt.pid else 0
        kept = processes.members(self.table, processes.boot_id(), adopt, group)
        self._end(self.members(booted, marked=True) - kept)

    def _end(self, identities: set[Identity]) -> None:
        survivors = processes.terminate(identities, 5)
        if survivors:
            names = ", ".join(f"pid {one.pid}" for one in sorted(survivors))
            raise VoicesError(f"service {self.spec.name}: {names} cannot be ended, not even by SIGKILL: find out why")

    def _remove(self) -> None:
        parent = self._socket_directory()
        if parent is not None and parent.is_dir() and not parent.is_symlink():
            shutil.rmtree(parent)
        shutil.rmtree(self.spec.directory)

    # ----------------------------------------------------------------------------------------------- health

    def wait_healthy(self, started: bool) -> tuple[int, float]:
        """Wait until the service is healthy; returns its pid and the seconds that took.

        Raises VoicesError with the log's errors when it gives up before, or is not healthy in time. ``started``: the
        process was started by this run.
        """
        begin = time.monotonic()
        leader, state, late_ends = None, "", 0
        while True:
            booted = self._read_booted()
            if booted is not None and booted.leader != leader:
                # supervisord counts those that end early (BACKOFF, then FATAL), but not those that end later.
                late_ends += leader is not None and state in ("RUNNING", "EXITED")
                leader = booted.leader
            what = self._unhealthy(booted)
            seconds = time.monotonic() - begin
            if not what and booted is not None:
                self._note_healthy(booted)
                return booted.leader.pid, seconds
            state = self.supervisor.program_state()
            ended = self._gave_up(state, late_ends)
            if ended or seconds > self.spec.health_timeout_s:
                raise VoicesError(self._failure(seconds, ended or what, state, started))
            time.sleep(POLL_S)

    def _gave_up(self, state: str, late_ends: int) -> str:
        """Why waiting longer is no use; empty while it is."""
        if state == "FATAL":
            return f"it ended {self.spec.start_retries + 1} times within {self.spec.start_seconds} s of its start"
        if state == "STOPPED":
            return "somebody stopped it"
        if not state:
            return "its supervisord " + ("does not know it" if self.supervisor.pid() else "ended")
        return f"it ended {late_ends} times before it was healthy" if late_ends >= LATE_ENDS else ""

    def _unhealthy(self, booted: Booted | None) -> str:
        """Why the service is not healthy yet; empty when it is."""
        spec = self.spec
        if booted is None or not processes.is_alive(booted.leader):
            return "its process does not run"
        if not self._is_watched(booted.leader.pid):
            return f"nobody watches pid {booted.leader.pid} yet"
        if spec.listen_port:
            self.table = processes.process_table()
            problem = self._wrong_listener(self.members(booted, marked=False))
            if problem:
                return problem
        if spec.health_url:
            return _ask(spec.health_url)
        return "" if self.supervisor.program_state() == "RUNNING" else "it has just been started"

    def _is_watched(self, pid: int) -> bool:
        """Whether a wrapper under the present supervisord watches the process."""
        noted = self._read_json("wrapper.lock") or {}
        wrapper = Identity.from_dict(noted)
        if wrapper is None or noted.get("watching") != pid or not processes.is_alive(wrapper):
            return False
        process = processes.read_process(wrapper.pid)
        return process is not None and process.parent == self.supervisor.pid()

    def _wrong_listener(self, ours: set[Identity]) -> str:
        spec = self.spec
        pids = {one.pid for one in ours}
        found = processes.listeners(spec.listen_port, spec.listen_host, self._with_first(ours))
        if not found:
            return f"nothing listens on {spec.listen_host}:{spec.listen_port} yet"
        for listener in found:
            if not pids & set(listener.pids):
                pid = listener.pids[0] if listener.pids else 0
                who = f"pid {pid}" if pid else f"a process of {processes.user_name(listener.uid)}"
                command = processes.command_line(pid) if pid else None
                shown = f" ({shown_argv(command)})" if command else ""
                return f"{spec.listen_host}:{spec.listen_port} is held by {who}{shown}, not by this service"
        return ""

    def _note_healthy(self, booted: Booted) -> None:
        flags = counted_flags(booted.flags or {}, self.spec.config_ignore)
        path = Path(self.spec.path("run", "healthy.json"))
        text = json.dumps({"config_sha256": flags_sha256(flags)}) + "\n"
        if read_text(path) != text:
            write_text(path, text)

    def _failure(self, seconds: float, what: str, state: str, started: bool) -> str:
        launch_id = (self._read_json("launch.json") or {}).get("launch_id") or ""
        log = log_of_launch(_tail(self.spec.log + ".1") + _tail(self.spec.log), launch_id)
        if not log.strip():
            log = _tail(self.spec.path("log", "wrapper.log")) if started else ""
        config = self._parse(_read_bytes(self.spec.config_file)) if self.spec.config_file else None
        known = secret_values(self.spec.environment, config, self.spec.argv)
        previous = f"{self.spec.config_file}.previous" if self.spec.config_file else ""
        if not previous or not os.path.exists(previous):
            previous = ""
        return failure_message(self.spec, seconds, what, state, log, known, previous)


def _ask(url: str) -> str:
    """Why a GET of ``url`` is not answered with 200; empty when it is. Proxies in the environment are not used."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else "") or "/")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{url} does not answer: {error}"
    finally:
        connection.close()
    return "" if status == 200 else f"{url} answers {status}"


def _program_directory(argv: Any, path: str, base: str) -> str:
    """The resolved directory of the executable, or an empty text when it cannot be found."""
    if not argv:
        return ""
    program = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=path) or ""
    return os.path.realpath(os.path.join(base, os.path.dirname(program))) if program else ""


def _system_temporary() -> str:
    return "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()  # noqa: S108 - a short path


def _read_bytes(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def _sha256(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _tail(path: str) -> str:
    """The end of a log, or an empty text."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
