"""A real seat whose voice goes back to an earlier adapter: without a restart, lasting, pinned, and through kills.

The tests share one seat and build on each other, in the order in which they stand: an engine start costs 20 s. All of
them take about three minutes on two cores, at 5 to 7 s a play.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import observe
from tests.support.local_seat import LocalSeat
from tests.support.play import Play, run_play, start_play
from tests.support.tiny_carrier import write_adapter

PLAYBOOK = "playbooks/voice_rollback.yml"
VOICE, OTHER = "lv-austen", "lv-bronte"


class Past(LocalSeat):
    """A seat, and what its voice answered from each of its adapters, by path."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers: dict[str, str] = {}

    def serve(self, version: int) -> str:
        """New weights at the source, deployed. Returns the path they are served from."""
        write_adapter(self.sources / f"{VOICE}-v1", VOICE, seed=f"version {version}")
        done = self.run()
        assert done.rc == 0, done.output
        path = self.live()[VOICE]
        self.answers[path] = self.ask(VOICE)
        return path

    def back(self, *, check: bool = False, **extra: Any) -> Play:
        """The playbook, over the inventory as it lies there."""
        return run_play(self.inventory, playbook=PLAYBOOK, check=check, extra={"voice": VOICE, **extra})

    def site(self, *, check: bool = False) -> Play:
        return run_play(self.inventory, check=check)

    def pin(self) -> str | None:
        """What the inventory pins, as YAML reads it; the test's own idea of the inventory follows."""
        host = yaml.safe_load(self.inventory.read_text())["voices_hosts"]["hosts"]["seat-host"]
        self.voices = host["voices_seats"][self.name]["voices"]
        return self.voices[VOICE].get("digest")

    def everything(self) -> tuple[Any, ...]:
        return self.state(), self.inventory.read_bytes(), self.inventory.stat().st_ino


@pytest.fixture(scope="module")
def seat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    made = Past(tmp_path_factory.mktemp("rollback"))
    for voice in (VOICE, OTHER):
        made.add_voice(voice)
    yield made
    made.run(playbook="playbooks/down.yml")
    assert observe.processes(made.made) == {}


@pytest.fixture(scope="module")
def paths(seat: Past) -> list[str]:
    found = [seat.serve(version) for version in (1, 2, 3)]
    assert len({*seat.answers.values()}) == 3
    return found


def digits(path: str) -> str:
    return path.rpartition("@")[2]


def plan_then_apply(seat: Past, **extra: Any) -> Play:
    before = seat.everything()
    checked = seat.back(check=True, **extra)
    assert checked.rc == 0, checked.output
    assert seat.everything() == before
    applied = seat.back(**extra)
    assert applied.rc == 0, applied.output
    assert applied.actions == checked.actions
    assert pins(applied) == pins(checked) != []
    return applied


def pins(play: Play) -> list[dict[str, Any]]:
    """What the play did to the inventory."""
    return [action for task in play.tasks if task["module"] == "inventory_pin" for action in task["actions"] or []]


def assert_settled(seat: Past) -> None:
    """Neither playbook, run again, finds anything to do."""
    before = seat.everything()
    for again in (seat.back(), seat.site()):
        assert (again.rc, again.changed) == (0, []), again.output
    assert seat.everything() == before


def test_a_voice_goes_back_live_lasting_and_pinned_without_a_restart(seat: Past, paths: list[str]) -> None:
    pids, other, text = seat.engine_pids(), (seat.live()[OTHER], seat.ask(OTHER)), seat.inventory.read_text()
    applied = plan_then_apply(seat)
    assert seat.engine_pids() == pids
    assert seat.live()[VOICE] == seat.persisted()[VOICE] == paths[1]
    assert seat.ask(VOICE) == seat.answers[paths[1]]
    assert (seat.live()[OTHER], seat.ask(OTHER)) == other
    added = [line for line in seat.inventory.read_text().splitlines() if line not in text.splitlines()]
    assert [line.strip() for line in added] == [f'digest: "{digits(paths[1])}"']
    assert f"+{added[0]}" in applied.output.splitlines()
    assert seat.pin() == digits(paths[1])
    assert_settled(seat)
    record = sorted((seat.made / "records").iterdir())[-1].read_text()
    assert "pin" in record
    assert f"{VOICE}@{digits(paths[1])}" in record


def test_an_entry_is_named_and_its_source_may_be_gone(seat: Past, paths: list[str]) -> None:
    source = seat.sources / f"{VOICE}-v1"
    source.rename(source.with_name("away"))
    done = seat.back(to=digits(paths[0])[:8])
    assert done.rc == 0, done.output
    assert seat.live()[VOICE] == seat.persisted()[VOICE] == paths[0]
    assert seat.ask(VOICE) == seat.answers[paths[0]]
    assert seat.pin() == digits(paths[0])
    source.with_name("away").rename(source)


def refused(seat: Past, *said: str, **extra: Any) -> None:
    before = seat.everything()
    run = seat.back(**extra)
    assert run.rc != 0, run.output
    for words in said:
        assert words in " ".join(run.output.split()), run.output
    assert seat.everything() == before


def test_what_cannot_be_meant_changes_nothing(seat: Past, paths: list[str]) -> None:
    refused(seat, "lv-nobody does not stand in the inventory", voice="lv-nobody")
    refused(seat, "the digest 00000000 is not in the store", f"lv-austen@{digits(paths[0])}", to="0" * 8)
    weights = Path(paths[1], "adapter_model.safetensors")
    weights.chmod(0o644)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(seat, f"lv-austen@{digits(paths[1])} is damaged", "Nothing goes back to it", to=digits(paths[1]))
    checked = seat.site(check=True)
    assert (checked.rc, checked.changed) == (0, []), checked.output
    assert f"lv-austen@{digits(paths[1])}: it no longer matches its digest" in " ".join(checked.output.split())
    weights.write_bytes(whole)


def test_edits_that_nobody_deployed_are_not_deployed_along(seat: Past, paths: list[str]) -> None:
    before = seat.inventory.read_bytes()
    seat.pin()
    seat.add_voice("lv-poe")
    seat.write_inventory()
    refused(seat, "changes that are not deployed yet", "load lv-poe", to=digits(paths[1]))
    del seat.voices["lv-poe"]
    seat.options = {"max_model_len": 512}
    seat.write_inventory()
    refused(seat, "is not up as the inventory says", to=digits(paths[1]))
    seat.options = {}
    seat.inventory.write_bytes(before)


def test_a_play_killed_after_the_pin_is_finished_by_either_playbook(seat: Past, paths: list[str]) -> None:
    pids = seat.engine_pids()
    for finish, target in ((seat.site, paths[1]), (seat.back, paths[2])):
        # Killed as soon as the inventory changes: the engine still serves what it served.
        extra = {"voice": VOICE, "to": digits(target)}
        before = seat.inventory.read_bytes()
        play = start_play(seat.inventory, playbook=PLAYBOOK, extra=extra)
        try:
            observe.wait_until(lambda text=before: seat.inventory.read_bytes() != text, 60, "the pin is written")
        finally:
            os.killpg(play.pid, signal.SIGKILL)
            play.wait()
        assert seat.pin() == digits(target)
        done = finish()
        assert done.rc == 0, done.output
        assert seat.live()[VOICE] == seat.persisted()[VOICE] == target
        assert seat.ask(VOICE) == seat.answers[target]
        assert seat.engine_pids() == pids


def test_a_play_killed_before_its_notes_does_not_go_back_twice(seat: Past, paths: list[str]) -> None:
    notes = seat.made / "store/.uses.json"
    before = notes.read_text()
    done = seat.back(to=digits(paths[0]))
    assert done.rc == 0, done.output
    notes.write_text(before)
    again = seat.back()
    assert (again.rc, again.changed) == (0, []), again.output
    assert seat.live()[VOICE] == paths[0]
    assert notes.read_text() != before


def test_the_store_keeps_so_many_and_the_plan_says_which_go(seat: Past, paths: list[str]) -> None:
    seat.pin()
    seat.host_vars["voices_seat_store_keep"] = 2
    seat.write_inventory()
    before = seat.everything()
    checked = seat.site(check=True)
    assert seat.everything() == before
    applied = seat.site()
    assert applied.rc == 0, applied.output
    assert applied.actions == checked.actions
    assert [(action["do"], action["what"], action["why"]) for action in applied.actions] == [
        ("prune", f"{VOICE}@{digits(paths[1])}", "3 kept, limit 2")
    ]
    assert seat.ask(VOICE) == seat.answers[paths[0]]
