"""One supervisord: its XML-RPC over the unix socket, and its processes by their command lines."""

from __future__ import annotations

import http.client
import os
import socket
import xmlrpc.client
from collections.abc import Mapping
from typing import Any

from . import processes
from .processes import Identity, Process

RPC_TIMEOUT_S = 5.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=RPC_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(RPC_TIMEOUT_S)
        self.sock.connect(self._path)


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a unix socket.

    supervisor.xmlrpc.SupervisorTransport does the same, but without a time limit (a stopped supervisord would hang the
    run), and the module's interpreter need not have supervisor installed.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self._path)


class Supervisor:
    """One supervisord, by its socket and its configuration file."""

    def __init__(self, socket_file: str, conf: str, name: str) -> None:
        self.socket_file = socket_file
        self.conf = conf
        self.name = name

    def _call(self, method: str, *arguments: Any) -> Any:
        with xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=_UnixTransport(self.socket_file)) as proxy:
            return getattr(proxy.supervisor, method)(*arguments)

    def pid(self) -> int:
        """The pid of the supervisord that answers on the socket, or 0."""
        try:
            return int(self._call("getPID"))
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return 0

    def program_state(self) -> str:
        """supervisord's word for our program (``RUNNING``, ``FATAL``, ...); empty: no answer, or unknown to it."""
        try:
            return str(self._call("getProcessInfo", self.name)["statename"])
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return ""

    def shut_down(self) -> bool:
        """Ask it to stop its program and itself; False when it does not answer."""
        try:
            self._call("shutdown")
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return False
        return True

    def find(self, table: Mapping[int, Process]) -> list[Identity]:
        """The supervisord processes that run with our configuration file (normally one), also without their socket."""
        return [one for one in running_with(table, ["-c", self.conf]) if _runs(one.pid, "supervisord")]


def running_with(table: Mapping[int, Process], ending: list[str]) -> list[Identity]:
    """Our user's living processes whose command line ends so."""
    boot, uid = processes.boot_id(), os.geteuid()  # a wrapper or supervisord of another user is not ours to stop
    return [
        Identity(pid, process.start_time, boot)
        for pid, process in table.items()
        if not process.gone and process.uid == uid and (processes.command_line(pid) or [])[-len(ending) :] == ending
    ]


def _runs(pid: int, program: str) -> bool:
    return any(part.rpartition("/")[2] == program for part in processes.command_line(pid) or [])
