"""Patterns of an adapter_config.json (rank_pattern, alpha_pattern, target_modules) tried on module names. Pure.

They are regular expressions that a stranger wrote, and one can be written that never ends. Python tries one way after
the other, so what a pattern may cost is bounded by its ways: a repetition can end at each letter, a question mark
doubles them, an alternative adds one. A pattern is tried only where that bound is small for the longest name and, for
all patterns and all names together, below a budget. What is left out is a warning, never a verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_LONGEST, _LONGEST_NAME = 300, 200
_MOST_WAYS = 200_000  # of one pattern on one name
_MOST_TRIES = 30_000_000  # of all patterns on all names
_MOST_KEYS = 4_000
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_REPEAT = re.compile(r"[*+]|\{\d*,\d*\}")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_LOOKS_BACK = re.compile(r"\\[1-9]|\(\?(P=|[=!<(])")  # back references, what looks around, and conditions
_PLAIN_COST = 30  # what one plain pattern takes on one name, in ways


def ways(pattern: str, length: int = _LONGEST_NAME, *, suffix: bool = False) -> int:
    """An upper bound of the ways in which ``pattern`` can be tried on a name of ``length`` letters."""
    bare = _ESCAPED.sub("x", pattern)
    repeats = len(_REPEAT.findall(bare)) + suffix
    options = bare.count("?") - bare.count("(?")
    # The product over groups of their alternatives is largest where all have as many.
    groups = 1 + bare.count("(")
    spread = (1 + bare.count("|") / groups) ** groups
    return int(min(1e15, math.comb(length + repeats, repeats) * 2.0 ** max(0, options) * spread)) + _PLAIN_COST


def compiled(pattern: str, *, suffix: bool) -> re.Pattern[str] | None:
    """The pattern, with ``suffix`` by PEFT's rule for the keys of rank_pattern: it may begin at any dot of the name.

    None when it is no regular expression, or not tried because its time is not bounded.
    """
    if len(pattern) > _LONGEST or ways(pattern, suffix=suffix) > _MOST_WAYS:
        return None
    if _REPEATED_GROUP.search(_ESCAPED.sub("x", pattern)) or _LOOKS_BACK.search(pattern):
        return None
    try:
        return re.compile(rf"(.*\.)?({pattern})$" if suffix else pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def compiled_keys(keys: Mapping[str, Any]) -> dict[str, re.Pattern[str] | None]:
    """The keys of rank_pattern or alpha_pattern; none is tried where there are more than any real adapter has."""
    return {key: compiled(key, suffix=True) for key in keys} if len(keys) <= _MOST_KEYS else untried(keys)


def untried(keys: Iterable[str]) -> dict[str, re.Pattern[str] | None]:
    """Stands for patterns of which none is tried: the first is enough to make everything after it unsure."""
    return dict.fromkeys(list(keys)[:1])


def affordable(patterns: Mapping[str, re.Pattern[str] | None], names: Sequence[str]) -> bool:
    """Whether all patterns can be tried on all names without taking long."""
    longest = min(_LONGEST_NAME, max(map(len, names), default=0))
    cost = sum(ways(key, longest, suffix=True) for key, pattern in patterns.items() if pattern is not None)
    return cost * len(names) <= _MOST_TRIES


def fits(pattern: re.Pattern[str], name: str) -> bool:
    """Whether it fits the whole of a module's name. A name longer than any real one fits nothing."""
    return len(name) <= _LONGEST_NAME and pattern.fullmatch(name) is not None


def first_of(patterns: Mapping[str, re.Pattern[str] | None], values: Mapping[str, Any], name: str) -> tuple[Any, bool]:
    """The value of the first key that fits ``name`` (None: none does), and whether that is sure.

    It is not sure when a pattern that was not tried stands before.
    """
    sure = True
    for key, pattern in patterns.items():
        if pattern is None:
            sure = False
        elif fits(pattern, name):
            return values[key], sure
    return None, sure
