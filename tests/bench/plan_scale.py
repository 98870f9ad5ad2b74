"""How long a plan takes for more and more hosts of eight cards each, on this machine.

usage: python -m tests.bench.plan_scale [--hosts 10 20 30 40 50] [--limit-s 20] [--out FILE]

Every host is the real module in a process of its own, with its cards behind the NVML double and four seats to place.
Exit status 1 when the largest fleet takes longer than the limit, or when a host of it costs half as much again as a
host of the smaller ones: the time then does not grow linearly. Another load on the machine makes it slower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.plan_fleet import CARDS, seats, write_fleet
from tests.support.play import run_play


def measured(hosts: int) -> dict[str, Any]:
    """One plan of ``hosts`` hosts: seconds on the clock and on all cores."""
    with tempfile.TemporaryDirectory() as made:
        inventory = write_fleet(Path(made), hosts)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        play = run_play(inventory, playbook="playbooks/plan.yml", limit="all")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    expected = f"{hosts} hosts, {hosts * CARDS} cards, {hosts * len(seats(Path()))} seats"
    if play.rc or expected not in play.output:
        raise SystemExit(f"the plan of {hosts} hosts did not say {expected!r}:\n{play.output[-4000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"hosts": hosts, "seconds": round(play.seconds, 2), "cpu_seconds": round(cpu, 2)}


def verdicts(rows: list[dict[str, Any]], limit_s: float) -> list[str]:
    """What is wrong with the figures; empty when nothing is. ``rows`` go from few hosts to many."""
    found = []
    if rows[-1]["seconds"] > limit_s:
        found.append(f"{rows[-1]['hosts']} hosts took {rows[-1]['seconds']} s, and {limit_s:g} s are allowed")
    if len(rows) > 2:
        early, late = (
            (after["cpu_seconds"] - before["cpu_seconds"]) / (after["hosts"] - before["hosts"])
            for before, after in ((rows[0], rows[len(rows) // 2]), (rows[len(rows) // 2], rows[-1]))
        )
        if late > 1.5 * early:
            found.append(f"a host cost {early:.2f} CPU s at first and {late:.2f} CPU s later: that is not linear")
    return found


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 20, 30, 40, 50])
    parser.add_argument("--limit-s", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {CARDS} cards a host")
    for hosts in sorted(given.hosts):
        rows.append(measured(hosts))
        print(f"{hosts:4} hosts  {rows[-1]['seconds']:7.2f} s  {rows[-1]['cpu_seconds']:7.2f} CPU s", flush=True)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    wrong = verdicts(rows, given.limit_s)
    print("\n".join(wrong) or "within the limit, and linear")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
