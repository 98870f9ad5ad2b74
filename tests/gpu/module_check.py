"""The product's module on a real card beside real engines: what they hold, and whether it refuses when they do."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ansible.module_utils

REPOSITORY = Path(__file__).resolve().parents[2]
ansible.module_utils.__path__.append(str(REPOSITORY / "module_utils"))
sys.path.insert(0, str(REPOSITORY / "library"))

from tests.gpu.configurations import MIB, SMALL, Configuration  # noqa: E402 - after the paths above
from tests.gpu.servers import Server  # noqa: E402
from tests.support.run_module import run_module  # noqa: E402

ENGINE = "vllm/vllm-openai:v0.26.0"
#: More than an engine finds, because its own context takes 518 to 527 MiB of it, and less than is free before.
WITHIN_THE_CONTEXT_MIB = 260
#: Less than what it finds.
BELOW_THE_CONTEXT_MIB = 760


def wish(server: Server) -> dict[str, Any]:
    """The server as the module is told of a seat."""
    return {
        "device": "gpu",
        "gpu": "0",
        "state": "present",
        "runtime": "supervisor",
        "flags": server.engine_flags(),
        "environment": server.configuration.environment,
        "engine_file": str(server.engine_file),
        "service_dir": str(server.scratch / server.name),
        "carrier": str(server.carrier),
        "project": "",
        "image": ENGINE,
        "voices": int(server.adapter is not None),
        "max_loras": server.configuration.slots or None,
        "max_cpu_loras": None,
    }


def ask_module(servers: list[Server]) -> dict[str, Any]:
    """For each server: what the module measured and predicted, in bytes, and what it says."""
    seats = {one.name: wish(one) for one in servers if not one.problem}
    found = {}
    for name in seats:
        answer = run_module("gpu_headroom", {"seats": seats, "seat": name, "enforce": False})
        found[name] = {key: answer.get(key) for key in ("residency", "fits", "resident", "message", "warnings", "msg")}
    return found


def try_refusals(servers: list[Server], scratch: Path) -> list[dict[str, Any]]:
    """Two engines more: one asks for less than is free now and more than it will find, one for less than that."""
    if not servers:
        return []
    looked = run_module("gpu_headroom", {"seats": {}, "enforce": False})
    (card,) = looked["cards"]
    model = next(one for one in servers if not one.problem)
    tried = []
    for number, margin_mib in enumerate((WITHIN_THE_CONTEXT_MIB, BELOW_THE_CONTEXT_MIB)):
        share = (card["free_bytes"] - margin_mib * MIB) / card["cuda_total_bytes"]
        more = {**SMALL, "gpu-memory-utilization": share, "enforce-eager": True}
        one = Configuration(f"asks-{margin_mib}", model.configuration.shape, "-", more=more)
        server = Server(one, model.carrier, None, 8390 + number, scratch)
        seats = {**{other.name: wish(other) for other in servers if not other.problem}, one.name: wish(server)}
        answer = run_module("gpu_headroom", {"seats": seats, "seat": one.name})
        server.start()
        said = wait_for_word(server)
        server.stop()
        tried.append(
            {
                "utilization": share,
                "card_free_bytes": card["free_bytes"],
                "module_fits": not answer.get("failed"),
                "module_says": answer.get("msg") or answer.get("message"),
                "engine_says": said,
            }
        )
    return tried


def wait_for_word(server: Server, timeout_s: float = 120) -> str:
    """The engine's refusal, or the line that shows that it went on to load its model."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for line in server.log.read_text(errors="replace").splitlines():
            if "Free memory on device" in line and "less than desired" in line:
                return "refused: " + line[line.index("Free memory on device") :]
            if "Model loading took" in line:
                return "started: " + line[line.index("Model loading took") :]
        time.sleep(0.5)
    return "neither"
