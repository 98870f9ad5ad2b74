"""How a field of a service is written in a plan: one text, the same from Compose's side and from the engine's. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any


def listed(parts: Iterable[str]) -> str | None:
    """A list whose order does not count; None for an empty one."""
    return ", ".join(sorted(parts)) or None


def joined(parts: list[str] | None) -> str | None:
    """A command line or a health check's test."""
    return shlex.join(parts) if parts else None


def yes(value: Any) -> str:
    """A switch; what is not set is off."""
    return "true" if value in (True, "true") else "false"


def port_text(address: str, published: str, target: str) -> str:
    """A published port; ``target`` has its protocol."""
    return f"{f'{address}:' if address else ''}{published or '(any)'}->{target}"


def mount_text(text: str, read_only: bool) -> str:
    """What is mounted, and how."""
    return f"{text} (read-only)" if read_only else text


def tmpfs_text(options: str) -> str:
    """A mount in memory."""
    return f"tmpfs {options}" if options else "tmpfs"


def capability(name: str) -> str:
    """A capability without the prefix that some engines add."""
    return name.upper().removeprefix("CAP_")


def security_option(option: str) -> str:
    """``no-new-privileges`` and its two longer spellings are one."""
    key, _, value = option.replace("=", ":", 1).partition(":")
    return f"{key}:{value or 'true'}"


def device_text(device: Mapping[str, str]) -> str:
    """A device of the host, from Compose's side."""
    return f"{device['source']}:{device['target']}:{device['permissions']}"


def actual_device_text(device: Mapping[str, str]) -> str:
    """The same from the engine's side."""
    return f"{device['PathOnHost']}:{device['PathInContainer']}:{device.get('CgroupPermissions', 'rwm')}"


def request_text(request: Mapping[str, Any]) -> str:
    """Devices that are reserved through a driver, from Compose's side."""
    ids = request.get("device_ids") or []
    count = request.get("count", 0 if ids else -1)
    return _gpu_text(request.get("driver", ""), ids, -1 if count == "all" else int(count), request.get("capabilities"))


def actual_request_text(request: Mapping[str, Any]) -> str:
    """The same from the engine's side."""
    capabilities = [name for group in request.get("Capabilities") or [] for name in group]
    return _gpu_text(request.get("Driver", ""), request.get("DeviceIDs") or [], request.get("Count", 0), capabilities)


def _gpu_text(driver: str, ids: list[str], count: int, capabilities: Iterable[str] | None) -> str:
    which = "+".join(ids) if ids else "all" if count == -1 else f"any {count}"
    return " ".join(part for part in (driver or "device", which, "+".join(sorted(capabilities or []))) if part)


def log_text(driver: str, options: Mapping[str, Any] | None) -> str:
    """A log driver with its options."""
    return " ".join([driver or "(default)", *(f"{key}={value}" for key, value in sorted((options or {}).items()))])


def actual_log_text(config: Mapping[str, Any]) -> str:
    """The same from the engine's side."""
    return log_text(config.get("Type", ""), config.get("Config"))
