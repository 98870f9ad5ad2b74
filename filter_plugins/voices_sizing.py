"""Filters over the sizing core: a template and a module that need the same sum call the same function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import ansible.module_utils
from ansible.errors import AnsibleFilterError

# Ansible adds the project's module_utils for modules only; a filter that shares their functions finds it here.
_MODULE_UTILS = str(Path(__file__).resolve().parent.parent / "module_utils")
if _MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_MODULE_UTILS)

from ansible.module_utils.voices.carrier_config import CannotSize, read_carrier  # noqa: E402 - after the path above
from ansible.module_utils.voices.sizing import requested_bytes, size_seat  # noqa: E402
from ansible.module_utils.voices.sizing_costs import adapters_cost_bytes, merged_cost_bytes  # noqa: E402
from ansible.module_utils.voices.sizing_cpu import size_cpu_seat  # noqa: E402
from ansible.module_utils.voices.sizing_lora import LINEARS, adapter_bytes  # noqa: E402

_Result = TypeVar("_Result")


def voices_seat_size(config: Mapping[str, Any], flags: Mapping[str, Any], **card: Any) -> dict[str, Any]:
    """What a seat takes of a card: ``config`` is the carrier's config.json; ``card`` are the named arguments of
    ``sizing.size_seat``, ``engine_version`` at least."""
    return _sized(lambda: size_seat(config, flags, **card).as_dict())


def voices_cpu_seat_size(
    config: Mapping[str, Any], flags: Mapping[str, Any], environment: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a seat on the CPU takes of its host's memory."""
    return _sized(lambda: size_cpu_seat(config, flags, environment).as_dict())


def voices_adapter_bytes(
    config: Mapping[str, Any], rank: int, targets: list[str] | None = None, dtype_bytes: int = 2
) -> int:
    """The tensors of an adapter of ``rank`` for a carrier; without ``targets`` of every linear layer."""
    wanted = LINEARS if targets is None else tuple(targets)
    return _sized(lambda: adapter_bytes(read_carrier(config), rank, targets=wanted, dtype_bytes=dtype_bytes))


def _sized(compute: Callable[[], _Result]) -> _Result:
    try:
        return compute()
    except CannotSize as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """Filter names and functions."""
        return {
            "voices_seat_size": voices_seat_size,
            "voices_cpu_seat_size": voices_cpu_seat_size,
            "voices_adapter_bytes": voices_adapter_bytes,
            "voices_adapters_cost_bytes": adapters_cost_bytes,
            "voices_merged_cost_bytes": merged_cost_bytes,
            "voices_requested_bytes": requested_bytes,
        }
