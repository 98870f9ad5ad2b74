"""Two runs at once, and runs that are killed at any instant: the next run puts it right."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker_project import Project, projects

REPOSITORY = Path(__file__).resolve().parents[2]


def start(project: Project, **changes: Any) -> subprocess.Popen[str]:
    """The module in a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.module_process", "compose_project"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(project.arguments(**changes)))
    process.stdin.close()
    process.stdin = None
    return process


def kill(process: subprocess.Popen[str], after_s: float, *, group: bool) -> bool:
    """SIGKILL after a time; whether the run was still going on. ``group``: Compose dies with the module."""
    time.sleep(after_s)
    going = process.poll() is None
    if going:
        os.kill(-process.pid if group else process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    return going


def assert_converged(project: Project) -> dict[str, Any]:
    """One more run puts everything right, and then nothing is left to do; returns the container."""
    project.run()
    again = project.run(check=True)
    assert (again["changed"], again["actions"]) == (False, [])
    one = project.one()
    assert one["Name"] == f"/{project.name}-engine-1"
    assert one["State"]["Health"]["Status"] == "healthy"
    assert (project.directory / "compose.yaml").read_text() == project.content
    assert [name for name in os.listdir(project.directory) if name.startswith((".compose", ".."))] == []
    return one


@pytest.fixture(scope="module")
def whole_run_s(api: Any, images: None, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a run with a recreate takes on this machine now, start of the interpreter included."""
    for project in projects(api, tmp_path_factory.mktemp("timing")):
        project.run()
        project.service["labels"]["voices.flags"] = "timing"
        began = time.monotonic()
        start(project).communicate(timeout=120)
        return time.monotonic() - began
    raise AssertionError("no project")


@pytest.mark.parametrize(
    ("seed", "group"), [*((seed, True) for seed in range(10)), *((s, False) for s in range(10, 14))]
)
def test_a_killed_recreate_converges(running: Project, whole_run_s: float, seed: int, group: bool) -> None:
    after_s = random.Random(f"recreate {seed}").uniform(0.2, 0.95) * whole_run_s  # noqa: S311 - an instant, no secret
    healthy = running.content
    running.service["labels"]["voices.flags"] = f"seed {seed}"
    kill(start(running), after_s, group=group)
    one = assert_converged(running)
    assert one["Config"]["Labels"]["voices.flags"] == f"seed {seed}"
    assert (running.directory / "compose.yaml.previous").read_text() == healthy


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_first_run_converges(project: Project, whole_run_s: float, seed: int) -> None:
    after_s = random.Random(f"first {seed}").uniform(0.2, 0.95) * whole_run_s  # noqa: S311 - an instant, no secret
    kill(start(project), after_s, group=True)
    assert_converged(project)


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_twice_converges(running: Project, whole_run_s: float, seed: int) -> None:
    instants = random.Random(f"twice {seed}")  # noqa: S311 - instants, no secrets
    for attempt in range(2):
        running.service["labels"]["voices.flags"] = f"seed {seed}, attempt {attempt}"
        kill(start(running), instants.uniform(0.4, 0.95) * whole_run_s, group=True)
    assert_converged(running)


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_run_without_a_recreate_leaves_the_container_alone(
    running: Project, whole_run_s: float, seed: int
) -> None:
    before = running.one()
    after_s = random.Random(f"comment {seed}").uniform(0.2, 0.6) * whole_run_s  # noqa: S311 - an instant, no secret
    kill(start(running, content=f"# another verdict\n{running.content}"), after_s, group=True)
    after = assert_converged(running)
    assert (after["Id"], after["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_removal_is_finished_by_the_next(running: Project, whole_run_s: float, seed: int) -> None:
    after_s = random.Random(f"absent {seed}").uniform(0.3, 0.9) * whole_run_s  # noqa: S311 - an instant, no secret
    kill(start(running, state="absent"), after_s, group=True)
    running.run(state="absent", content=None)
    assert running.containers() == []
    assert not running.directory.exists()
    assert running.api.networks(names=[running.name]) == []


def test_two_runs_at_once(project: Project) -> None:
    runs = [start(project) for _ in range(2)]
    results = [json.loads(process.communicate(timeout=120)[0]) for process in runs]
    assert [result.get("msg") for result in results] == [None, None]
    assert sorted(result["changed"] for result in results) == [False, True]
    assert_converged(project)


def test_two_runs_that_want_different_things(running: Project) -> None:
    other = running.content.replace("aaa", "other")
    runs = [start(running, content=content) for content in (running.content.replace("aaa", "one"), other)]
    results = [json.loads(process.communicate(timeout=120)[0]) for process in runs]
    assert [(result.get("msg"), result["changed"]) for result in results] == [(None, True), (None, True)]
    assert len(running.containers()) == 1
    assert_converged(running)


def test_a_run_waits_for_the_compose_of_a_killed_module(running: Project) -> None:
    """Compose holds the lock after its module: the next run reads no half-made state."""
    running.service["labels"]["voices.flags"] = "bbb"
    running.service["healthcheck"]["test"] = ["CMD", "sh", "-c", "sleep 2"]
    process = start(running)
    until_up(process)
    began = time.monotonic()
    result = running.run()
    assert time.monotonic() - began > 1
    assert result["actions"] == []
    assert running.one()["State"]["Health"]["Status"] == "healthy"


def until_up(process: subprocess.Popen[str]) -> None:
    """Kill the module alone as soon as its Compose runs ``up``."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
        if any(b"\0up\0" in command for command in commands):
            time.sleep(0.5)
            kill(process, 0, group=False)
            return
        time.sleep(0.01)
    raise AssertionError("Compose was not started")
