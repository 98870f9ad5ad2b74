"""Measure on a GPU what seats really take, and keep it as JSON for the comparison with the sizing.

usage: python -m tests.gpu.measure WAVE SCRATCH OUT.json [--probe] [--refusals]

Run on the GPU machine with vLLM on PYTHONPATH. Every engine of the wave runs at the same time; NVML's bytes of each
process keep them apart. Memory is read when all are healthy, and again after the largest prefill and a full batch.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml

from tests.gpu import carrier
from tests.gpu.configurations import CONFIGURATIONS
from tests.gpu.module_check import ask_module, try_refusals
from tests.gpu.servers import Server, wait_healthy

HERE = Path(__file__).parent
FIRST_PORT = 8300

#: What the engine says of its own memory. The two-sided check with NVML is in compare.py.
LOG_LINES = {
    "kv_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
    "model_gib": r"Model loading took ([\d.]+) GiB",
    "graphs_gib": r"Graph capturing finished in \d+ secs, took (-?[\d.]+) GiB",
    "initial_free_gib": r"Initial free memory ([\d.]+) GiB",
    "batched_tokens": r"max_num_batched_tokens=(\d+)",
    "captured": r"'?cudagraph_capture_sizes'?: \[([\d, ]+)\]",
    "graph_mode": r"cudagraph_mode'?: <CUDAGraphMode\.(\w+)",
    "snapshot": r"worker init memory snapshot: (.*)",
    "runner": r"(Using V2 Model Runner)",
}


def card_memory() -> dict[str, int]:
    """NVML's words on the first card, v1 and v2, in bytes."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {
        "v1_total_bytes": first.total,
        "v1_used_bytes": first.used,
        "v2_total_bytes": second.total,
        "v2_reserved_bytes": second.reserved,
        "v2_used_bytes": second.used,
        "v2_free_bytes": second.free,
    }


def process_bytes() -> dict[int, int]:
    """NVML's bytes of each process on the first card."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}


def bare_context() -> dict[str, Any]:
    """What CUDA alone takes and sees: a process that opens a context and allocates nothing."""
    program = (
        "import torch, sys; torch.cuda.init(); torch.cuda.synchronize();"
        "name = torch.cuda.get_device_name().replace(' ', '_');"
        "print(*torch.cuda.mem_get_info(), torch.__version__, name, flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        free, total, torch_version, name = process.stdout.readline().decode().split()
        seen = {"cuda_free_bytes": int(free), "cuda_total_bytes": int(total), "torch": torch_version, "card": name}
        seen |= {"process_bytes": process_bytes().get(process.pid), **card_memory()}
        process.stdin.close()
    return seen


def said(log: Path) -> dict[str, Any]:
    """What the engine's log says, by LOG_LINES; None where it says nothing."""
    text = log.read_text(errors="replace")
    found: dict[str, Any] = {}
    for key, pattern in LOG_LINES.items():
        match = re.search(pattern, text)
        found[key] = match.group(1) if match else None
    return found


def resident(servers: list[Server]) -> dict[str, int]:
    """MiB are for people: bytes of each server's processes on the card."""
    used = process_bytes()
    return {one.name: sum(used.get(pid, 0) for pid in one.pids()) for one in servers if not one.problem}


def tail(path: Path, lines: int) -> str:
    """The end of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def prepare(scratch: Path, wave: str, probe: bool) -> list[Server]:
    """Write carriers and adapters once; one server for each configuration of the wave."""
    servers = []
    for number, one in enumerate(one for one in CONFIGURATIONS if one.wave == wave):
        home = scratch / "models" / f"{one.shape}{'-weights' if one.weights else ''}"
        if not (home / "config.json").exists():
            carrier.write_carrier(home, one.shape)
            if one.weights:
                carrier.write_weights(home, one.shape)
        adapter = None
        if one.rank:
            adapter = scratch / "models" / f"{one.shape}-r{one.rank}"
            if not adapter.exists():
                carrier.write_adapter(adapter, one.shape, one.rank, 0)
        server = Server(one, home, adapter, FIRST_PORT + number, scratch)
        if probe:
            server.extra_path = str(HERE / "probe")
            server.environment["VOICES_PROBE_DIR"] = str(scratch)
        servers.append(server)
    return servers


def main() -> int:
    """Measure one wave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wave")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--probe", action="store_true", help="follow torch's own counters in every engine")
    parser.add_argument("--refusals", action="store_true", help="try two engines more, of which one must be refused")
    parser.add_argument("--timeout", type=float, default=400)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    pynvml.nvmlInit()
    result: dict[str, Any] = {"wave": options.wave, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    result |= {"driver": pynvml.nvmlSystemGetDriverVersion(), "empty": card_memory(), "before": process_bytes()}
    result["context"] = bare_context()
    servers = prepare(options.scratch, options.wave, options.probe)
    print("prepared", time.strftime("%X"), flush=True)
    try:
        for server in servers:
            server.start()
        wait_healthy(servers, options.timeout)
        print("healthy", time.strftime("%X"), [(one.name, one.healthy_s, one.problem) for one in servers], flush=True)
        time.sleep(3)
        started = resident(servers)
        result["card_started"] = card_memory()
        result["module"] = ask_module(servers)
        if options.refusals:
            result["refusals"] = try_refusals(servers, options.scratch)
            print("refusals", time.strftime("%X"), flush=True)
        loads = {one.name: one.load() for one in servers if not one.problem}
        time.sleep(3)
        loaded = resident(servers)
        result["card_loaded"] = card_memory()
        result["module_loaded"] = ask_module(servers)
        result["servers"] = {
            one.name: {
                "shape": one.configuration.shape,
                "flags": one.configuration.flags,
                "environment": one.configuration.environment,
                "weights": "safetensors" if one.configuration.weights else "dummy",
                "problem": one.problem,
                "healthy_s": one.healthy_s,
                "started_bytes": started.get(one.name),
                "loaded_bytes": loaded.get(one.name),
                "load": loads.get(one.name),
                "said": said(one.log),
                "version": None if one.problem else one.ask("/version")["version"],
                "end_of_log": tail(one.log, 25) if one.problem else "",
                "still_ours": not one.problem and one.is_ours(),
            }
            for one in servers
        }
    finally:
        for server in servers:
            server.stop()
        options.out.write_text(json.dumps(result, indent=1))
    print("done", time.strftime("%X"), flush=True)
    return 1 if any(one.problem for one in servers) else 0


if __name__ == "__main__":
    raise SystemExit(main())
