"""What may be worked out of an engine's source: operators and methods without any effect beyond their value. Pure."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

MOST_STEPS = 200_000
MOST_ITEMS = 100_000
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.BitOr: operator.or_, ast.Add: operator.add}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
MAKERS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
COPIES = ("copy.copy", "copy.deepcopy", "deepcopy", "copy", "MappingProxyType", "types.MappingProxyType")
METHODS: dict[type, frozenset[str]] = {
    dict: frozenset(("copy", "items", "keys", "values", "get")),
    list: frozenset(("copy",)),
    set: frozenset(("copy", "union")),
    str: frozenset(("startswith", "endswith", "lower", "upper", "replace", "removeprefix", "removesuffix", "strip")),
}
CHANGES: dict[type, frozenset[str]] = {
    dict: frozenset(("update", "setdefault", "pop", "clear")),
    list: frozenset(("append", "extend", "insert", "remove", "clear")),
    set: frozenset(("add", "update", "discard", "clear")),
}
FAILURES = (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)


class Unreadable(Exception):
    """The text does not tell the value; says where and what."""


def rooted(node: ast.expr, local: Mapping[str, Any]) -> bool:
    """Whether an expression of attributes begins at a local variable."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in local


def copied(value: Any) -> Any:
    """The same in containers of its own, so that a change of it changes nothing else."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(copied(item) for item in value)
    return value
