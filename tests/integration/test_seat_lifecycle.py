"""One real seat through its life, by the product's own site.yml: what check says is what the real run does.

The tests share one seat and build on each other, in the order in which they stand: an engine start costs 20 s.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import observe
from tests.support.local_seat import ENGINE_PYTHON, LocalSeat
from tests.support.play import Play
from tests.support.tiny_carrier import write_adapter

FIRST_PLAN: list[dict[str, Any]] = []  # what check says before anything exists, for the run after it
LONG_PROMPT = "Tell me, O Muse, of that ingenious hero who travelled far and wide. " * 24


@pytest.fixture(scope="module")
def seat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSeat]:
    made = LocalSeat(tmp_path_factory.mktemp("seat"))
    for voice in ("lv-austen", "lv-bronte", "lv-homer"):
        made.add_voice(voice)
    yield made
    made.run(playbook="playbooks/down.yml")
    assert observe.processes(made.made) == {}


def plan_then_apply(seat: LocalSeat, **extra: Any) -> Play:
    """Check, prove that it changed nothing, apply, prove that the plan was the same; return the real run."""
    before = seat.state()
    checked = seat.run(check=True, **extra)
    assert checked.rc == 0, checked.output
    assert seat.state() == before
    applied = seat.run(**extra)
    assert applied.rc == 0, applied.output
    assert applied.actions == checked.actions
    return applied


def done(play: Play) -> list[tuple[str, str]]:
    return [(action["do"], action["what"]) for action in play.actions]


def assert_unchanged(seat: LocalSeat) -> None:
    before = seat.state()
    again = seat.run()
    assert (again.rc, again.changed) == (0, []), again.output
    assert seat.state() == before


def test_check_before_anything_exists(seat: LocalSeat) -> None:
    checked = seat.run(check=True)
    assert checked.rc == 0, checked.output
    assert not seat.made.exists()
    assert ("start", "t1") in done(checked)
    FIRST_PLAN.extend(checked.actions)


def test_the_first_run_does_what_check_said(seat: LocalSeat) -> None:
    first = seat.run()
    assert first.rc == 0, first.output
    assert first.actions == FIRST_PLAN
    answers = {model: seat.ask(model) for model in ("voices-base", "lv-austen", "lv-bronte", "lv-homer")}
    assert len(set(answers.values())) == 4
    assert set(seat.persisted()) == set(seat.live()) == {"lv-austen", "lv-bronte", "lv-homer"}


def test_the_printed_line_answers_and_the_key_is_nowhere(seat: LocalSeat) -> None:
    run = seat.run()
    assert (run.rc, run.changed) == (0, []), run.output
    line = next(line.strip() for line in run.output.splitlines() if line.strip().startswith("curl "))
    answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"].strip()
    assert seat.key not in run.output
    for pid in Path("/proc").glob("[0-9]*"):
        try:
            assert seat.key.encode() not in (pid / "cmdline").read_bytes(), pid
        except OSError:
            continue
    assert seat.key not in seat.log
    for path in (seat.engine_file, seat.directory / "secrets/api_key", seat.directory / "secrets/auth.header"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    readable = [p for p in seat.made.rglob("*") if p.is_file() and seat.key.encode() in p.read_bytes()]
    assert readable
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in readable), readable


def test_a_second_run_changes_nothing(seat: LocalSeat) -> None:
    records = len(list((seat.made / "records").iterdir()))
    assert records == 1
    assert_unchanged(seat)
    assert len(list((seat.made / "records").iterdir())) == records


def test_a_voice_added_goes_live_without_a_restart(seat: LocalSeat) -> None:
    pids = seat.engine_pids()
    seat.add_voice("lv-poe")
    applied = plan_then_apply(seat)
    assert done(applied) == [("store", "lv-poe"), ("load", "lv-poe"), ("persist", "lv-poe")]
    assert seat.engine_pids() == pids
    assert seat.ask("lv-poe") not in {
        seat.ask(model) for model in ("voices-base", "lv-austen", "lv-bronte", "lv-homer")
    }
    assert_unchanged(seat)


@pytest.mark.parametrize("role", ["server", "core"])
def test_a_killed_engine_comes_back_with_its_voices_and_without_orphans(seat: LocalSeat, role: str) -> None:
    before, answer = observe.processes(seat.directory), seat.ask("lv-poe")
    engine = {pid for pid, command in before.items() if "service_run" not in command and "supervisord" not in command}
    os.kill(seat.engine_pids()[role], signal.SIGKILL)
    observe.wait_until(
        lambda: not engine & set(observe.processes(seat.directory)), 30, "the old engine's processes are gone"
    )
    if role == "core":  # a run that meets the booting engine waits for it
        run = seat.run()
        assert (run.rc, run.changed) == (0, []), run.output
    observe.wait_until(lambda: "lv-poe" in seat.live(), 300, "the engine is back with lv-poe")
    assert seat.ask("lv-poe") == answer
    assert len(observe.processes(seat.directory)) == len(before)


def test_changed_weights_are_served_from_a_new_path_and_not_from_a_stale_cache(seat: LocalSeat) -> None:
    old = seat.ask("lv-poe", LONG_PROMPT)
    assert seat.ask("lv-poe", LONG_PROMPT) == old  # cached blocks of the old voice now exist
    before, pids = seat.live(), seat.engine_pids()
    write_adapter(seat.sources / "lv-poe-v1", "lv-poe", seed="poe, the second version")
    applied = plan_then_apply(seat)
    assert done(applied) == [("store", "lv-poe"), ("replace", "lv-poe"), ("persist", "lv-poe")]
    after = seat.live()
    assert after["lv-poe"] != before["lv-poe"]
    assert {name for name in after if after[name] != before[name]} == {"lv-poe"}
    assert seat.engine_pids() == pids
    new = seat.ask("lv-poe", LONG_PROMPT)
    source = str(seat.sources / "lv-poe-v1")
    tried = seat.run(playbook="playbooks/voice_try.yml", voice="lv-fresh", source=source)
    assert tried.rc == 0, tried.output
    assert new == seat.ask("lv-fresh", LONG_PROMPT)
    assert new != old


def test_a_trial_is_reported_and_left_until_told_otherwise(seat: LocalSeat) -> None:
    assert "lv-fresh" not in seat.persisted()
    run = seat.run()
    assert (run.rc, run.changed) == (0, [])
    assert "trial lv-fresh" in run.output
    assert "lv-fresh" in seat.live()
    checked = seat.run(playbook="playbooks/voice_try.yml", check=True, voice="lv-fresh", state="absent")
    assert "lv-fresh" in seat.live()
    gone = seat.run(playbook="playbooks/voice_try.yml", voice="lv-fresh", state="absent")
    assert gone.rc == 0, gone.output
    assert gone.actions == checked.actions
    assert "lv-fresh" not in seat.live()


def test_pruning_removes_trials(seat: LocalSeat) -> None:
    seat.run(playbook="playbooks/voice_try.yml", voice="lv-fresh", source=str(seat.sources / "lv-homer-v1"))
    assert "lv-fresh" in seat.live()
    applied = plan_then_apply(seat, voices_seat_prune_trials=True)
    assert done(applied) == [("prune", "lv-fresh")]
    assert "lv-fresh" not in seat.live()


def test_a_trial_of_a_voice_of_the_inventory_is_refused(seat: LocalSeat) -> None:
    before = seat.state()
    run = seat.run(playbook="playbooks/voice_try.yml", voice="lv-poe", source=str(seat.sources / "lv-homer-v1"))
    assert run.rc != 0
    assert "lv-poe stands in the inventory" in run.output
    assert seat.state() == before


def test_bad_names_and_options_are_all_named_and_change_nothing(seat: LocalSeat) -> None:
    before, good = seat.state(), dict(seat.voices)
    seat.add_voice("lv-Bad", source="x")
    seat.add_voice("voices-base", source="x")
    seat.options = {"bind": "elsewhere"}
    run = seat.run()
    assert run.rc != 0
    for words in ("'lv-Bad' is outside the naming rule", "named like the base", "bind 'elsewhere'"):
        assert words in run.output
    seat.options = {"prot": 1}
    assert "unknown option 'prot'" in seat.run().output
    seat.options, seat.voices = {}, good
    assert seat.state() == before


@pytest.mark.parametrize("check", [True, False])
def test_bad_sources_are_all_named_and_change_nothing(seat: LocalSeat, check: bool) -> None:
    good = dict(seat.voices)
    for voice in ("lv-config", "lv-short"):
        shutil.rmtree(seat.sources / f"{voice}-v1", ignore_errors=True)
        seat.add_voice(voice)
    (seat.sources / "lv-config-v1/adapter_config.json").unlink()
    os.truncate(seat.sources / "lv-short-v1/adapter_model.safetensors", 5000)
    seat.add_voice("lv-lost", source="lost")
    seat.add_voice("lv-good")
    before = seat.state()
    run = seat.run(check=check)
    seat.voices = good
    assert run.rc != 0
    for words in ("lv-config", "adapter_config.json", "lv-short", "5000", "lv-lost"):
        assert words in run.output
    assert seat.state() == before


def test_what_was_done_to_one_seat_does_not_stand_in_the_record_of_the_next(seat: LocalSeat) -> None:
    seat.add_voice("lv-swift")
    seat.write_inventory()
    inventory = yaml.safe_load(seat.inventory.read_text())
    seats = inventory["voices_hosts"]["hosts"]["seat-host"]["voices_seats"]
    lost = {"lv-lost": {"source": "lost", "state": "present"}}
    seat.host_vars = {"voices_seats": {**seats, "t2": {**seats["t1"], "port": observe.free_port(), "voices": lost}}}
    run = seat.run()
    seat.host_vars = {}
    assert run.rc != 0
    assert "lv-lost" in run.output
    records = sorted((seat.made / "records").iterdir())
    assert json.loads(records[-1].read_text())["seat"] == "t1", "the second seat changed nothing, and wrote no record"
    assert "lv-swift" in seat.live()
    assert not (seat.made / "seats/t2").exists()
    seat.voices["lv-swift"] = {"state": "absent"}
    assert seat.run().rc == 0
    del seat.voices["lv-swift"]


def test_a_voice_that_the_engine_refuses_leaves_the_others_live_and_lasting(seat: LocalSeat) -> None:
    """The adapter's files are whole; only the engine finds that a tensor's name is not PEFT's."""
    del seat.voices["lv-poe"]
    gone = seat.run()
    assert gone.rc != 0
    assert "lv-poe left the inventory" in gone.output
    seat.voices["lv-poe"] = {"state": "retired"}
    source = seat.sources / "lv-bad-v1"
    shutil.rmtree(source, ignore_errors=True)
    write_adapter(source, "lv-bad")
    config = json.loads((source / "adapter_config.json").read_text())
    (source / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    seat.voices["lv-bad"] = {"source": "lv-bad-v1", "state": "present"}
    pids = seat.engine_pids()
    run = seat.run()
    assert run.rc != 0
    assert "lv-bad" in run.output
    assert seat.engine_pids() == pids
    assert set(seat.persisted()) == set(seat.live()) == {"lv-austen", "lv-bronte", "lv-homer"}
    del seat.voices["lv-bad"]
    assert_unchanged(seat)


def test_an_absent_voice_leaves_the_store_too(seat: LocalSeat) -> None:
    assert list((seat.made / "store").glob("lv-poe@*"))
    seat.voices["lv-poe"] = {"state": "absent"}
    applied = plan_then_apply(seat)
    assert {do for do, _what in done(applied)} == {"forget"}
    assert not list((seat.made / "store").glob("lv-poe@*"))
    del seat.voices["lv-poe"]
    assert_unchanged(seat)


def test_a_changed_flag_and_key_restart_and_say_so_first(seat: LocalSeat) -> None:
    """The engine that runs has the old key when its trials are looked for, and engine.yaml the new one."""
    server = seat.engine_pids()["server"]
    seat.run(playbook="playbooks/voice_try.yml", voice="lv-fresh", source=str(seat.sources / "lv-homer-v1"))
    seat.options = {"max_lora_rank": 16, "api_key": "a-key-that-the-inventory-gives"}
    checked = seat.run(check=True)
    assert "restart t1: max-lora-rank 8 -> 16" in checked.output
    assert "restart t1: api-key changed" in checked.output
    assert "trial lv-fresh" in checked.output
    assert seat.engine_pids()["server"] == server
    applied = plan_then_apply(seat)
    assert ("restart", "t1") in done(applied)
    assert "trial lv-fresh" in applied.output
    assert seat.engine_pids()["server"] != server
    assert seat.key == seat.options["api_key"]
    assert set(seat.live()) == {"lv-austen", "lv-bronte", "lv-homer"}


def test_an_engine_that_cannot_start_is_given_up_with_its_own_words(seat: LocalSeat) -> None:
    healthy = seat.engine_file.read_text()
    seat.options = {"max_lora_rank": 16, "max_model_len": 999_999}
    run = seat.run(voices_seat_start_retries=1)
    seat.options = {"max_lora_rank": 16}
    assert run.rc != 0
    assert "max_model_len" in run.output
    previous = Path(f"{seat.engine_file}.previous")
    assert str(previous) in run.output
    assert previous.read_text() == healthy
    assert seat.engine_pids() == {}


def test_a_carrier_that_is_not_there_changes_nothing(seat: LocalSeat) -> None:
    before = observe.tree(seat.made, without=("log", "cache", "leases"))
    seat.options = {"max_lora_rank": 16, "carrier": str(seat.root / "tinny")}
    runs = [seat.run(check=check) for check in (True, False)]
    seat.options = {"max_lora_rank": 16}  # before the first assertion: the tests that follow go on with this seat
    for run in runs:
        assert run.rc != 0
        assert f"carrier {seat.root}/tinny does not exist" in run.flat
    assert observe.tree(seat.made, without=("log", "cache", "leases")) == before


def test_a_port_in_use_is_refused_and_its_owner_named(seat: LocalSeat) -> None:
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(seat.port)]
    other = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        observe.wait_until(lambda: observe_listening(seat.port), 20, "the other server listens")
        for check in (True, False):
            run = seat.run(check=check)
            assert run.rc != 0
            assert f"{other.pid}" in run.output
            assert "http.server" in run.output
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def observe_listening(port: int) -> bool:
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=2):
        return True


def test_a_seat_started_by_hand_is_taken_over_without_a_restart(seat: LocalSeat) -> None:
    """The engine file of the failed run is put right first, then a person starts it by hand."""
    assert seat.run(playbook="playbooks/down.yml").rc == 0
    records = len(list((seat.made / "records").iterdir()))
    tried = seat.run(playbook="playbooks/voice_try.yml", voice="lv-x", source=str(seat.sources / "lv-homer-v1"))
    assert tried.rc != 0
    assert "is not up as the inventory says" in tried.output
    assert len(list((seat.made / "records").iterdir())) == records
    wanted = yaml.safe_load(Path(f"{seat.engine_file}.previous").read_text())
    seat.engine_file.write_text(yaml.safe_dump(wanted))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(seat.root),
        "PYTHONPATH": str(seat.directory / "engine"),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "OMP_NUM_THREADS": "2",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [ENGINE_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--config", str(seat.engine_file)]
    with open(seat.root / "by-hand.log", "wb") as log:
        engine = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    observe.wait_until(lambda: "lv-homer" in seat.live(), 120, "the engine that a person started is up")
    run = seat.run()
    assert run.rc == 0, run.output
    assert ("adopt", "t1") in done(run)
    assert engine.poll() is None
    assert seat.ask("lv-homer")
    again = seat.run()
    assert (again.rc, again.changed) == (0, []), again.output
    assert engine.poll() is None
    stopped = seat.run(playbook="playbooks/down.yml")
    assert stopped.rc == 0, stopped.output
    engine.wait(timeout=60)
    assert observe.processes(seat.made) == {}
