"""Filters over the pure core: what a play and a module both need to know of a seat is computed by the same function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleFilterError

# Ansible adds the project's module_utils for modules only; a filter that shares their functions finds it here.
_MODULE_UTILS = str(Path(__file__).resolve().parent.parent / "module_utils")
if _MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_MODULE_UTILS)

from ansible.module_utils.voices.api_key import TO_BE_GENERATED  # noqa: E402 - after the path above
from ansible.module_utils.voices.flags import flags_sha256  # noqa: E402
from ansible.module_utils.voices.seat import describe  # noqa: E402
from ansible.module_utils.voices.spec import normalise, trial_errors, variable_errors  # noqa: E402

KEY_UNKNOWN = "(known once the key is made)"


def voices_seat_errors(seats: Any, runtime: str, generate_api_key: bool = False) -> list[str]:
    """Every reason why ``voices_seats`` is refused; an empty list when it is valid."""
    return normalise(seats, runtime=runtime, generate_api_key=generate_api_key)[1]


def voices_variable_errors(names: list[str], known: list[str]) -> list[str]:
    """Why role variables are refused: a name that the role does not have is answered with the nearest that it has."""
    return variable_errors(names, known)


def voices_seat_describe(
    seats: Any, name: str, runtime: str, root: str, adapters_dir: str, engine_python: str, **container: Any
) -> dict[str, Any]:
    """What the tasks need of seat ``name`` (see ``seat.describe``). The key is not in it."""
    normal, _errors = normalise(seats, runtime=runtime, generate_api_key=True)
    if name not in normal:
        known = ", ".join(sorted(map(str, seats))) if isinstance(seats, Mapping) else "none"
        raise AnsibleFilterError(f"no valid seat {name!r} on this host; its seats are: {known or 'none'}")
    return describe(name, normal[name], root=root, adapters_dir=adapters_dir, engine_python=engine_python, **container)


def voices_flags_sha256(flags: Mapping[str, Any]) -> str:
    """The digest of masked flags. In check mode a key may be yet to be made: then words that say so, and no digest that
    the real run would not have."""
    return KEY_UNKNOWN if flags.get("api-key") == TO_BE_GENERATED else flags_sha256(flags)


def voices_trial_errors(seats: Any, voice: str, source: str, state: str, seat: str, runtime: str) -> list[str]:
    """Why a trial is refused; an empty list when it may go on."""
    return trial_errors(seats, voice=voice, source=source, state=state, seat=seat, runtime=runtime)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """Filter names and functions."""
        return {
            "voices_seat_errors": voices_seat_errors,
            "voices_seat_describe": voices_seat_describe,
            "voices_variable_errors": voices_variable_errors,
            "voices_trial_errors": voices_trial_errors,
            "voices_flags_sha256": voices_flags_sha256,
        }
