"""How long a plan takes for more and more hosts of eight cards each, on this machine.

usage: python -m tests.bench.plan_scale [--hosts 10 20 30 40 50] [--limit-s 20] [--module] [--out FILE]

Every host has four seats to place and comes with simulated facts: what the play itself costs. With --module the real
module runs for each host in a process of its own, all on this machine, where a fleet's hosts would each run their own;
their cards are behind the NVML double.

Exit status 1 when the largest fleet takes longer than the limit, or when a host more costs half as much again there as
among few: the time then does not grow linearly. Another load on the machine makes all of it dearer, also by the
processor's clock; so what is refused is measured again, twice at most, and the best of each size counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.plan_fleet import CARDS, seats, write_fleet
from tests.support.play import run_play

ROUNDS = 3
#: A time that grows with the square makes a host among 30 to 50 twice as dear as one among 10 to 30.
MOST_GROWTH = 1.5


def measured(hosts: int, facts: bool) -> dict[str, Any]:
    """One plan of ``hosts`` hosts: seconds on the clock and on all cores."""
    with tempfile.TemporaryDirectory() as made:
        inventory = write_fleet(Path(made), hosts, facts=facts)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        play = run_play(inventory, playbook="playbooks/plan.yml", limit="all")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    expected = f"{hosts} hosts, {hosts * CARDS} cards, {hosts * len(seats(Path()))} seats: {hosts * 2} fit, "
    if play.rc or expected not in play.output:
        raise SystemExit(f"the plan of {hosts} hosts did not say {expected!r}:\n{play.output[-4000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"hosts": hosts, "seconds": round(play.seconds, 2), "cpu_seconds": round(cpu, 2)}


def judged(
    sizes: Sequence[int], *, facts: bool, limit_s: float = math.inf, say: Callable[[str], None] = lambda line: None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The best measurement of each size, from few hosts to many, and what is wrong with them."""
    best: dict[int, dict[str, Any]] = {}
    wrong: list[str] = []
    for _ in range(ROUNDS):
        for hosts in sorted(sizes):
            row = measured(hosts, facts)
            say(f"{hosts:4} hosts  {row['seconds']:7.2f} s  {row['cpu_seconds']:7.2f} CPU s")
            before = best.setdefault(hosts, row)
            best[hosts] = {key: min(before[key], row[key]) for key in row}
        if not (wrong := verdicts(list(best.values()), limit_s)):
            break
    return list(best.values()), wrong


def verdicts(rows: Sequence[dict[str, Any]], limit_s: float) -> list[str]:
    """What is wrong with the figures; empty when nothing is. ``rows`` go from few hosts to many."""
    found = []
    if rows[-1]["seconds"] > limit_s:
        found.append(f"{rows[-1]['hosts']} hosts took {rows[-1]['seconds']} s, and {limit_s:g} s are allowed")
    if len(rows) > 2:
        middle = rows[len(rows) // 2]
        early, late = (
            (after["cpu_seconds"] - before["cpu_seconds"]) / (after["hosts"] - before["hosts"])
            for before, after in ((rows[0], middle), (middle, rows[-1]))
        )
        if late > MOST_GROWTH * early:
            found.append(f"a host more cost {early:.2f} CPU s among few and {late:.2f} among many: not linear")
    return found


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 20, 30, 40, 50])
    parser.add_argument("--limit-s", type=float, default=20.0)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {CARDS} cards a host")
    rows, wrong = judged(
        given.hosts, facts=not given.module, limit_s=given.limit_s, say=lambda line: print(line, flush=True)
    )
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(wrong) or f"{rows[-1]['hosts']} hosts: {rows[-1]['seconds']} s, within the limit, and linear")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
