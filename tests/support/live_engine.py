"""A real vLLM CPU engine for tests, started the way a seat starts it: engine_file writes, ``--config`` reads."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.voices.engine_directory import EngineDirectory, read_key
from ansible.module_utils.voices.names import BASE_MODEL
from ansible.module_utils.voices.seat import engine_argv, engine_environment, layout
from ansible.module_utils.voices.seat_api import SeatApi

from tests.support.run_module import run_module
from tests.support.tiny_carrier import write_adapter, write_carrier

REPOSITORY = Path(__file__).resolve().parents[2]
GUARD = REPOSITORY / "roles/voices_seat/files/voices_guard.py"
SEAT = "test"
SPACE = {"VLLM_CPU_KVCACHE_SPACE": "1"}
HEALTH_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0


def engine_python() -> Path:
    """The engine's interpreter. Raises FileNotFoundError: a skipped integration test looks like a passed one."""
    given = os.environ.get("VOICES_ENGINE_PYTHON")
    python = Path(given) if given else REPOSITORY / "var/venv/engine-cpu/bin/python"
    if not python.exists():
        raise FileNotFoundError(f"{python} is not there: run `make setup`, or set VOICES_ENGINE_PYTHON")
    return python


@dataclass(frozen=True)
class LiveEngine:
    """A running engine and where its files lie."""

    root: Path
    port: int
    pid: int
    log: Path
    key: str = field(repr=False)

    @property
    def paths(self) -> dict[str, str]:
        return layout(str(self.root), SEAT)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def api(self) -> SeatApi:
        return SeatApi(self.base_url, self.key)

    def persisted(self) -> dict[str, str]:
        """The voices that stand in engine.yaml."""
        found = EngineDirectory(self.paths["engine_file"]).read_engine_file()
        assert found is not None
        return found[1]

    def adapter(self, name: str, version: str, *, weights_of: str = "") -> str:
        """The path of an adapter, named as the store would; ``weights_of`` another voice: the same version of its."""
        directory = self.root / "store" / f"{name}@{version}"
        if not directory.exists():
            write_adapter(directory, name, seed=f"{weights_of or name} {version}")
        return str(directory)

    def sync(self, voices: Mapping[str, str], *, check: bool = False, **others: Any) -> dict[str, Any]:
        """Run vllm_lora_adapters against this engine."""
        args = {
            "base_url": self.base_url,
            "api_key_file": self.paths["api_key_file"],
            "engine_file": self.paths["engine_file"],
            "voices": dict(voices),
        }
        return run_module("vllm_lora_adapters", {**args, **others}, check=check)

    def request(
        self, method: str, path: str, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One raw request: the path goes out letter by letter. Returns (status, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        body = None
        if method in ("POST", "PUT", "PATCH", "DELETE"):
            body, sent["Content-Type"] = "{}", "application/json"
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return answer.status, b"" if answer.status == http.HTTPStatus.SWITCHING_PROTOCOLS else answer.read()
        finally:
            connection.close()

    def cached_tokens(self) -> float:
        """Prompt tokens answered from the prefix cache since the start."""
        _, body = self.request("GET", "/metrics")
        lines = [line for line in body.decode().splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
        assert lines, "the engine no longer counts prefix cache hits under this name"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def reset(self) -> None:
        """No adapter live, none in engine.yaml."""
        api = self.api()
        EngineDirectory(self.paths["engine_file"]).change_voices(dict.clear)
        for name in api.adapters(BASE_MODEL):
            api.unload(name)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def write_engine_file(root: Path, port: int) -> dict[str, Any]:
    """Run engine_file as the role does, with a generated key; returns its result."""
    paths = layout(str(root), SEAT)
    carrier = root / "carriers/tiny"
    if not carrier.exists():
        write_carrier(carrier)
    flags = {
        "model": str(carrier),
        "served-model-name": BASE_MODEL,
        "host": "127.0.0.1",
        "port": port,
        "enable-lora": True,
        "max-lora-rank": 8,
        "dtype": "float32",
        "max-model-len": 1024,
        "enforce-eager": True,
    }
    args = {
        "path": paths["engine_file"],
        "flags": flags,
        "max_loras": 4,
        "max_cpu_loras": 8,
        "api_key_file": paths["api_key_file"],
        "generate_api_key": True,
        "guard": GUARD.read_text(),
    }
    result = run_module("engine_file", args)
    assert not result.get("failed"), result
    return result


@contextlib.contextmanager
def running_engine(root: Path) -> Iterator[LiveEngine]:
    """Start an engine below ``root``, wait until it is healthy, and end it and its children by process group."""
    python, port, paths = engine_python(), _free_port(), layout(str(root), SEAT)
    write_engine_file(root, port)
    key = read_key(Path(paths["api_key_file"]))
    assert key
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root / "home"),
        **engine_environment({"runtime": "supervisor", "gpu": None, "environment": SPACE}, paths),
    }
    (root / "home").mkdir()
    log = root / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            engine_argv(str(python), paths),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=root,
            start_new_session=True,
        )
    try:
        _wait_healthy(process, SeatApi(f"http://127.0.0.1:{port}", key, timeout_s=5), log)
        yield LiveEngine(root, port, process.pid, log, key)
    finally:
        _end(process)


def _wait_healthy(process: subprocess.Popen[bytes], api: SeatApi, log: Path) -> None:
    end = time.monotonic() + HEALTH_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        if api.healthy():
            return
        time.sleep(0.25)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    raise AssertionError(f"the engine did not get healthy (exit status {process.poll()}); the end of its log:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the session that was started here: the API server and its engine processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)


def error_message(body: bytes) -> str:
    """The message of an OpenAI-shaped error body, "" for anything else."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
