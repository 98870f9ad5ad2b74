"""Options of a dict whose keys are names: types, defaults and unknown keys, with every error at once. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator


def typed(where: str, spec: dict[str, dict[str, Any]], given: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options with types and defaults, and every error; an option that is refused is returned with its default.

    Each option is validated by itself, because the validator stops at the first that it refuses.
    """
    values: dict[str, Any] = {}
    errors = [f"{where}: unknown option {key!r}{nearest(key, spec)}" for key in given if key not in spec]
    for key, rule in spec.items():
        # A value of null means "not set", as it does where a template omits it.
        there = {key: plain(given[key])} if given.get(key) is not None else {}
        if not there and not rule.get("required"):
            values[key] = copy(rule.get("default"))  # most options of most seats: the validator takes a millisecond
            continue
        result = ArgumentSpecValidator({key: rule}).validate(there)
        errors += [f"{where}: {message}" for message in result.error_messages]
        values[key] = rule.get("default") if result.error_messages else result.validated_parameters.get(key)
    return values, errors


def plain(value: Any) -> Any:
    """The same data in plain dicts, lists, texts and numbers.

    In a filter, Ansible's containers carry the templating engine, and the validator's deep copy of one copies that with
    it: 0.3 s for an empty dict. Its texts and numbers carry where they come from.
    """
    if isinstance(value, Mapping):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    return value if kind in (None, bool, type(value)) else kind(value)


def nearest(key: Any, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or all that is known."""
    names = sorted(known)
    close = difflib.get_close_matches(str(key), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"
