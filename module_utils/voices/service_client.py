"""The service as it is: its state files, its processes, its supervisord and its port. Reads only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import processes
from .files import read_text
from .flags import mask_flags
from .plan import VoicesError
from .port_holders import program_directory, strangers
from .processes import Identity, Process
from .service import MARK, Actual, Booted, Holder, Spec
from .service_directory import ServiceDirectory, content_of
from .supervisor_rpc import Supervisor, running_with
from .supervisord_conf import render_supervisord_conf


class ServiceClient:
    """Reads one service's state. ``parse_yaml`` raises ValueError for what is no YAML."""

    def __init__(
        self,
        spec: Spec,
        parse_yaml: Callable[[bytes], Any],
        wrapper: str | None = None,
        wrapper_source: str = "",
    ) -> None:
        self.spec = spec
        self.directory = ServiceDirectory(spec)
        self.supervisor = Supervisor(self.directory.socket_file, spec.path("supervisord.conf"), spec.name)
        self._parse_yaml = parse_yaml
        self._wrapper = wrapper
        self._wrapper_source = wrapper_source

    def desired_files(self) -> dict[str, str]:
        """supervisord.conf and the wrapper as wanted: name below the service's directory -> text."""
        wrapper = self._wrapper if self._wrapper is not None else read_text(Path(self._wrapper_source))
        if wrapper is None:
            raise VoicesError(
                f"service {self.spec.name}: wrapper_source {self._wrapper_source} does not exist on this host: "
                "give the path of the role's files/service_run.py"
            )
        conf = render_supervisord_conf(self.spec, self.directory.socket_file, as_root=os.geteuid() == 0)
        return {"supervisord.conf": conf, "service_run.py": wrapper}

    def read(self) -> Actual:
        """The service as it is. Changes nothing, and works when nothing exists."""
        spec = self.spec
        table = processes.process_table()
        booted = self.booted()
        alive = booted is not None and processes.is_alive(booted.leader)
        program = self.supervisor.program_state()
        if program or self.supervisor.pid():
            supervisord = "running"
        else:
            supervisord = "unreachable" if self.supervisor.find(table) else "gone"
        launch = self.directory.state("launch.json")
        started = spec.state == "started"
        # Reading every environment takes its time: only when there may be something to find that way.
        ours = self.members(table, booted, marked=not alive or not started)
        others = len(ours) + len(self.wrappers(table)) - (1 if alive else 0)
        return Actual(
            exists=Path(spec.directory).is_dir(),
            supervisord=supervisord,
            program=program,
            booted=booted,
            alive=alive,
            others=others,
            holders=self._strangers(table, booted) if started else (),
            files={name: self.directory.text(name) for name in ("supervisord.conf", "service_run.py")},
            launch=launch,
            config_file_sha256=_sha256(content_of(spec.config_file)) if started and spec.config_file else "",
            program_directory=program_directory(spec.argv, os.environ.get("PATH", ""), "/") if started else "",
        )

    def booted(self) -> Booted | None:
        """The process that the wrapper noted last, whether it still runs or not."""
        data = self.directory.state("booted.json")
        leader = Identity.from_dict(data)
        if data is None or leader is None or not _well_formed(data):
            return None
        content = content_of(self.spec.path("run", "booted_config"))
        config = self.parse_config(content)
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

    def parse_config(self, content: bytes | None) -> dict[str, Any] | None:
        """The YAML mapping in a file's content, or None when it is no such thing."""
        if content is None:
            return None
        try:
            data = self._parse_yaml(content)
        except ValueError:
            return None
        return data if isinstance(data, dict) else None

    def members(self, table: Mapping[int, Process], booted: Booted | None, marked: bool) -> set[Identity]:
        """The living processes of the service in ``table``, without its supervisord and wrapper.

        ``marked``: also those that are known by nothing but the mark in their environment.
        """
        carrying: set[int] = set()
        if marked:
            readable = {pid: one for pid, one in table.items() if one.uid == os.geteuid() or os.geteuid() == 0}
            carrying = processes.marked(readable, MARK, self.spec.directory)
        found = processes.members(
            table,
            processes.boot_id(),
            booted.leader if booted else None,
            _group(self.directory.state("booted.json") or {}),
            self._recorded(),
            carrying,
        )
        us = {os.getpid(), *(one.pid for one in processes.ancestors(os.getpid()))}
        return {one for one in found if one.pid not in us}

    def wrappers(self, table: Mapping[int, Process]) -> list[Identity]:
        """The service's wrappers: one, or two for a moment while one takes over from another."""
        return running_with(table, ["-I", self.spec.path("service_run.py"), self.spec.directory])

    def _strangers(self, table: Mapping[int, Process], booted: Booted | None) -> tuple[Holder, ...]:
        return tuple(strangers(self.spec, table, self.members(table, booted, marked=False), self.parse_config))

    def _recorded(self) -> list[Identity]:
        """The processes that the wrapper noted as the service's."""
        noted = (self.directory.state("members.json") or {}).get("members")
        try:
            return [Identity(int(pid), int(start), str(boot)) for pid, start, boot in noted or []]
        except (TypeError, ValueError):  # not the wrapper's writing; the marks in the environments still tell
            return []


def _well_formed(booted: Mapping[str, Any]) -> bool:
    """Whether a note is one that the wrapper writes: another is as good as none."""
    argv, environment = booted.get("argv") or [], booted.get("environment") or {}
    return (
        isinstance(argv, list)
        and all(isinstance(part, str) for part in argv)
        and isinstance(environment, dict)
        and all(isinstance(value, str) for value in environment.values())
    )


def _group(booted: Mapping[str, Any]) -> int:
    group = booted.get("group")
    return group if isinstance(group, int) else 0


def _sha256(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()
