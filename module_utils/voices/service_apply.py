"""Carry out the plan of a service: stop what is to stop, write its files, start its supervisord."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import processes
from .files import write_text
from .plan import VoicesError
from .processes import Identity
from .service import Booted, Plan
from .service_client import ServiceClient

PASSED_ON = ("PATH", "HOME", "LANG", "USER", "TMPDIR")


class ServiceApply:
    """Changes one service, whose state ``client`` reads. Only under the directory's lock."""

    def __init__(self, client: ServiceClient) -> None:
        self.spec = client.spec
        self.client = client
        self.directory = client.directory
        self.supervisor = client.supervisor

    def apply(self, plan: Plan, desired: Mapping[str, str]) -> None:
        """Carry the plan out. For ``start`` and ``exchange``, supervisord runs afterwards; health is another step."""
        if plan.way == "stop":
            self.stop_everything()
            if plan.remove:
                self.directory.remove()
        elif plan.way == "note":
            self._write_launch(self._present_launch_id(), None)
        elif plan.way in ("start", "exchange"):
            self.check_executables()
            self.directory.prepare()
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
                self.directory.write(name, text)
            self._start_supervisord()

    def check_executables(self) -> None:
        """Refuse before anything is stopped when what is needed to start it again is missing."""
        for label, path in (("supervisord", self.spec.supervisord), ("python", self.spec.python)):
            if not os.access(path, os.X_OK) or not os.path.isfile(path):
                why = f"{label} {path} is not an executable file: install it first"
                raise VoicesError(f"service {self.spec.name}: {why}")

    def stop_everything(self) -> None:
        """Stop supervisord, its wrapper, and every process of the service, in that order, by identity."""
        limit_s = self.spec.stop_seconds + 20
        booted = self.client.booted()
        if self.supervisor.shut_down():
            processes.wait_gone(self.supervisor.find(processes.process_table()), limit_s)
        self._kill_supervisord()
        processes.terminate(self.client.wrappers(processes.process_table()), limit_s)  # each stops the process first
        left = self._living(booted)
        leader = {booted.leader} & left if booted else set()
        processes.terminate(leader, self.spec.stop_seconds)  # it may stop the others itself
        self._end(self._living(booted) | {one for one in left if processes.is_alive(one)})

    def _present_launch_id(self) -> str:
        """The id of the launch that runs, so that the wrapper knows its process again."""
        for name in ("booted.json", "launch.json"):
            known = (self.directory.state(name) or {}).get("launch_id")
            if known:
                return str(known)
        return secrets.token_hex(6)

    def _write_launch(self, launch_id: str, adopt: Identity | None) -> None:
        launch = {**self.spec.launch(), "launch_id": launch_id, "adopt": adopt.as_dict() if adopt else None}
        write_text(Path(self.spec.path("run", "launch.json")), json.dumps(launch, indent=1))

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

    def _clear_for(self, adopt: Identity) -> None:
        """End what is left of the service, except the process to adopt and all that belongs to it."""
        booted = self.client.booted()
        self._kill_supervisord()
        wrappers = self.client.wrappers(processes.process_table())
        for one in wrappers:
            processes.send(one, signal.SIGUSR1)
        processes.terminate(processes.wait_gone(wrappers, 5), 0)
        table = processes.process_table()
        head = table.get(adopt.pid)
        group = adopt.pid if head is not None and head.group == adopt.pid else 0
        kept = processes.members(table, processes.boot_id(), adopt, group)
        self._end(self.client.members(table, booted, marked=True) - kept)

    def _living(self, booted: Booted | None) -> set[Identity]:
        """Every process of the service that lives now, by whatever it can be known."""
        return self.client.members(processes.process_table(), booted, marked=True)

    def _end(self, identities: set[Identity]) -> None:
        survivors = processes.terminate(identities, 5)
        if survivors:
            names = ", ".join(f"pid {one.pid}" for one in sorted(survivors))
            raise VoicesError(f"service {self.spec.name}: {names} cannot be ended, not even by SIGKILL: find out why")
