"""A seat on this machine for a test: its own root, port and inventory file, brought up by the product's site.yml."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support import observe
from tests.support.play import REPOSITORY, Play, run_play
from tests.support.tiny_carrier import write_adapter, write_carrier

ENGINE_PYTHON = os.environ.get("VOICES_ENGINE_PYTHON", str(REPOSITORY / "var/venv/engine-cpu/bin/python"))
BIN = Path(sys.executable).parent


class LocalSeat:
    """One seat named ``name`` below ``root``; ``voices`` and ``options`` are what its inventory says next."""

    def __init__(self, root: Path, name: str = "t1") -> None:
        self.root, self.name, self.port = root, name, observe.free_port()
        self.made = root / "made"
        self.sources = root / "sources"
        self.carrier = root / "carrier"
        self.inventory = root / "inventory.yml"
        self.voices: dict[str, dict[str, Any]] = {}
        self.options: dict[str, Any] = {}
        self.host_vars: dict[str, Any] = {}
        write_carrier(self.carrier)

    @property
    def directory(self) -> Path:
        """The seat's own directory."""
        return self.made / "seats" / self.name

    @property
    def engine_file(self) -> Path:
        """engine.yaml."""
        return self.directory / "engine/engine.yaml"

    @property
    def log(self) -> str:
        """The engine's log so far."""
        return (self.directory / "service/log/service.log").read_text()

    def add_voice(self, voice: str, *, source: str = "", **adapter: Any) -> None:
        """Make a source for ``voice`` (unless one is named) and put it into the inventory."""
        if not source:
            source = f"{voice}-v1"
            write_adapter(self.sources / source, voice, **adapter)
        self.voices[voice] = {"source": source, "state": "present"}

    def write_inventory(self) -> None:
        """The inventory file as it now is."""
        seat = {
            "carrier": str(self.carrier),
            "port": self.port,
            "dtype": "float32",
            "max_model_len": 1024,
            "kv_cache_mib": 256,
            "max_lora_rank": 8,
            "engine_flags": {"enforce-eager": True},
            "environment": {"OMP_NUM_THREADS": "2"},
            "voices": self.voices,
            **self.options,
        }
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "host_tools_manage": False,
            "voices_seat_root": str(self.made),
            "voices_seat_adapters_dir": str(self.sources),
            "voices_seat_runtime": "supervisor",
            "voices_seat_engine_python": ENGINE_PYTHON,
            "voices_seat_supervisord": str(BIN / "supervisord"),
            "voices_seat_supervisor_python": sys.executable,
            "voices_seat_generate_api_key": True,
            "voices_seats": {self.name: seat},
            **self.host_vars,
        }
        self.inventory.write_text(yaml.safe_dump({"voices_hosts": {"hosts": {"seat-host": host}}}))

    def run(self, *, check: bool = False, playbook: str = "site.yml", **extra: Any) -> Play:
        """Write the inventory and run a playbook with it."""
        self.write_inventory()
        return run_play(self.inventory, playbook=playbook, check=check, extra=extra or None)

    @property
    def key(self) -> str:
        """The seat's key."""
        return (self.directory / "secrets/api_key").read_text().strip()

    def ask(self, model: str, prompt: str = "Tell me about the weather today.", max_tokens: int = 24) -> str:
        """One question at temperature 0."""
        return observe.ask(self.port, model, self.key, prompt, max_tokens)

    def live(self) -> dict[str, str]:
        """Live adapters by name."""
        return observe.live(self.port, self.key)

    def persisted(self) -> dict[str, str]:
        """Voices in engine.yaml by name."""
        entries = yaml.safe_load(self.engine_file.read_text()).get("lora-modules") or []
        return dict(entry.split("=", 1) for entry in entries)

    def engine_pids(self) -> dict[str, int]:
        """The engine's processes by role: the API server (server) and its engine core (core)."""
        found: dict[str, int] = {}
        for pid, command in observe.processes(self.directory).items():
            if "api_server" in command and "service_run" not in command:
                found["server"] = pid
            elif "EngineCore" in command or "Worker" in command:
                found.setdefault("core" if "EngineCore" in command else "worker", pid)
        return found

    def state(self) -> tuple[Any, ...]:
        """All that a check may not change: files with inodes and hashes, processes, live voices."""
        return observe.tree(self.made), observe.processes(self.made), self.live()
