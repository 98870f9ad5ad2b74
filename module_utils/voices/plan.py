"""What every module's plan is made of.

A module reads the actual state, computes a list of ``Action`` from desired x actual, and either prints or applies that
list. Check mode and the real run return the same ``actions`` because they are built once, before anything is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class VoicesError(Exception):
    """A refusal: the text names the thing, the numbers, the rule and the fix. Modules pass it to ``fail_json``."""


class BringUpError(VoicesError):
    """A plan was carried out and what it started is not healthy. ``result`` is the module's, besides the message."""

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class Action:
    """One step of a plan.

    ``do`` is a verb (``load``, ``restart``), ``what`` the thing it is done to (a voice, a file, a service), ``why`` the
    reason in words, ``before`` and ``after`` what a person would compare. No secret may enter any field.
    """

    do: str
    what: str
    why: str = ""
    before: Any = None
    after: Any = None

    def line(self) -> str:
        """One line for a person: ``restart tiny: max-lora-rank 8 -> 16``."""
        change = "" if self.before is None and self.after is None else f"{_shown(self.before)} -> {_shown(self.after)}"
        detail = " ".join(part for part in (self.why, change) if part)
        return f"{self.do} {self.what}" + (f": {detail}" if detail else "")


def _shown(value: Any) -> str:
    return "(none)" if value is None else str(value)


def as_dicts(actions: Iterable[Action]) -> list[dict[str, Any]]:
    """The plan as plain data, for a module's ``actions``."""
    return [asdict(action) for action in actions]


def as_diff(actions: Iterable[Action]) -> list[dict[str, str]]:
    """The plan as one ``prepared`` diff (empty list for an empty plan), which ``--diff`` prints in both modes."""
    lines = [action.line() for action in actions]
    return [{"prepared": "".join(f"{line}\n" for line in lines)}] if lines else []


def text_diff(name: str, before: str, after: str) -> list[dict[str, str]]:
    """A before/after diff of a text (empty list when equal). The caller has masked secrets."""
    if before == after:
        return []
    return [{"before_header": name, "after_header": name, "before": before, "after": after}]
