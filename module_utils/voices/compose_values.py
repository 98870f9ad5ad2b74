"""Values of a compose.yaml as the engine writes them: durations, sizes. Pure."""

from __future__ import annotations

import re
from typing import Any

from .plan import VoicesError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")
_NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_NANOSECONDS["d"] = 24 * _NANOSECONDS["h"]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)i?b?")
_MIB = 1024 * 1024


def nanoseconds(text: Any) -> int:
    """A duration such as ``1m30s`` in nanoseconds; a bare number is nanoseconds already."""
    whole = str(text).strip()
    if whole.isdigit():
        return int(whole)
    parts = _DURATION.findall(whole)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != whole:
        raise VoicesError(f"{whole!r} is no duration such as 90s or 1m30s")
    return round(sum(float(number) * _NANOSECONDS[unit] for number, unit in parts))


def bytes_of(text: Any) -> int:
    """A size such as ``256m`` or ``1gb`` in bytes (units are powers of 1024, as Compose takes them)."""
    found = _SIZE.fullmatch(str(text).strip().lower())
    if not found:
        raise VoicesError(f"{text!r} is no size such as 512m or 8g")
    return round(float(found[1]) * 1024.0 ** " kmgtp".index(found[2] or " "))


def shown_duration(value: int) -> str:
    """Nanoseconds for a person, in seconds."""
    return f"{value / 10**9:g}s"


def shown_size(value: int) -> str:
    """Bytes for a person, in MiB."""
    return f"{value / _MIB:g} MiB"
