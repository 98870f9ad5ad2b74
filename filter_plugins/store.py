"""Filters for the adapter store and for rollbacks, over the same functions that the modules use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils

# Ansible adds the project's module_utils for modules only; a filter that shares their functions finds it here.
_MODULE_UTILS = str(Path(__file__).resolve().parent.parent / "module_utils")
if _MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_MODULE_UTILS)

from ansible.module_utils.voices import rollback  # noqa: E402 - after the path above
from ansible.module_utils.voices.spec import normalise  # noqa: E402
from ansible.module_utils.voices.store_desired import entry_name  # noqa: E402


def voices_store_pins(seats: Any, runtime: str) -> list[str]:
    """The store entries that any seat of the host pins: no run may prune them, whichever seat it is for."""
    normal, _errors = normalise(seats, runtime=runtime, generate_api_key=True)
    return sorted(
        {
            entry_name(name, voice["digest"])
            for seat in normal.values()
            for name, voice in seat["voices"].items()
            if isinstance(voice, Mapping) and voice.get("digest")
        }
    )


def voices_rollback_errors(seats: Any, voice: str, seat: str, runtime: str) -> list[str]:
    """Why a rollback is refused; an empty list when it may go on."""
    return rollback.rollback_errors(seats, voice=voice, seat=seat, runtime=runtime)


def voices_rollback_seat(seats: Any, voice: str, seat: str, runtime: str) -> str:
    """The seat that a rollback is for; empty where that is not clear."""
    return rollback.rollback_seat(seats, voice=voice, seat=seat, runtime=runtime)


def voices_rollback_pinned(seats: Any, seat: str, voice: str, digest: str) -> dict[str, Any]:
    """The seats as the inventory will have them once the pin is set."""
    return rollback.pinned(seats, seat=seat, voice=voice, digest=digest)


def voices_rollback_others(actions: list[dict[str, Any]], voice: str) -> list[str]:
    """The lines of a plan that are about anything else than the voice."""
    return rollback.others(actions, voice)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """Filter names and functions."""
        return {
            "voices_store_pins": voices_store_pins,
            "voices_rollback_errors": voices_rollback_errors,
            "voices_rollback_seat": voices_rollback_seat,
            "voices_rollback_pinned": voices_rollback_pinned,
            "voices_rollback_others": voices_rollback_others,
        }
