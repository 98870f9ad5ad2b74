"""Which branch an engine's source takes on a platform, as far as the text says. Pure."""

from __future__ import annotations

import ast
from collections.abc import Callable

CHOICES = ("cuda", "rocm", "cpu", "xpu", "tpu")
"""Platforms that a condition in the source can ask for."""

Lookup = Callable[[str], "ast.expr | None"]
_MOST_NAMES = 8


def decide(test: ast.expr, platform: str, lookup: Lookup = lambda _: None, depth: int = 0) -> bool | None:
    """Whether ``test`` holds on ``platform``; None when the text does not say. ``lookup`` gives a name's expression."""

    def inner(part: ast.expr) -> bool | None:
        return decide(part, platform, lookup, depth)

    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = inner(test.operand)
        return None if found is None else not found
    if isinstance(test, ast.BoolOp):
        parts = [inner(part) for part in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(test, ast.Name | ast.Attribute) and ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Name) and depth < _MOST_NAMES:
        known = lookup(test.id)
        return None if known is None else decide(known, platform, lookup, depth + 1)
    if isinstance(test, ast.Call) and not test.args and not test.keywords:
        return _asked(ast.unparse(test.func), platform)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test, platform)
    return None


def _asked(function: str, platform: str) -> bool | None:
    owner, _, method = function.rpartition(".")
    if owner.rpartition(".")[2] != "current_platform" or not method.startswith("is_"):
        return None
    asked = method.removeprefix("is_")
    if asked == "cuda_alike":
        return platform in ("cuda", "rocm")
    if asked in CHOICES:
        return asked == platform
    return False if asked in ("hpu", "neuron", "out_of_tree", "unspecified", "zen_cpu") else None


def _compared(test: ast.Compare, platform: str) -> bool | None:
    left, (right,), (operator,) = ast.unparse(test.left), test.comparators, test.ops
    if left == "__name__":
        return isinstance(operator, ast.NotEq)
    if left.endswith("current_platform.device_type") or left == "current_platform.device_type":
        device = "cuda" if platform == "rocm" else platform
        if isinstance(right, ast.Constant) and isinstance(operator, ast.Eq | ast.NotEq):
            return (right.value == device) is isinstance(operator, ast.Eq)
    return None
