"""How long a run takes that finds nothing to do: ours, and the public docker_compose_v2 on the same running project.

usage: python -m tests.bench.second_run [--rounds N] [--out FILE]     (root, a running Docker engine, Compose)

One real vLLM container is brought up by site.yml. Then every play below runs once a round. The order turns, and every
other round goes through it backwards, so that of two plays each comes first equally often (rounds: a multiple of ten).
A play that changes anything ends the measurement.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import yaml

from tests.bench.public_compose import ANSIBLE, collections
from tests.support.container_seat import ContainerSeat, container_seats, no_container_seat
from tests.support.docker_project import DOCKER_HOST
from tests.support.play import REPOSITORY, Play, run_play

VOICES = ("lv-one", "lv-two", "lv-three")
PLAYS = {
    "site.yml": "(a) ours, the whole site.yml: inventory validated, lease, adapters hashed, engine.yaml, container, "
    "live voices, base and every voice asked",
    "ours": "(b) ours, the container alone: one task, compose_project with the same compose.yaml",
    "public": "(c) public, docker_compose_v2: one task, state present (up --detach)",
    "public, waiting": "(d) public, as (c) with wait: true, which promises health as ours does",
    "nothing": "(e) the floor: one task that only pings, so what Ansible itself takes",
}
RATIOS = [("site.yml", "public"), ("ours", "public"), ("ours", "public, waiting"), ("site.yml", "public, waiting")]


def playbooks(seat: ContainerSeat, directory: Path) -> dict[str, str]:
    """Each play's playbook."""
    given = {
        "project": seat.project,
        "directory": str(seat.compose_file.parent),
        "content": seat.compose_file.read_text(),
        "pull": "never",
        "docker_host": DOCKER_HOST,
    }
    public: dict[str, Any] = {
        "project_src": str(seat.compose_file.parent),
        "state": "present",
        "pull": "never",
        "docker_host": DOCKER_HOST,
    }
    tasks = {
        "ours": {"compose_project": given},
        "public": {"community.docker.docker_compose_v2": public},
        "public, waiting": {"community.docker.docker_compose_v2": {**public, "wait": True, "wait_timeout": 300}},
        "nothing": {"ansible.builtin.ping": {}},
    }
    made = {"site.yml": "site.yml"}
    for name, task in tasks.items():
        file = directory / f"{name.replace(', ', '_')}.yml"
        play = {"name": name, "hosts": "voices_hosts", "gather_facts": False, "tasks": [{"name": name, **task}]}
        file.write_text(yaml.safe_dump([play], sort_keys=False))
        made[name] = str(file)
    return made


def run(seat: ContainerSeat, playbook: str) -> Play:
    """One run, which must find nothing to do."""
    done = run_play(seat.inventory, playbook=playbook)
    if done.rc != 0 or done.changed:
        raise SystemExit(f"{playbook}: exit status {done.rc}, changed: {done.changed}\n{done.output}")
    return done


def measure(seat: ContainerSeat, made: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each play by round; one round before them is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in made}
    names = list(made)
    before = seat.container_id()
    for playbook in made.values():
        run(seat, playbook)
    for number in range(rounds):
        turn = number // 2 % len(names)
        order = names[turn:] + names[:turn]
        for name in order if number % 2 == 0 else reversed(order):
            seconds[name].append(run(seat, made[name]).seconds)
    if seat.container_id() != before:
        raise SystemExit("the container is another one: nothing of this counts")
    return seconds


def spread(values: list[float]) -> str:
    """Median, quartiles, least and most."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:6.2f}   {low:6.2f} .. {high:6.2f}   {min(values):6.2f} .. {max(values):6.2f}"


def report(seconds: dict[str, list[float]]) -> Iterator[str]:
    """The measurement for a person."""
    rounds = len(seconds["site.yml"])
    yield f"{rounds} rounds, {os.cpu_count()} cores, Python {platform.python_version()}, ansible package {ANSIBLE}"
    yield ""
    yield f"{'seconds':20s} median   quartiles          least .. most"
    yield from (f"{name:20s} {spread(values)}" for name, values in seconds.items())
    yield ""
    yield f"{'ratio, by round':28s} median   quartiles          least .. most"
    for one, other in RATIOS:
        paired = [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]
        yield f"{f'{one} / {other}':28s} {spread(paired)}"
    yield ""
    yield from PLAYS.values()


@contextmanager
def running_seat(root: Path) -> Iterator[ContainerSeat]:
    """The seat, and afterwards nothing of it."""
    client = docker.APIClient(base_url=DOCKER_HOST, version="auto", timeout=60)
    made = container_seats(root, "bench", client, VOICES)
    try:
        yield next(made)
        next(made, None)
    finally:
        made.close()
        client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="how many times each play runs")
    parser.add_argument("--out", type=Path, help="write the measurement there, too")
    given = parser.parse_args()
    if reason := no_container_seat():
        print(f"not measured: {reason}", file=sys.stderr)
        return 1
    # For every play alike; only two of them name the collection.
    os.environ["ANSIBLE_COLLECTIONS_PATH"] = str(collections(REPOSITORY / "var/cache"))
    with tempfile.TemporaryDirectory() as scratch, running_seat(Path(scratch)) as seat:
        text = "\n".join(report(measure(seat, playbooks(seat, Path(scratch)), given.rounds)))
    print(text)
    if given.out:
        given.out.write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
