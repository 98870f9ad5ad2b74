"""A play that is killed at a random instant: the next one converges, and the seat never stopped answering.

One real vLLM container; each seed edits the voices, starts site.yml, and kills it: the controller alone, whose modules
then run on without it, or its whole process group, modules and all.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from typing import Any

import pytest

from tests.support import observe
from tests.support.container_seat import ContainerSeat
from tests.support.play import start_play
from tests.support.tiny_carrier import write_adapter

VOICES = ("lv-steady",)
# A seed takes 20 to 40 s: a few in every run, all of them with `make kills`.
ALL = bool(os.environ.get("VOICES_ALL_KILLS"))
SEEDS = range(12) if ALL else range(2)
RECREATE_SEEDS = [100, 101] if ALL else [100]


class Client(threading.Thread):
    """Asks one voice over and over; keeps what did not answer."""

    def __init__(self, seat: ContainerSeat) -> None:
        super().__init__(daemon=True)
        self.seat, self.key, self.stop = seat, seat.key, threading.Event()
        self.asked, self.failed = 0, []  # type: int, list[str]

    def run(self) -> None:
        """Until told to stop."""
        while not self.stop.wait(0.1):
            self.asked += 1
            try:
                observe.ask(self.seat.port, "lv-steady", self.key, max_tokens=1)
            except OSError as error:
                self.failed.append(repr(error))


def edit(seat: ContainerSeat, rng: random.Random) -> None:
    """One more voice, one fewer, or other weights: what is killed has something to do."""
    present = sorted(name for name, voice in seat.voices.items() if voice["state"] == "present" and name != "lv-steady")
    if len(present) < 2 and rng.random() < 0.6:
        seat.add_voice(rng.choice(["lv-one", "lv-two"]))
    elif present and rng.random() < 0.5:
        seat.voices[present[0]]["state"] = "retired"
    else:
        voice = present[0] if present else "lv-one"
        shutil.rmtree(seat.sources / f"{voice}-v1", ignore_errors=True)
        write_adapter(seat.sources / f"{voice}-v1", voice, seed=str(rng.random()))
        seat.voices[voice] = {"source": f"{voice}-v1", "state": "present"}


def kill(play: subprocess.Popen[Any], rng: random.Random) -> str:
    """Kill the controller alone, or all of it."""
    how = rng.choice(["controller", "group"])
    if play.poll() is None:
        (os.kill if how == "controller" else os.killpg)(play.pid, signal.SIGKILL)
    play.wait(timeout=60)
    return how


def wanted(seat: ContainerSeat) -> set[str]:
    """The voices that should be live."""
    return {name for name, voice in seat.voices.items() if voice["state"] == "present"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_play_is_put_right_by_the_next_and_nobody_noticed(seat: ContainerSeat, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a repeatable schedule
    client = Client(seat)
    client.start()
    edit(seat, rng)
    seat.write_inventory()
    play = start_play(seat.inventory)
    time.sleep(rng.uniform(0.5, 9.0))
    how = kill(play, rng)
    again = seat.run()
    assert again.rc == 0, (how, again.output)
    client.stop.set()
    client.join()
    assert client.asked > 5
    assert client.failed == [], how
    assert set(seat.live()) == set(seat.persisted()) == wanted(seat)
    assert seat.live() == seat.persisted()
    settled = seat.run(check=True)
    assert (settled.rc, settled.changed) == (0, []), (how, settled.output)


@pytest.mark.parametrize("seed", RECREATE_SEEDS)
def test_a_play_killed_while_it_recreates_the_container_is_put_right(seat: ContainerSeat, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a repeatable schedule
    seat.options["max_lora_rank"] = 16 if seat.options.get("max_lora_rank") != 16 else 8
    seat.write_inventory()
    play = start_play(seat.inventory)
    time.sleep(rng.uniform(6.0, 14.0))
    how = kill(play, rng)
    again = seat.run()
    assert again.rc == 0, (how, again.output)
    assert set(seat.live()) == set(seat.persisted()) == wanted(seat)
    settled = seat.run(check=True)
    assert (settled.rc, settled.changed) == (0, []), (how, settled.output)
