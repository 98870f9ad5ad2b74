"""Real vLLM servers on a GPU machine: start, know that the one that answers is the one started, load, stop."""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.configurations import Configuration


@dataclass
class Server:
    """One engine of a wave."""

    configuration: Configuration
    carrier: Path
    adapter: Path | None
    port: int
    scratch: Path
    process: subprocess.Popen[bytes] | None = None
    healthy_s: float | None = None
    problem: str = ""
    extra_path: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Also the name under which the engine serves, so that an answer says whose it is."""
        return self.configuration.name

    @property
    def log(self) -> Path:
        """What the engine prints."""
        return self.scratch / f"{self.name}.log"

    @property
    def engine_file(self) -> Path:
        """The engine's configuration, as a seat has one: by it the module knows whose a process is. JSON is YAML."""
        return self.scratch / self.name / "engine.yaml"

    def engine_flags(self) -> dict[str, Any]:
        """Everything that the engine is told."""
        flags = {**self.configuration.flags, "model": str(self.carrier), "served-model-name": self.name}
        flags |= {"host": "127.0.0.1", "port": self.port}
        if not self.configuration.weights:
            flags["load-format"] = "dummy"
        if self.adapter is not None:
            flags["lora-modules"] = [f"voice={self.adapter}"]
        return flags

    def start(self) -> None:
        """Start it; a port that answers already belongs to somebody else."""
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                raise SystemExit(f"port {self.port} answers before {self.name} was started")
        self.engine_file.parent.mkdir(parents=True, exist_ok=True)
        self.engine_file.write_text(json.dumps(self.engine_flags()))
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--config", str(self.engine_file)]
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        environment |= {**self.configuration.environment, **self.environment}
        if self.extra_path:
            environment["PYTHONPATH"] = f"{self.extra_path}:{environment.get('PYTHONPATH', '')}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.scratch,
            )

    def ask(self, path: str, body: dict[str, Any] | None = None, timeout: float = 120) -> Any:
        """The parsed answer of the engine."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - loopback
            text = answer.read()
        return json.loads(text) if text else None

    def is_ours(self) -> bool:
        """The process lives and the name that answers is this configuration's."""
        assert self.process is not None
        names = {model["id"] for model in self.ask("/v1/models")["data"]}
        return self.process.poll() is None and self.name in names

    def pids(self) -> set[int]:
        """The server and every process below it."""
        assert self.process is not None
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found

    def load(self) -> dict[str, int]:
        """The largest prefill, then every sequence at once, for the base and for a voice; returns counts."""
        rng = random.Random(self.name)  # noqa: S311 - prompts that nobody guesses are not needed
        longest = int(self.configuration.flags["max-model-len"]) - 64
        jobs = []
        for model in [self.name, "voice"] if self.adapter is not None else [self.name]:
            for _ in range(3):
                prompt = [rng.randrange(300, 100_000) for _ in range(longest)]
                jobs.append({"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0})
            for _ in range(int(self.configuration.flags.get("max-num-seqs", 32))):
                prompt = [rng.randrange(300, 100_000) for _ in range(32)]
                sampling = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "ignore_eos": True}
                jobs.append({"model": model, "prompt": prompt, "max_tokens": 64, **sampling})
        counts = {"asked": len(jobs), "answered": 0}
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            for answer in pool.map(lambda job: self.ask("/v1/completions", job), jobs):
                counts["answered"] += "choices" in answer
        return counts

    def stop(self) -> None:
        """End the server and everything it started."""
        if self.process is None:
            return
        pids = self.pids()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 8
            while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
                self.process.poll()
                time.sleep(0.2)


def wait_healthy(servers: list[Server], timeout_s: float) -> None:
    """Until each is healthy, dead or out of time; what went wrong is in its ``problem``."""
    began = time.monotonic()
    waiting = list(servers)
    while waiting and time.monotonic() - began < timeout_s:
        for server in list(waiting):
            assert server.process is not None
            if server.process.poll() is not None:
                server.problem = f"ended with {server.process.returncode}"
                waiting.remove(server)
                continue
            try:
                server.ask("/health", timeout=2)
            except OSError:
                continue
            server.healthy_s = round(time.monotonic() - began, 1)
            if not server.is_ours():
                server.problem = "another server answers"
            waiting.remove(server)
        time.sleep(0.5)
    for server in waiting:
        server.problem = f"not healthy after {timeout_s:.0f} s"
