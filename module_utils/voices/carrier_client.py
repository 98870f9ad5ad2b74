"""What a host has of a seat's carrier and of its engine file: what the sizing asks for. Reads files, headers only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .engine_directory import carrier_problem

_MOST_CONFIG_BYTES = 4 * 1024 * 1024
_MOST_HEADER_BYTES = 100 * 1024 * 1024
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


def look_at_seat(seat: Mapping[str, Any]) -> dict[str, Any]:
    """``config``, ``tensor_bytes`` of the carrier (or ``carrier_problem``), ``engine_version``, ``flags_in_force``."""
    found: dict[str, Any] = {"engine_version": image_version(str(seat.get("image") or ""))}
    found["flags_in_force"] = slots_in_force(Path(str(seat["engine_file"])))
    directory = Path(str(seat["carrier"]))
    if problem := carrier_problem(str(directory)):
        return {**found, "carrier_problem": problem}
    try:
        found["config"] = read_config(directory)
        found["tensor_bytes"] = tensor_bytes(directory)
    except OSError as error:
        found["carrier_problem"] = f"{error.filename or directory}: {error.strerror or error}"
    except ValueError as error:
        found["carrier_problem"] = f"{directory}: {error}"
    return found


def read_config(directory: Path) -> dict[str, Any]:
    """config.json. Raises OSError, and ValueError for what is no JSON dict."""
    return _json_dict(directory / "config.json", _MOST_CONFIG_BYTES)


def tensor_bytes(directory: Path) -> int | None:
    """Bytes of all tensors in the carrier's safetensors: each file less its header; None without such files.

    Raises OSError, and ValueError for files that are none.
    """
    total, files = 0, 0
    for path in weight_files(directory):
        with path.open("rb") as file:
            head = file.read(8)
        header = int.from_bytes(head, "little")
        size = path.stat().st_size
        if len(head) < 8 or header > min(_MOST_HEADER_BYTES, size - 8):
            raise ValueError(f"{path.name} is no safetensors file")
        total += size - 8 - header
        files += 1
    return total if files else None


def weight_files(directory: Path) -> list[Path]:
    """The safetensors that an engine loads, sorted.

    Where an index is there it names them (vLLM 0.26.0, filter_duplicate_safetensors_files); beside them a carrier may
    hold the same weights once more, in one piece.
    """
    there = sorted(path for path in directory.glob("*.safetensors") if path.is_file())
    try:
        index = _json_dict(directory / "model.safetensors.index.json", _MOST_HEADER_BYTES)
    except FileNotFoundError:
        return there
    named = index.get("weight_map")
    if not isinstance(named, dict) or not named:
        raise ValueError("model.safetensors.index.json has no weight_map")
    missing = set(map(str, named.values())) - {path.name for path in there}
    if missing:
        raise ValueError(f"model.safetensors.index.json names {min(missing)}, which is not there")
    return [path for path in there if path.name in named.values()]


def _json_dict(path: Path, most_bytes: int) -> dict[str, Any]:
    with path.open("rb") as file:
        text = file.read(most_bytes + 1)
    if len(text) > most_bytes:
        raise ValueError(f"{path.name} is larger than {most_bytes} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds a {type(found).__name__}, not a dict")
    return found


def image_version(image: str) -> str:
    """The engine's version in an image's tag (``vllm/vllm-openai:v0.26.0`` -> 0.26.0), "" when it says none. Pure."""
    match = _VERSION.match(image.rpartition("/")[2].partition("@")[0].partition(":")[2])
    return match.group(1) if match else ""


def slots_in_force(engine_file: Path) -> dict[str, int]:
    """max-loras and max-cpu-loras of the engine file that is there; nothing else of it, as it holds the seat's key."""
    try:
        flags = yaml.safe_load(engine_file.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    if not isinstance(flags, dict):
        return {}
    wanted = ("max-loras", "max-cpu-loras")
    return {key: flags[key] for key in wanted if isinstance(flags.get(key), int) and not isinstance(flags[key], bool)}
