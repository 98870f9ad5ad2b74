"""What may stand in ``voices_seats``, and why what stands there is refused. Pure.

The specifications are Ansible's own argument specs, applied once a seat and once a voice, because an argument spec
cannot describe a dict whose keys are names. ``normalise`` never raises for bad input: it returns every error it finds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .api_key import key_error
from .cards_spec import card_key
from .engine_slots import slots
from .names import seat_name_error, voice_name_error
from .options import nearest, typed
from .plan import VoicesError

#: The ranks that vLLM's --max-lora-rank takes.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

_IMAGE = re.compile(r"[a-z0-9][a-zA-Z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
_USER = re.compile(r"[0-9]{1,9}:[0-9]{1,9}")
_SECRET = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")

VOICE_SPEC: dict[str, dict[str, Any]] = {
    "source": {"type": "str"},
    "state": {"type": "str", "default": "present", "choices": ["present", "retired", "absent"]},
    "digest": {"type": "str"},
    "verdict": {"type": "str"},
}

SEAT_SPEC: dict[str, dict[str, Any]] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "stopped", "absent"]},
    "runtime": {"type": "str", "choices": ["supervisor", "compose"]},
    "carrier": {"type": "str", "required": True},
    "bind": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "required": True},
    "api_key": {"type": "str", "no_log": True},
    "dtype": {"type": "str", "choices": ["auto", "bfloat16", "float16", "float32"]},
    "max_model_len": {"type": "int"},
    "kv_cache_mib": {"type": "int"},
    "gpu_memory_utilization": {"type": "float"},
    "max_lora_rank": {"type": "int", "default": 16, "choices": list(LORA_RANKS)},
    "max_loras": {"type": "int"},
    "max_cpu_loras": {"type": "int"},
    "engine_flags": {"type": "dict", "default": {}},
    "environment": {"type": "dict", "default": {}},
    "image": {"type": "str"},
    "device": {"type": "str", "choices": ["gpu", "cpu"]},
    "gpu": {"type": "str"},
    "shm_mib": {"type": "int", "default": 1024},
    "service_user": {"type": "str", "default": "10027:10027"},
    "voices": {"type": "dict", "default": {}},
}

#: Engine flags that the seat's own options or the role set; ``engine_flags`` may not name them.
MANAGED_FLAGS = {
    "model": "carrier",
    "served-model-name": "(always voices-base)",
    "host": "bind",
    "port": "port",
    "api-key": "api_key",
    "dtype": "dtype",
    "max-model-len": "max_model_len",
    "kv-cache-memory-bytes": "kv_cache_mib",
    "kv-cache-memory": "kv_cache_mib",
    "gpu-memory-utilization": "gpu_memory_utilization",
    "enable-lora": "(always on)",
    "max-lora-rank": "max_lora_rank",
    "max-loras": "max_loras",
    "max-cpu-loras": "max_cpu_loras",
    "lora-modules": "voices",
    "middleware": "(the seat's guard)",
    "config": "(the seat's engine.yaml)",
    "root-path": "(the guard compares whole paths)",
    "hf-token": "a file: engine.yaml is no place for it",
    "uds": "bind and port",
}

_FLAG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

#: Environment that the role sets for every engine.
MANAGED_ENVIRONMENT = (
    "PYTHONPATH",
    "TMPDIR",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    "VLLM_API_KEY",
    "VLLM_CPU_KVCACHE_SPACE",
    "VOICES_SERVICE",
)


def normalise(
    seats: Any, *, runtime: str, generate_api_key: bool = False
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Typed seats with their defaults, and every error found (an empty list means: valid).

    ``runtime`` is the host's default; ``generate_api_key`` says that a seat without a key gets one. An error names the
    seat, the voice, the option, the value and the fix.
    """
    if not isinstance(seats, Mapping):
        return {}, [f"voices_seats is a {type(seats).__name__}; it is a dict of seats by name"]
    normal: dict[str, dict[str, Any]] = {}
    errors: list[str] = []
    for name, given in seats.items():
        if error := seat_name_error(name):
            errors.append(error)
            continue
        seat, found = _seat(str(name), given, runtime, generate_api_key)
        errors += found
        if not found:
            normal[str(name)] = seat
    errors += _ports(normal)
    return normal, errors


def variable_errors(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Why a variable that looks like one of the role's is refused: a misspelt name would be ignored without a word."""
    known = set(known)
    return [f"unknown variable {name}{nearest(name, known)}" for name in sorted(set(names) - known)]


def trial_errors(
    seats: Mapping[str, Any], *, voice: str, source: str, state: str, seat: str, runtime: str
) -> list[str]:
    """Why a trial (a voice loaded at run time only) is refused; empty when it may go on. ``seat`` may be empty."""
    normal, errors = normalise(seats, runtime=runtime, generate_api_key=True)
    if errors:
        return errors
    if error := voice_name_error(voice):
        errors.append(f"{error}; name it with -e voice=lv-x")
    if state not in ("present", "absent"):
        errors.append(f"state {state!r} is neither present nor absent")
    if state == "present" and not source.startswith("/"):
        errors.append(f"source {source!r} is no whole path; give the adapter's directory with -e source=/DIR")
    if seat and seat not in normal:
        errors.append(f"voices_seat_only names {seat!r}; this host's seats are {', '.join(sorted(normal)) or 'none'}")
    elif not seat and len(normal) != 1:
        errors.append(
            f"this host has {len(normal)} seats ({', '.join(sorted(normal))}); choose one with -e voices_seat_only=SEAT"
        )
    for name in [seat] if seat in normal else sorted(normal):
        if known := normal[name]["voices"].get(voice):
            errors.append(
                f"{voice} stands in the inventory of seat {name} as {known['state']}; what the inventory knows is no "
                "trial: change it there and run site.yml"
            )
    return errors


def _seat(name: str, given: Any, runtime: str, generate: bool) -> tuple[dict[str, Any], list[str]]:
    where = f"seat {name}"
    if not isinstance(given, Mapping):
        return {}, [f"{where} is a {type(given).__name__}; it is a dict of options"]
    seat, errors = typed(where, SEAT_SPEC, given)
    seat["runtime"] = seat["runtime"] or runtime
    seat["gpu"] = seat["gpu"] or None  # an empty text is what a variable without a card leaves
    seat["device"] = seat["device"] or ("gpu" if seat["gpu"] else "cpu")
    voices: dict[str, dict[str, Any]] = {}
    for voice, options in seat["voices"].items():
        voices[voice], found = _voice(where, voice, options)
        errors += found
    seat["voices"] = voices
    errors += _numbers(where, seat)
    errors += _slots(where, seat)
    if seat["api_key"] and (refused := key_error(seat["api_key"], "api_key")):
        errors.append(f"{where}: {refused}")
    errors += _device(where, seat)
    errors += _engine_flags(where, seat["engine_flags"])
    errors += _environment(where, seat["environment"])
    errors += _bind(where, seat, generate)
    if seat["carrier"] and not seat["carrier"].startswith("/"):
        errors.append(
            f"{where}: carrier {seat['carrier']!r} is no whole path; name the directory on the host that holds it, "
            "nothing is looked up on a hub"
        )
    if seat["runtime"] == "compose":
        errors += _compose(where, seat)
    return seat, errors


def _voice(where: str, name: Any, given: Any) -> tuple[dict[str, Any], list[str]]:
    if error := voice_name_error(name):
        return {}, [f"{where}: {error}"]
    where = f"{where}, voice {name}"
    if not isinstance(given, Mapping):
        return {}, [f"{where} is a {type(given).__name__}; it is a dict such as {{source: {name}-v1, state: present}}"]
    voice, errors = typed(where, VOICE_SPEC, given)
    source, digest = voice["source"], voice["digest"]
    if voice["state"] == "present" and not source and not digest and set(given) <= set(VOICE_SPEC):
        errors.append(f"{where} is present and has no source; set source: to the adapter's directory")
    if source and not source.startswith("/") and ".." in source.split("/"):
        errors.append(f"{where}: source {source!r} leaves the adapter directory; give a name below it or a whole path")
    if voice["verdict"] and len(voice["verdict"].splitlines()) > 1:
        errors.append(f"{where}: verdict has several lines; give it in one")
    if digest and not (12 <= len(digest) <= 64 and set(digest) <= set("0123456789abcdef")):
        errors.append(f"{where}: digest {digest!r} is no sha256; give its first 12 to 64 hexadecimal digits")
    return voice, errors


def _numbers(where: str, seat: Mapping[str, Any]) -> list[str]:
    errors = []
    if seat["port"] is not None and not 1 <= seat["port"] <= 65535:
        errors.append(f"{where}: port {seat['port']} is outside 1 to 65535")
    for key in ("max_model_len", "kv_cache_mib", "max_loras", "max_cpu_loras", "shm_mib"):
        if seat[key] is not None and seat[key] < 1:
            errors.append(f"{where}: {key} {seat[key]} is below 1")
    share = seat["gpu_memory_utilization"]
    if share is not None and not 0 < share <= 1:
        errors.append(f"{where}: gpu_memory_utilization {share} is outside 0 to 1; it is a share of the card's total")
    return errors


def _device(where: str, seat: dict[str, Any]) -> list[str]:
    """A seat is on one card, on host memory, or has no placement yet (device gpu and no gpu); the index is NVML's."""
    if seat["gpu"] and seat["device"] == "cpu":
        return [f"{where}: device is cpu and gpu is {seat['gpu']!r}; take one of them out"]
    if seat["gpu"] and not (key := card_key(seat["gpu"])):
        return [
            f"{where}: gpu {seat['gpu']!r} is neither a card's index nor a GPU UUID (nvidia-smi -L lists both); a seat"
            " is on one card, and on no MIG device"
        ]
    if seat["gpu"]:
        seat["gpu"] = key
    if seat["device"] == "cpu":
        return []
    flags = {kebab_flag(flag): value for flag, value in seat["engine_flags"].items()}
    several = [name for name in ("tensor-parallel-size", "pipeline-parallel-size") if str(flags.get(name, 1)) != "1"]
    errors = [f"{where}: engine_flags {name} is {flags[name]}; a seat is on one card" for name in several]
    chosen = [name for name in CHOOSES_CARDS if name in seat["environment"]]
    return errors + [
        f"{where}: environment {name} would choose another card than the seat's gpu; take it out" for name in chosen
    ]


#: Environment by which a CUDA process chooses its cards.
CHOOSES_CARDS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def _slots(where: str, seat: Mapping[str, Any]) -> list[str]:
    if any(seat[key] is not None and seat[key] < 1 for key in ("max_loras", "max_cpu_loras")):
        return []  # said already
    present = sum(voice["state"] == "present" for voice in seat["voices"].values() if voice)
    try:
        slots(present, seat["max_loras"], seat["max_cpu_loras"], {})
    except VoicesError as error:
        return [f"{where}: {error}"]
    return []


def _engine_flags(where: str, flags: Mapping[Any, Any]) -> list[str]:
    errors = []
    for flag, value in flags.items():
        kebab = kebab_flag(flag)
        # vLLM takes any beginning of a flag for the flag, and --no-x for its opposite.
        meant = next((name for name in MANAGED_FLAGS if name.startswith(kebab.removeprefix("no-"))), None)
        if not _FLAG.fullmatch(kebab):
            errors.append(f"{where}: engine_flags {flag!r} is no flag of vLLM; write it like max-num-seqs")
        elif meant:
            errors.append(f"{where}: engine_flags may not set {flag}; its place is {MANAGED_FLAGS[meant]}")
        elif isinstance(value, Mapping):
            errors.append(f"{where}: engine_flags {flag} is a dict; give it as the JSON text that vLLM takes")
    if len({kebab_flag(flag) for flag in flags}) != len(flags):
        errors.append(f"{where}: engine_flags names one flag twice (with - and with _)")
    return errors


def _environment(where: str, environment: Mapping[Any, Any]) -> list[str]:
    errors = [
        f"{where}: environment may not set {key}; the role sets it" for key in environment if key in MANAGED_ENVIRONMENT
    ]
    for key, value in environment.items():
        if not _VARIABLE.fullmatch(str(key)):
            errors.append(f"{where}: environment {key!r} is no name of a variable")
        elif isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
            shown = type(value).__name__
            errors.append(f"{where}: environment {key} is a {shown}; a variable is a text or a number: quote it")
    return errors


def _compose(where: str, seat: Mapping[str, Any]) -> list[str]:
    """What only a container needs: a pinned image, a numeric user, and no secret that ``docker inspect`` would show."""
    errors = []
    image = seat["image"] or ""
    tag = image.rpartition("/")[2].partition(":")[2]
    if not _IMAGE.fullmatch(image) or not ("@sha256:" in image or tag) or tag == "latest":
        errors.append(
            f"{where}: image {image!r} is not pinned; runtime compose needs one with a digest (name@sha256:...) or an "
            "exact tag that is not latest"
        )
    if not _USER.fullmatch(seat["service_user"]):
        errors.append(f"{where}: service_user {seat['service_user']!r} is not uid:gid in numbers, such as 10027:10027")
    elif seat["service_user"].split(":")[0] == "0":
        errors.append(
            f"{where}: service_user {seat['service_user']} is root; an engine needs no rights, name another uid"
        )
    errors += [
        f"{where}: environment {key} looks like a secret, and docker inspect shows a container's environment; give the "
        "engine a file instead"
        for key in seat["environment"]
        if _SECRET.search(str(key).upper())
    ]
    return errors


def _bind(where: str, seat: Mapping[str, Any], generate: bool) -> list[str]:
    try:
        address = ipaddress.ip_address(seat["bind"])
    except ValueError:
        return [f"{where}: bind {seat['bind']!r} is no IP address; name the interface's own address"]
    if address.is_loopback or seat["api_key"] or generate:
        return []
    return [
        f"{where}: bind {address} is beyond loopback and the seat has no api_key: whoever reaches the port could load "
        "adapters; set api_key (vaulted) or bind: 127.0.0.1"
    ]


def _ports(seats: Mapping[str, Mapping[str, Any]]) -> list[str]:
    taken: dict[int, str] = {}
    errors = []
    for name, seat in seats.items():
        if seat["state"] == "absent":
            continue
        other = taken.setdefault(seat["port"], name)
        if other != name:
            errors.append(f"seat {name}: port {seat['port']} is seat {other}'s; give each seat its own port")
    return errors


def kebab_flag(flag: object) -> str:
    """vLLM takes a flag with - or _, and with or without leading dashes; we write it one way."""
    return str(flag).lstrip("-").replace("_", "-")
