"""Hold what a check said against what the real run then did, task by task."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.play import Play

# The plan of a container is made once and said, then carried out by a second task, which is in real runs only.
PLAN = "voices_seat : Plan the container"
CARRIED_OUT = ("voices_seat : Bring the container to the plan", "voices_seat : Wait until the container is healthy")
# What a real run does for the next run's sake; it changes nothing of the seat.
NOTES = ("voices_seat : Make the note's directory", "voices_seat : Note the flags that are healthy")

KEY_UNKNOWN = "(known once the key is made)"

Said = dict[str, Any]


def said(task: dict[str, Any]) -> Said:
    """What a task tells of its plan."""
    result = task["result"]
    told = {key: result[key] for key in ("reasons", "will_start") if key in result}
    return {"actions": task["actions"], "diff": diffs(result), **told}


def diffs(result: dict[str, Any]) -> list[Any]:
    """Every diff that a task printed; a loop's are those of its items."""
    if "results" in result:
        return [one for item in result["results"] for one in diffs(item)]
    found = result.get("diff") or []
    return [one for one in (found if isinstance(found, list) else [found]) if one]


def mismatches(checked: Play, real: Play) -> list[str]:
    """Every way in which the real run was not what the check said; empty when it was."""
    found = _order(checked, real) + _changes(checked, real)
    before = {task["task"]: said(task) for task in checked.tasks}
    plan: Said = {}
    for task in real.tasks:
        name, told = task["task"], said(task)
        if name in CARRIED_OUT:
            found += _compared(name, plan, told)
        elif name in before:
            found += _compared(name, before[name], told)
        elif told["actions"] or (told["diff"] and name not in NOTES):
            found.append(f"{name}: not in the check, and did {told}")
        if name == PLAN:
            plan = told
    return found


def _compared(name: str, foretold: Said, told: Said) -> list[str]:
    keys = sorted({*foretold, *told})
    return [
        f"{name}: {key}\n  check: {foretold.get(key)}\n  real:  {told.get(key)}"
        for key in keys
        if not _same(foretold.get(key), told.get(key))
    ]


def _same(foretold: Any, told: Any) -> bool:
    """Whether two pieces of a plan are equal. A digest over a key that only the real run makes is known there alone."""
    pattern = re.escape(json.dumps(foretold)).replace(re.escape(KEY_UNKNOWN), "[0-9a-f]{64}")
    return re.fullmatch(pattern, json.dumps(told)) is not None


def _order(checked: Play, real: Play) -> list[str]:
    """Every task that the check ran is in the real run, and in that order."""
    rest = iter([task["task"] for task in real.tasks])
    return [f"{task['task']}: only in the check" for task in checked.tasks if task["task"] not in rest]


def _changes(checked: Play, real: Play) -> list[str]:
    """A task changes something in the real run exactly when the check said so; the container's has two."""
    announced, done = set(checked.changed) - {PLAN}, set(real.changed) - {*CARRIED_OUT, *NOTES}
    found = [f"{name}: changed, says the {who} alone" for who, name in _one_sided(announced, done)]
    if (PLAN in checked.changed) != bool(set(CARRIED_OUT) & set(real.changed)):
        found.append(f"{PLAN}: check says changed={PLAN in checked.changed}, the real run did the opposite")
    return found


def _one_sided(announced: set[str], done: set[str]) -> list[tuple[str, str]]:
    return [("check", name) for name in sorted(announced - done)] + [
        ("real run", name) for name in sorted(done - announced)
    ]
