"""Run a real ansible-playbook and read what each task returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PLANNING_MODULES = ("adapter_store", "engine_file", "supervised_service", "compose_project", "vllm_lora_adapters")
# These are called twice in a real run: once in check mode, to say the plan, and once to carry it out.
PLANNED_FIRST = ("supervised_service", "compose_project")


@dataclass(frozen=True)
class Play:
    """An ended run: its exit status, its screen output, and the task results in order."""

    rc: int
    output: str
    tasks: list[dict[str, Any]]
    seconds: float

    @property
    def changed(self) -> list[str]:
        """Names of the tasks that report a change."""
        return [task["task"] for task in self.tasks if task["changed"]]

    @property
    def actions(self) -> list[dict[str, Any]]:
        """Every module's plan, in order; a plan that is made and then applied counts once."""
        found: list[dict[str, Any]] = []
        previous = None
        for task in self.tasks:
            if task["module"] not in PLANNING_MODULES or not task["actions"]:
                continue
            if task["module"] in PLANNED_FIRST and previous == task["actions"]:
                continue
            previous = task["actions"]
            found += task["actions"]
        return found

    @property
    def flat(self) -> str:
        """The output on one line: YAML output folds long messages wherever they are too long."""
        return " ".join(self.output.split())

    def result(self, module: str) -> dict[str, Any]:
        """The last result of a module."""
        return [task for task in self.tasks if task["module"] == module][-1]["result"]


def ansible_environment(log: str) -> dict[str, str]:
    """The environment of a run: this checkout's configuration, nothing of the person's own."""
    scratch = REPOSITORY / "var/ansible"
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "ANSIBLE_HOME": str(scratch),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CALLBACK_PLUGINS": str(REPOSITORY / "tests/support/callback_plugins"),
        "ANSIBLE_CALLBACKS_ENABLED": "plan_log",
        "VOICES_PLAN_LOG": log,
    }


def play_command(inventory: Path, playbook: str, limit: str, extra: Mapping[str, Any] | None, check: bool) -> list[str]:
    """The command line of a run."""
    command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook, "-i", str(inventory), "--diff"]
    command += ["--limit", limit]
    if check:
        command.append("--check")
    if extra:
        command += ["--extra-vars", json.dumps(extra)]
    return command


def start_play(inventory: Path, *, playbook: str = "site.yml", limit: str = "seat-host") -> subprocess.Popen[bytes]:
    """A run that goes on in a process group of its own, for a test that kills it."""
    return subprocess.Popen(
        play_command(inventory, playbook, limit, None, False),
        cwd=REPOSITORY,
        env=ansible_environment(os.devnull),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def run_play(
    inventory: Path,
    *,
    playbook: str = "site.yml",
    limit: str = "seat-host",
    extra: Mapping[str, Any] | None = None,
    check: bool = False,
    timeout: float = 300,
) -> Play:
    """Run ``playbook`` with ``--diff``; ``check`` adds ``--check``. A failed play is a result, not an exception."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as log:
        command = play_command(inventory, playbook, limit, extra, check)
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=ansible_environment(log.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        tasks = [json.loads(line) for line in log.read().splitlines()]
    return Play(done.returncode, done.stdout, tasks, time.monotonic() - began)
