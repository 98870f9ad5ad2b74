"""What ``site.yml --check --diff`` says of an edit is what the run after it does, for every kind of edit there is.

One real vLLM container. Each kind is one or more steps; a step is a change of the inventory or of the machine, and what
the play must answer: its actions, in order. The kinds do not build on each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import observe
from tests.support.container_seat import ContainerSeat
from tests.support.foretold import mismatches
from tests.support.play import Play

VOICES = ("lv-steady", "lv-spare")
Action = tuple[str, str, str]
LABEL = ("recreate", "engine", "labels voices.engine-flags")
FILE = ("write", "compose.yaml", "")


@dataclass(frozen=True)
class Step:
    """``change`` is made, and the play answers with ``actions`` (do, what, why). ``restarts``: requests in flight end.

    ``shown`` are pieces of text that both runs must print.
    """

    change: Callable[[ContainerSeat], None]
    actions: list[Action]
    restarts: bool = False
    shown: tuple[str, ...] = ()
    runs: bool = True

    @property
    def new_container(self) -> bool:
        """Whether the container's id must be another after it."""
        return any(what == "engine" and do in ("create", "recreate", "remove") for do, what, _ in self.actions)


# ------------------------------------------------------------------------------------------- changes of the inventory


def option(name: str, value: Any) -> Callable[[ContainerSeat], None]:
    """An option of the seat."""

    def change(seat: ContainerSeat) -> None:
        seat.options[name] = value

    return change


def add(voice: str) -> Callable[[ContainerSeat], None]:
    """One more voice."""

    def change(seat: ContainerSeat) -> None:
        seat.add_voice(voice)

    return change


def retire(voice: str) -> Callable[[ContainerSeat], None]:
    """A voice that is no longer served."""

    def change(seat: ContainerSeat) -> None:
        seat.voices[voice] = {"state": "retired"}

    return change


def verdict(seat: ContainerSeat) -> None:
    seat.voices["lv-steady"]["verdict"] = "passed on every axis but one"


def on_trial(seat: ContainerSeat) -> None:
    """A voice that the next restart loses, which is to be said while the engine still has its old port and key."""
    source = str(seat.sources / "lv-steady-v1")
    tried = seat.run(playbook="playbooks/voice_try.yml", voice="lv-tried", source=source)
    assert tried.rc == 0, tried.output


def port(seat: ContainerSeat) -> None:
    on_trial(seat)
    seat.port = observe.free_port()


def key(seat: ContainerSeat) -> None:
    on_trial(seat)
    seat.options["api_key"] = f"a key of the inventory {time.time_ns()}".replace(" ", "-")


def other_tag(seat: ContainerSeat) -> None:
    seat.options["image"] = seat.tagged("two")


def several(seat: ContainerSeat) -> None:
    add("lv-many")(seat)
    verdict(seat)
    seat.voices["lv-steady"]["verdict"] += ", looked at again"
    seat.options.update(environment={"OMP_NUM_THREADS": "3"}, shm_mib=640, engine_flags={**EAGER, "max-num-seqs": 6})


# --------------------------------------------------------------------------------------------- changes of the machine


def rebuilt(seat: ContainerSeat) -> None:
    seat.rebuild(seat.options["image"])


def edited_by_hand(seat: ContainerSeat) -> None:
    text = seat.compose_file.read_text()
    assert "no-new-privileges:true" in text
    seat.compose_file.write_text(text.replace("no-new-privileges:true", "no-new-privileges:false"))


def stopped_by_hand(seat: ContainerSeat) -> None:
    seat.api.stop(seat.container_id(), timeout=20)


EAGER = {"enforce-eager": True}
KINDS: dict[str, list[Step]] = {
    "a voice is added": [
        Step(add("lv-new"), [("store", "lv-new", "new"), ("load", "lv-new", ""), ("persist", "lv-new", "")])
    ],
    "a voice is retired": [
        Step(retire("lv-spare"), [("drop", "lv-spare", "retired"), ("unload", "lv-spare", "retired")])
    ],
    "another rank": [
        Step(
            option("max_lora_rank", 16),
            [("write", "engine.yaml", "max-lora-rank"), FILE, LABEL],
            restarts=True,
            shown=("max-lora-rank: 8 -> 16", "recreate engine: labels voices.engine-flags"),
        )
    ],
    "another flag": [
        Step(
            option("engine_flags", {**EAGER, "max-num-seqs": 5}),
            [("write", "engine.yaml", "max-num-seqs"), FILE, LABEL],
            restarts=True,
            shown=("max-num-seqs: (none) -> 5",),
        )
    ],
    "the engine's environment": [
        Step(
            option("environment", {"OMP_NUM_THREADS": "1"}),
            [FILE, ("recreate", "engine", "environment OMP_NUM_THREADS")],
            restarts=True,
            shown=("recreate engine: environment OMP_NUM_THREADS 2 -> 1",),
        )
    ],
    "another image": [Step(other_tag, [FILE, ("recreate", "engine", "image")], restarts=True)],
    "an image that was rebuilt under its name": [
        Step(rebuilt, [("recreate", "engine", "image id")], restarts=True),
    ],
    "another port": [
        Step(
            port,
            [
                ("write", "engine.yaml", "port"),
                FILE,
                ("recreate", "engine", "healthcheck test"),
                LABEL,
                ("recreate", "engine", "ports"),
            ],
            restarts=True,
            shown=("trial lv-tried",),
        )
    ],
    "a setting of the container alone": [
        Step(
            option("shm_mib", 512),
            [FILE, ("recreate", "engine", "shm_size")],
            restarts=True,
            shown=("recreate engine: shm_size 1 GiB -> 512 MiB",),
        )
    ],
    "a voice's verdict": [Step(verdict, [FILE], shown=("# lv-steady: passed on every axis but one",))],
    "compose.yaml is edited by hand": [
        Step(edited_by_hand, [("write", "compose.yaml", "edited by hand")], shown=("no-new-privileges:false",))
    ],
    "the container is stopped by hand": [Step(stopped_by_hand, [("start", "engine", "exited")], restarts=True)],
    "stopped, then present": [
        Step(option("state", "stopped"), [("stop", "engine", "")], runs=False),
        Step(option("state", "present"), [("start", "engine", "exited")], restarts=True),
    ],
    "absent, then present": [
        Step(option("state", "absent"), [], runs=False),
        Step(option("state", "present"), [], restarts=True),
    ],
    "another key": [
        Step(
            key,
            [
                ("write", "api key", ""),
                ("write", "auth header", "another key"),
                ("write", "engine.yaml", "api-key"),
                FILE,
                LABEL,
            ],
            restarts=True,
            shown=("trial lv-tried",),
        )
    ],
    "several at once": [Step(several, [], restarts=True)],
}


def steps(play: Play) -> list[Action]:
    """(do, what, why) of each action."""
    return [(action["do"], action["what"], action["why"]) for action in play.actions]


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_does_what_the_check_said(seat: ContainerSeat, kind: str) -> None:
    for step in KINDS[kind]:
        step.change(seat)
        before, old, began = seat.state(), seat.container_id(), time.time()
        checked = seat.run(check=True)
        assert checked.rc == 0, checked.output
        time.sleep(0.2)  # an event that the check caused would be there by now
        assert seat.events(began, time.time()) == []
        assert seat.state() == before

        real = seat.run()
        assert real.rc == 0, real.output
        assert steps(real) == step.actions
        assert "\n".join(mismatches(checked, real)) == ""
        for text in step.shown:
            assert text in checked.output
            assert text in real.output
        assert (seat.container_id() != old) == step.new_container
        if step.runs:
            assert real.result("compose_project")["will_start"] == step.restarts
            wanted = {name for name, voice in seat.voices.items() if voice["state"] == "present"}
            assert set(seat.live()) == set(seat.persisted()) == wanted

        after = seat.state()
        again = seat.run()
        assert (again.rc, again.changed) == (0, []), again.output
        assert seat.state() == after
