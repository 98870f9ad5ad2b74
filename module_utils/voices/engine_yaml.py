"""The text of engine.yaml: flags and voices to what vLLM's ``--config`` reads, and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from .plan import VoicesError

LORA_MODULES = "lora-modules"


def normalise(value: Any) -> Any:
    """``value`` as it comes back from YAML, whole floats as ints: 1.0 and 1 are one flag value, "1" and 1 are two."""
    if isinstance(value, Mapping):
        return {str(key): normalise(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple):
        return [normalise(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def same(one: Any, other: Any) -> bool:
    """Equality of normalised values that tells true from 1, as vLLM does."""
    return json.dumps(normalise(one), sort_keys=True) == json.dumps(normalise(other), sort_keys=True)


def render(flags: Mapping[str, Any], voices: Mapping[str, str]) -> str:
    """The text of engine.yaml: a header, the flags sorted by name, the voices last and sorted by name."""
    header = (
        "# Managed by the modules engine_file (flags) and vllm_lora_adapters (voices): edits by hand are put right.\n"
        f"# Voices: {', '.join(sorted(voices)) or '(none)'}. A voice stands here after this engine has loaded it,\n"
        "# because one entry that does not load stops the whole engine at its start.\n"
    )
    data = dict(sorted(flags.items()))
    if voices:
        data[LORA_MODULES] = [_entry(name, path) for name, path in sorted(voices.items())]
    # PyYAML's allow_unicode writes some line breaks (U+0085) so that it cannot read them again.
    return header + yaml.safe_dump(data, sort_keys=False, default_flow_style=False, allow_unicode=False, width=4096)


def _entry(name: str, path: str) -> str:
    # vLLM reads an entry with a comma as JSON.
    return json.dumps({"name": name, "path": path}) if "," in path else f"{name}={path}"


def parse(text: str, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The flags (normalised, without lora-modules) and the voices {name: path} of an engine.yaml's ``text``.

    Raises VoicesError naming ``path`` and the line when it is no YAML mapping or a voice entry cannot be read: guessing
    would lose voices.
    """
    fix = "mend it, or move it away to have it written anew (the same run brings the voices back)"
    try:
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        raise VoicesError(f"{path} line {line} is no YAML ({error.problem}): {fix}") from None
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", "") or type(error).__name__
        raise VoicesError(f"{path} is no YAML ({reason}): {fix}") from None
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds a {type(data).__name__} on line 1 and not a mapping of flags"
        raise VoicesError(f"{path} {what}: {fix}")
    try:
        flags = {str(key): normalise(value) for key, value in data.items()}
    except RecursionError:
        raise VoicesError(f"{path} holds a value that refers to itself: {fix}") from None
    return flags, _parse_voices(flags.pop(LORA_MODULES, None), path, fix)


def _parse_voices(entries: Any, path: str, fix: str) -> dict[str, str]:
    if entries is not None and not isinstance(entries, list):
        raise VoicesError(f"{path}: {LORA_MODULES} is {entries!r} and not a list of name=path: {fix}")
    voices: dict[str, str] = {}
    for entry in entries or []:
        name, adapter = _parse_entry(entry)
        if not name or not adapter:
            raise VoicesError(f"{path}: {LORA_MODULES} entry {entry!r} is not name=path: {fix}")
        if name in voices:
            raise VoicesError(
                f"{path}: {LORA_MODULES} names {name} twice, and an engine would not start with that: {fix}"
            )
        voices[name] = adapter
    return voices


def _parse_entry(entry: Any) -> tuple[str, str]:
    if not isinstance(entry, str):
        return "", ""
    if "=" in entry and "," not in entry:
        name, _, adapter = entry.partition("=")
        return name, adapter
    try:
        data = json.loads(entry)
    except ValueError:
        return "", ""
    if not isinstance(data, dict):
        return "", ""
    return str(data.get("name", "")), str(data.get("path", ""))
