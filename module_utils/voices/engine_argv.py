"""What a vLLM command line and its ``--config`` file ask for, in one normal form, so that two can be compared. Pure.

Sources: vLLM's FlexibleArgumentParser (0.26 to 0.32): ``--a_b`` is ``--a-b``; keys of the YAML file act as if they
stood before the command line's own options, so the command line wins; a boolean is ``--flag`` or ``--no-flag``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .flags import mask_flags

VLLM = ("vllm",)
"""The program of every way to start vLLM's OpenAI server."""

_MODULE = "vllm.entrypoints.openai.api_server"
_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_REPEATABLE = {"middleware"}


@dataclass(frozen=True)
class EngineCommand:
    """A command line in parts: what runs, its options by kebab-case name, and its configuration file."""

    program: tuple[str, ...]
    flags: dict[str, Any] = field(default_factory=dict)
    config_file: str = ""


def parse_command(argv: Sequence[str]) -> EngineCommand:
    """Split a command line. For a program that is not vLLM, ``program`` is everything before the first option."""
    program, rest = _split_program(list(argv))
    flags: dict[str, Any] = {}
    position = 0
    while position < len(rest):
        part = rest[position]
        position += 1
        if not _is_option(part):
            flags.setdefault("model" if program == VLLM else "(positional)", part)
            continue
        name, equals, inline = part.partition("=")
        values = [inline] if equals else []
        while not equals and position < len(rest) and not _is_option(rest[position]):
            values.append(rest[position])
            position += 1
        key = _SHORT.get(name, name.lstrip("-")).replace("_", "-")
        value: Any = True if not values else values[0] if len(values) == 1 else values
        if not values and key.startswith("no-"):
            key, value = key.removeprefix("no-"), False
        if key in _REPEATABLE and key in flags:
            value = [*_listed(flags[key]), *_listed(value)]
        flags[key] = value
    config_file = str(flags.pop("config", ""))
    return EngineCommand(program, flags, config_file)


def effective_flags(
    command: EngineCommand, config: Mapping[str, Any] | None, ignore: Collection[str] = ()
) -> dict[str, Any]:
    """The options that count: those of the file, overridden by the command line, normal, masked, without ``ignore``."""
    merged: dict[str, Any] = {}
    for source in (config or {}, command.flags):
        for key, value in source.items():
            merged[str(key).replace("_", "-")] = value
    ignored = {key.replace("_", "-") for key in ignore}
    kept = {key: value for key, value in merged.items() if value is not None and key not in ignored}
    return {key: normal(value) for key, value in mask_flags(kept).items()}


def normal(value: Any) -> Any:
    """One form for values that mean the same: ``"8"`` and 8, ``"true"`` and True, ``[x]`` and x, JSON and its value."""
    if isinstance(value, str):
        return _normal_text(value.strip())
    if isinstance(value, Mapping):
        return {str(key): normal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [normal(item) for item in value]
        return items[0] if len(items) == 1 else items
    return value


def _normal_text(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _NUMBER.fullmatch(text):
        return float(text) if re.search(r"[.eE]", text) else int(text)
    if text[:1] in ("{", "["):
        try:
            return normal(json.loads(text))
        except ValueError:
            return text
    return text


def same(one: Any, other: Any) -> bool:
    """Whether two values mean the same to the engine (``True`` is not 1; 1 is 1.0)."""
    return _equal(normal(one), normal(other))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, before, after) for each key whose values differ, sorted by key; None stands for a missing key."""
    return [
        (key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if not same(before.get(key), after.get(key))
    ]


def _split_program(argv: list[str]) -> tuple[tuple[str, ...], list[str]]:
    for position, part in enumerate(argv[:4]):
        if part == "-m" and argv[position + 1 : position + 2] == [_MODULE]:
            return VLLM, argv[position + 2 :]
        if part.rpartition("/")[2] == "vllm" and argv[position + 1 : position + 2] == ["serve"]:
            return VLLM, argv[position + 2 :]
        if part.endswith(_MODULE.replace(".", "/") + ".py"):
            return VLLM, argv[position + 1 :]
    first = next((at for at, part in enumerate(argv) if part.startswith("--")), len(argv))
    return tuple(argv[:first]), argv[first:]


def _is_option(part: str) -> bool:
    return part.startswith("-") and part != "-" and not _NUMBER.fullmatch(part)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
