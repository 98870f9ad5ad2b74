"""Reading one engine flag at a time: what vLLM's command line would make of a value from YAML. Pure.

Every refusal is a CannotSize that names the flag, its value and what is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .carrier_config import CannotSize, shown

_NUMBER = re.compile(r"([0-9]{1,18})(\.[0-9]{1,9})?([kKmMgGtT])?")
MOST_COUNT = 2**24
MOST_BYTES = 2**60


def whole_number(value: Any) -> int | None:
    """The number that vLLM reads (utils/argparse_utils.py, human_readable_int): 8192, "8192", "1k" (1000), "1K" (1024).

    None for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    whole, decimals, unit = match.groups()
    if not unit:
        return None if decimals else int(whole)
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return int(float(whole + (decimals or "")) * 1000**power)
    return None if decimals else int(whole) * 1024**power


class Given:
    """The flags that are set, kebab-case. A value of None is a flag that is not set."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        if not isinstance(flags, Mapping):
            raise CannotSize(f"the engine's flags are a {type(flags).__name__}, not a dict")
        named = {str(key).replace("_", "-").lstrip("-"): value for key, value in flags.items()}
        self._flags = {key: value for key, value in named.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._flags

    def get(self, name: str) -> Any:
        """The value as it stands, None when it is not set."""
        return self._flags.get(name)

    def default(self, name: str, value: Any) -> None:
        """Set a flag that is not set. None sets nothing."""
        if value is not None:
            self._flags.setdefault(name, value)

    def refusal(self, name: str, why: str) -> CannotSize:
        """The error for a flag."""
        return CannotSize(f"the engine's flag {name} = {shown(self.get(name))} {why}")

    def whole(self, name: str, default: int, most: int = MOST_COUNT) -> int:
        """A whole number above 0 and up to ``most``."""
        return default if name not in self else self._number(name, self.get(name), most)

    def optional(self, name: str, most: int = MOST_COUNT) -> int | None:
        """A whole number above 0 and up to ``most``, None when the flag is not set."""
        return self._number(name, self.get(name), most) if name in self else None

    def length(self, name: str, default: int) -> int:
        """A length in tokens; -1 for what vLLM is to fit itself (``auto``)."""
        value = self.get(name)
        return -1 if str(value).strip().lower() in ("auto", "-1") else self.whole(name, default)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers above 0, or one."""
        if name not in self:
            return None
        listed = self._listed(name)
        if not listed or len(listed) > 10_000:
            raise self.refusal(name, "is no list of sizes")
        return tuple(self._number(name, one) for one in listed)

    def names(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, or one."""
        if name not in self:
            return None
        listed = self._listed(name)
        if not all(isinstance(one, str) and one for one in listed):
            raise self.refusal(name, "is no list of names")
        return tuple(listed)

    def share(self, name: str, default: float) -> float:
        """A number above 0 and up to 1."""
        value = self.get(name) if name in self else default
        try:
            share = 0.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            share = 0.0
        if not 0 < share <= 1:
            raise self.refusal(name, "is no number above 0 and up to 1")
        return share

    def boolean(self, name: str, default: bool) -> bool:
        """True or false, also by ``no-<name>``."""
        if self.get(f"no-{name}") is True:
            return False
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise self.refusal(name, "is neither true nor false")
        return value

    def choice(self, name: str, known: tuple[str, ...], default: str) -> str:
        """One of ``known``, in lower case."""
        value = self.get(name) if name in self else default
        if not isinstance(value, str) or value.lower() not in known:
            raise self.refusal(name, f"is none of what is sized: {', '.join(known)}")
        return value.lower()

    def json(self, name: str) -> Mapping[str, Any]:
        """An object, given as such or as its JSON text; empty when the flag is not set."""
        value = self.get(name)
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise self.refusal(name, "is no JSON") from None
        if value in (None, ""):
            return {}
        if not isinstance(value, Mapping):
            raise self.refusal(name, "is no object")
        return value

    def _listed(self, name: str) -> list[Any]:
        value = self.get(name)
        return list(value) if isinstance(value, list | tuple) else [value]

    def _number(self, name: str, value: Any, most: int = MOST_COUNT) -> int:
        number = whole_number(value)
        if number is None or not 1 <= number <= most:
            raise CannotSize(f"the engine's flag {name} = {shown(value)} is no whole number from 1 to {most}")
        return number
