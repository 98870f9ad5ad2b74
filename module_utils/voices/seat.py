"""From a normalised seat to what starts it: paths, engine flags, environment, argv. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cards_spec import MIB
from .names import BASE_MODEL
from .spec import kebab_flag


def layout(root: str, name: str) -> dict[str, str]:
    """Where a seat keeps what it makes, below the host's ``root``. Every path carries the seat's name."""
    seat = f"{root}/seats/{name}"
    return {
        "seat_dir": seat,
        "engine_dir": f"{seat}/engine",
        "engine_file": f"{seat}/engine/engine.yaml",
        "service_dir": f"{seat}/service",
        "api_key_file": f"{seat}/secrets/api_key",
        "auth_header_file": f"{seat}/secrets/auth.header",
        "lease": f"{root}/leases/{name}.json",
        "store": f"{root}/store",
        "records_dir": f"{root}/records",
        "cache_dir": f"{root}/cache/{name}",
        "tmp_dir": f"{seat}/service/tmp",
    }


def engine_flags(seat: Mapping[str, Any]) -> dict[str, Any]:
    """The engine.yaml flags that the inventory decides (kebab-case), without the key, the slots and the voices."""
    kv_cache_mib = seat["kv_cache_mib"]
    flags = {
        "model": seat["carrier"],
        "served-model-name": BASE_MODEL,
        # A container has its own loopback: the engine listens to all of it, and compose publishes on ``bind`` alone.
        "host": "0.0.0.0" if seat["runtime"] == "compose" else seat["bind"],  # noqa: S104 - inside a container
        "port": seat["port"],
        "enable-lora": True,
        "max-lora-rank": seat["max_lora_rank"],
        "dtype": seat["dtype"],
        "max-model-len": seat["max_model_len"],
        "kv-cache-memory-bytes": None if kv_cache_mib is None else kv_cache_mib * MIB,
        "gpu-memory-utilization": seat["gpu_memory_utilization"],
    }
    flags.update({kebab_flag(flag): value for flag, value in seat["engine_flags"].items()})
    return {flag: value for flag, value in flags.items() if value is not None}


def engine_environment(seat: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: what the seat needs, then what the inventory adds."""
    environment = {
        "PYTHONPATH": paths["engine_dir"],
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CACHE_ROOT": f"{paths['cache_dir']}/vllm",
        "TORCHINDUCTOR_CACHE_DIR": f"{paths['cache_dir']}/inductor",
        "XDG_CACHE_HOME": f"{paths['cache_dir']}/xdg",
        # The carrier is a directory; nothing is looked up on a hub, and nothing is reported to anyone.
        "HF_HOME": f"{paths['cache_dir']}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if len(paths["tmp_dir"]) <= LONGEST_TMP_DIR and seat["runtime"] == "supervisor":
        environment["TMPDIR"] = paths["tmp_dir"]
    environment.update(card_environment(seat))
    environment.update({str(key): str(value) for key, value in seat["environment"].items()})
    return environment


def card_environment(seat: Mapping[str, Any]) -> dict[str, str]:
    """What puts a bare process on the seat's card; a container is given its card alone by Compose.

    CUDA numbers cards by speed unless told otherwise, and NVML, nvidia-smi and the inventory by PCI bus.
    """
    if not seat["gpu"] or seat["runtime"] != "supervisor":
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": seat["gpu"]}


#: vLLM puts sockets of 37 characters there, and a socket's path has at most 107 (unix(7)); else the system's serves.
LONGEST_TMP_DIR = 68

#: Environment that decides how an engine behaves: a process started by hand is adopted only when these agree.
ADOPT_ENVIRONMENT = ("VLLM_ALLOW_RUNTIME_LORA_UPDATING",)


def engine_argv(engine_python: str, paths: Mapping[str, str]) -> list[str]:
    """The command. The console script looks up the distribution ``vllm``, which the CPU build is not called."""
    return [engine_python, "-m", "vllm.entrypoints.openai.api_server", "--config", paths["engine_file"]]


def compose_service(
    name: str, seat: Mapping[str, Any], paths: Mapping[str, str], *, python: str, mounts: Sequence[str]
) -> dict[str, Any]:
    """What the seat's compose.yaml is made of. ``mounts`` are further host paths that the container reads.

    Every path is the same inside and outside, so that one engine.yaml serves both runtimes. Only the cache is writable.
    """
    url = f"http://127.0.0.1:{seat['port']}/health"
    readable = [paths["engine_dir"], paths["store"], seat["carrier"], *mounts]
    environment = {**engine_environment(seat, paths), "HOME": paths["cache_dir"]}
    return {
        "project": f"voices-{name}",
        "directory": f"{paths['seat_dir']}/compose",
        "image": seat["image"],
        "entrypoint": engine_argv(python, paths)[:3],
        "command": engine_argv(python, paths)[3:],
        "user": seat["service_user"],
        "shm_size": f"{seat['shm_mib']}m",
        "environment": environment,
        "mounts": [
            *({"path": path, "read_only": True} for path in dict.fromkeys(readable)),
            {"path": paths["cache_dir"], "read_only": False},
        ],
        "health_command": [python, "-c", f"import urllib.request as u; u.urlopen({url!r}, timeout=4)"],
        "gpu": seat["gpu"] or "",
        "made": [paths["engine_dir"], paths["store"], paths["cache_dir"]],
    }


def base_url(seat: Mapping[str, Any]) -> str:
    """Where the host itself reaches the seat. An address of all interfaces is reached through loopback."""
    bind = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(seat["bind"], seat["bind"])  # noqa: S104 - compared, not bound
    return f"http://[{bind}]:{seat['port']}" if ":" in bind else f"http://{bind}:{seat['port']}"


def voices_by_state(seat: Mapping[str, Any], *states: str) -> list[str]:
    """Names of the seat's voices in one of ``states``, sorted."""
    return sorted(name for name, voice in seat["voices"].items() if voice["state"] in states)


def adapter_sources(seat: Mapping[str, Any], adapters_dir: str) -> dict[str, dict[str, str]]:
    """``adapter_store``'s voices: the present ones, with whole source paths and their pins."""
    found: dict[str, dict[str, str]] = {}
    for name in voices_by_state(seat, "present"):
        voice = seat["voices"][name]
        source = voice["source"] or name
        entry = {"source": source if source.startswith("/") else f"{adapters_dir}/{source}"}
        if voice["digest"]:
            entry["digest"] = voice["digest"]
        found[name] = entry
    return found


def describe(
    name: str,
    seat: Mapping[str, Any],
    *,
    root: str,
    adapters_dir: str,
    engine_python: str,
    container_python: str = "python3",
    container_mounts: Sequence[str] = (),
) -> dict[str, Any]:
    """All that the role's tasks need of a seat, in one dict."""
    paths = layout(root, name)
    compose = seat["runtime"] == "compose"
    return {
        "name": name,
        **paths,
        "state": seat["state"],
        "runtime": seat["runtime"],
        "device": seat["device"],
        "gpu": seat["gpu"] or "",
        "bind": seat["bind"],
        "port": seat["port"],
        "base_url": base_url(seat),
        "flags": engine_flags(seat),
        "max_lora_rank": seat["max_lora_rank"],
        "max_loras": seat["max_loras"],
        "max_cpu_loras": seat["max_cpu_loras"],
        "environment": engine_environment(seat, paths),
        "adopt_environment": sorted({*ADOPT_ENVIRONMENT, *card_environment(seat), *map(str, seat["environment"])}),
        "argv": engine_argv(engine_python, paths),
        "present": voices_by_state(seat, "present"),
        "gone": voices_by_state(seat, "retired", "absent"),
        "absent": voices_by_state(seat, "absent"),
        "sources": adapter_sources(seat, adapters_dir),
        "verdicts": {
            voice: seat["voices"][voice]["verdict"]
            for voice in voices_by_state(seat, "present")
            if seat["voices"][voice]["verdict"]
        },
        "owner": seat["service_user"] if compose else "",
        "compose": compose_service(name, seat, paths, python=container_python, mounts=container_mounts)
        if compose
        else {},
    }
