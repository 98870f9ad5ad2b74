"""Wait until a service is healthy, or say why it is not."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.parse

from . import processes
from .flags import counted_flags, flags_sha256
from .masking import secret_values, shown_argv
from .plan import VoicesError
from .port_holders import on_port
from .processes import Identity
from .service import Booted
from .service_client import ServiceClient
from .service_directory import content_of
from .service_failure import failure_message, log_of_launch

HTTP_TIMEOUT_S = 5.0
POLL_S = 0.1
LATE_ENDS = 2
LOG_TAIL_BYTES = 256 * 1024


class ServiceHealth:
    """Watches one service, whose state ``client`` reads, from its start until it is healthy."""

    def __init__(self, client: ServiceClient) -> None:
        self.spec = client.spec
        self.client = client
        self.directory = client.directory
        self.supervisor = client.supervisor

    def wait(self, started: bool) -> tuple[int, float]:
        """Wait until the service is healthy; returns its pid and the seconds that took.

        Raises VoicesError with the log's errors when it gives up before, or is not healthy in time. ``started``: the
        process was started by this run.
        """
        begin = time.monotonic()
        leader, state, late_ends = None, "", 0
        while True:
            booted = self.client.booted()
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
            problem = self._wrong_listener(booted)
            if problem:
                return problem
        if spec.health_url:
            return ask(spec.health_url)
        return "" if self.supervisor.program_state() == "RUNNING" else "it has just been started"

    def _is_watched(self, pid: int) -> bool:
        """Whether a wrapper under the present supervisord watches the process."""
        noted = self.directory.state("wrapper.lock") or {}
        wrapper = Identity.from_dict(noted)
        if wrapper is None or noted.get("watching") != pid or not processes.is_alive(wrapper):
            return False
        process = processes.read_process(wrapper.pid)
        return process is not None and process.parent == self.supervisor.pid()

    def _wrong_listener(self, booted: Booted) -> str:
        spec = self.spec
        table = processes.process_table()
        ours = self.client.members(table, booted, marked=False)
        found = on_port(spec, table, ours)
        if not found:
            return f"nothing listens on {spec.listen_host}:{spec.listen_port} yet"
        pids = {one.pid for one in ours}
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
        self.directory.write("run/healthy.json", json.dumps({"config_sha256": flags_sha256(flags)}) + "\n")

    def _failure(self, seconds: float, what: str, state: str, started: bool) -> str:
        launch_id = (self.directory.state("launch.json") or {}).get("launch_id") or ""
        log = log_of_launch(_tail(self.spec.log + ".1") + _tail(self.spec.log), launch_id)
        if not log.strip():
            log = _tail(self.spec.path("log", "wrapper.log")) if started else ""
        config = self.client.parse_config(content_of(self.spec.config_file)) if self.spec.config_file else None
        known = secret_values(self.spec.environment, config, self.spec.argv)
        previous = f"{self.spec.config_file}.previous" if self.spec.config_file else ""
        if not previous or not os.path.exists(previous):
            previous = ""
        return failure_message(self.spec, seconds, what, state, log, known, previous)


def ask(url: str) -> str:
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


def _tail(path: str) -> str:
    """The end of a log, or an empty text."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
