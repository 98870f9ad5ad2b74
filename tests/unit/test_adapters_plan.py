"""The plan of vllm_lora_adapters, its runner against a seat that misbehaves, and the module's check mode."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible.module_utils.voices.adapters import REHEARSAL_PREFIX, Actual, Wanted, after, plan, trials
from ansible.module_utils.voices.adapters_runner import Outcome, Runner, failures
from ansible.module_utils.voices.engine_directory import EngineDirectory
from ansible.module_utils.voices.engine_yaml import render
from ansible.module_utils.voices.plan import Action, VoicesError
from ansible.module_utils.voices.seat_api import SeatError, SeatUnauthorized, SeatUnreachable

from tests.support.run_module import run_module

OLD, NEW = "/store/lv-a@old", "/store/lv-a@new"


def lines(actions: list[Action]) -> list[str]:
    return [action.line() for action in actions]


def test_nothing_to_do() -> None:
    same = {"lv-a": OLD, "lv-b": "/store/b"}
    assert plan(Wanted(same, ["lv-gone"]), Actual(same, same)) == []


def test_the_order_is_removals_replacements_loads() -> None:
    wanted = Wanted({"lv-a": "/store/a", "lv-m": "/store/m2", "lv-z": "/store/z"}, ["lv-gone"], prune_trials=True)
    actual = Actual(
        {"lv-gone": "/store/g", "lv-m": "/store/m1", "lv-trial": "/store/t", "lv-z": "/store/z"},
        {"lv-gone": "/store/g", "lv-m": "/store/m1"},
    )
    assert lines(plan(wanted, actual)) == [
        "drop lv-gone: retired /store/g -> (none)",
        "unload lv-gone: retired /store/g -> (none)",
        "prune lv-trial: trial /store/t -> (none)",
        "replace lv-m: /store/m1 -> /store/m2",
        "persist lv-m: /store/m1 -> /store/m2",
        "load lv-a: (none) -> /store/a",
        "persist lv-a: (none) -> /store/a",
        "persist lv-z: (none) -> /store/z",
    ]


def test_a_voice_that_is_live_but_not_lasting_is_only_persisted() -> None:
    assert lines(plan(Wanted({"lv-a": OLD}), Actual({"lv-a": OLD}, {}))) == [f"persist lv-a: (none) -> {OLD}"]


def test_a_voice_that_is_lasting_but_not_live_is_only_loaded() -> None:
    assert lines(plan(Wanted({"lv-a": OLD}), Actual({}, {"lv-a": OLD}))) == [f"load lv-a: (none) -> {OLD}"]


def test_a_gone_voice_leaves_the_file_even_when_it_is_not_live() -> None:
    assert lines(plan(Wanted({}, ["lv-a"]), Actual({}, {"lv-a": OLD}))) == [f"drop lv-a: retired {OLD} -> (none)"]


def test_without_an_engine_file_or_with_persist_off_nothing_is_made_lasting() -> None:
    for actual in (Actual({"lv-a": OLD}, None), Actual({"lv-a": OLD}, {})):
        assert lines(plan(Wanted({"lv-a": NEW}, persist=False), actual)) == [f"replace lv-a: {OLD} -> {NEW}"]


def test_a_persisted_voice_nobody_named_is_left_to_engine_file() -> None:
    """engine_file refuses it before, so taking it for a trial here could only do harm."""
    actual = Actual({"lv-a": OLD}, {"lv-a": OLD})
    assert plan(Wanted({}, prune_trials=True), actual) == []
    assert trials(Wanted({}), actual) == {}


def test_trials_are_what_a_restart_would_lose() -> None:
    actual = Actual({"lv-a": OLD, "lv-b": "/b", "lv-c": "/c"}, {"lv-a": OLD})
    assert trials(Wanted({"lv-b": "/b"}), actual) == {"lv-c": "/c"}


@pytest.mark.parametrize(
    ("wanted", "actual", "text"),
    [
        (Wanted({"austen": OLD}), Actual({}), "outside the naming rule"),
        (Wanted({"voices-base": OLD}), Actual({}), "named like the base model"),
        (Wanted({}, ["LV-a"]), Actual({}), "outside the naming rule"),
        (Wanted({"lv-a": OLD}, ["lv-a"]), Actual({}), "lv-a is both in voices and in absent"),
        (Wanted({"lv-a": "store/a"}), Actual({}), "give an absolute one"),
        (Wanted({}, prune_trials=True), Actual({}), "prune_trials needs engine_file"),
        (Wanted({}, ["lv-a"], persist=False), Actual({}, {"lv-a": OLD}), "it is no trial"),
    ],
)
def test_contradictions_are_refused(wanted: Wanted, actual: Actual, text: str) -> None:
    with pytest.raises(VoicesError, match=text):
        plan(wanted, actual)


def test_the_live_set_after_a_plan() -> None:
    wanted = Wanted({"lv-a": NEW, "lv-b": "/b"}, ["lv-c"])
    actual = Actual({"lv-a": OLD, "lv-c": "/c", "lv-t": "/t"}, {})
    assert after(plan(wanted, actual), actual.live) == {"lv-a": NEW, "lv-b": "/b", "lv-t": "/t"}


class FakeSeat:
    """Keeps a live set; ``faults`` maps (verb, name or path) to what happens instead of the good thing."""

    def __init__(self, live: dict[str, str], faults: dict[tuple[str, str], Callable[[], None]] | None = None) -> None:
        self.live = dict(live)
        self.faults = faults or {}
        self.calls: list[tuple[str, ...]] = []

    def load(self, name: str, path: str) -> None:
        self.calls.append(("load", name, path))
        self.faults.get(("load", path), lambda: None)()
        if name in self.live:
            raise SeatError("HTTP 400 already been loaded", 400)
        self.live[name] = path

    def unload(self, name: str) -> None:
        self.calls.append(("unload", name))
        self.faults.get(("unload", name), lambda: None)()
        if name not in self.live:
            raise SeatError("HTTP 404 cannot be found", 404)
        del self.live[name]

    def adapters(self, base_model: str) -> dict[str, str]:
        self.faults.get(("adapters", ""), lambda: None)()
        return dict(self.live)

    def prompt_logprobs(self, model: str, prompt: str) -> tuple[float, ...]:
        self.calls.append(("hear", model))
        self.faults.get(("hear", model), lambda: None)()
        spoken = "silent" not in self.live.get(model, "silent")
        return (-1.0, -2.5 if spoken else -2.0)


def raising(error: Exception) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


class File:
    """The voices of an engine.yaml, without the file."""

    def __init__(self, voices: dict[str, str]) -> None:
        self.voices = dict(voices)

    def change(self, change: Callable[[dict[str, str]], None]) -> None:
        change(self.voices)


def carry_out(seat: FakeSeat, file: File, wanted: Wanted, silent: str = "ignore") -> Outcome:
    actions = plan(wanted, Actual(dict(seat.live), dict(file.voices)))
    return Runner(seat, "voices-base", file.change, silent).run(actions)


def test_a_whole_plan_is_carried_out_and_timed() -> None:
    seat, file = FakeSeat({"lv-a": OLD, "lv-gone": "/g"}), File({"lv-a": OLD, "lv-gone": "/g"})
    outcome = carry_out(seat, file, Wanted({"lv-a": NEW, "lv-b": "/b"}, ["lv-gone"]))
    assert outcome.failed == {}
    assert seat.live == file.voices == {"lv-a": NEW, "lv-b": "/b"}
    assert {name: sorted(steps) for name, steps in outcome.timings.items()} == {
        "lv-a": ["gap_s", "load_s", "unload_s"],
        "lv-b": ["load_s"],
        "lv-gone": ["unload_s"],
    }
    assert seat.calls[0] == ("unload", "lv-gone")


def test_a_load_that_fails_leaves_the_others() -> None:
    seat, file = FakeSeat({}, {("load", "/bad"): raising(SeatError("HTTP 404 No adapter found", 404))}), File({})
    outcome = carry_out(seat, file, Wanted({"lv-a": "/a", "lv-bad": "/bad", "lv-c": "/c"}))
    assert failures(outcome) == [{"voice": "lv-bad", "why": "/bad did not load: HTTP 404 No adapter found"}]
    assert seat.live == file.voices == {"lv-a": "/a", "lv-c": "/c"}


def test_already_loaded_from_the_right_path_is_fine_and_from_another_is_not() -> None:
    for path, failed in (("/a", {}), ("/other", {"lv-a": "/a did not load: HTTP 400 already been loaded"})):
        seat, file = FakeSeat({}), File({})

        def sneak(seat: FakeSeat = seat, path: str = path) -> None:
            seat.live["lv-a"] = path  # someone else loads it between the plan and the load

        seat.faults[("load", "/a")] = sneak
        assert carry_out(seat, file, Wanted({"lv-a": "/a"})).failed == failed
        assert file.voices == ({} if failed else {"lv-a": "/a"})


def test_a_load_whose_answer_is_lost_counts_when_it_took_effect() -> None:
    seat, file = FakeSeat({}), File({})

    def lost() -> None:
        seat.live["lv-a"] = "/a"
        raise SeatError("no answer within 60 s (timeout_s)")

    seat.faults[("load", "/a")] = lost
    assert carry_out(seat, file, Wanted({"lv-a": "/a"})).failed == {}
    assert file.voices == {"lv-a": "/a"}


@pytest.mark.parametrize("status", [404, 400])
def test_unloading_what_is_gone_is_fine(status: int) -> None:
    seat = FakeSeat({"lv-a": OLD})

    def gone() -> None:
        seat.live.pop("lv-a")
        raise SeatError(f"HTTP {status} cannot be found", status)

    seat.faults[("unload", "lv-a")] = gone
    assert carry_out(seat, File({}), Wanted({}, ["lv-a"])).failed == {}


def test_a_404_that_unloads_nothing_is_a_failure() -> None:
    """An engine without runtime loading answers 404 to the path itself."""
    seat = FakeSeat({"lv-a": OLD}, {("unload", "lv-a"): raising(SeatError("HTTP 404 Not Found", 404))})
    assert carry_out(seat, File({}), Wanted({}, ["lv-a"])).failed == {"lv-a": "HTTP 404 Not Found"}


def test_a_replacement_that_fails_brings_the_old_adapter_back() -> None:
    seat, file = (
        FakeSeat({"lv-a": OLD}, {("load", NEW): raising(SeatError("HTTP 400 bad rank", 400))}),
        File({"lv-a": OLD}),
    )
    outcome = carry_out(seat, file, Wanted({"lv-a": NEW, "lv-b": "/b"}))
    assert outcome.failed == {
        "lv-a": f"{NEW} did not load: HTTP 400 bad rank; the previous adapter {OLD} was loaded again and is served"
    }
    assert seat.live == file.voices == {"lv-a": OLD, "lv-b": "/b"}


def test_a_replacement_that_took_effect_late_is_found_when_the_old_one_is_loaded_back() -> None:
    seat, file = FakeSeat({"lv-a": OLD}), File({"lv-a": OLD})

    def late() -> None:
        seat.live["lv-a"] = NEW

    seat.faults[("load", NEW)] = raising(SeatError("no answer within 60 s (timeout_s)"))
    seat.faults[("load", OLD)] = late
    assert carry_out(seat, file, Wanted({"lv-a": NEW})).failed == {}
    assert seat.live == file.voices == {"lv-a": NEW}


def test_an_old_adapter_that_does_not_come_back_leaves_the_file_so_that_the_seat_still_starts() -> None:
    refusal = raising(SeatError("HTTP 404 No adapter found", 404))
    seat, file = FakeSeat({"lv-a": OLD}, {("load", NEW): refusal, ("load", OLD): refusal}), File({"lv-a": OLD})
    why = carry_out(seat, file, Wanted({"lv-a": NEW})).failed["lv-a"]
    assert "did not load again either" in why and "taken out of engine.yaml" in why
    assert seat.live == file.voices == {}


def test_an_engine_that_dies_in_a_replacement_keeps_the_old_path_in_the_file() -> None:
    down = raising(SeatUnreachable("nothing answers there"))
    seat, file = FakeSeat({"lv-a": OLD}, {("load", NEW): down, ("load", OLD): down}), File({"lv-a": OLD})
    outcome = carry_out(seat, file, Wanted({"lv-a": NEW, "lv-b": "/b"}))
    assert "nothing answers there" in outcome.failed["lv-a"]
    assert outcome.failed["lv-b"].startswith("not tried: ")
    assert file.voices == {"lv-a": OLD}


def test_a_key_that_stops_working_stops_the_run() -> None:
    seat = FakeSeat({}, {("load", "/a"): raising(SeatUnauthorized("refuses the key", 401))})
    outcome = carry_out(seat, File({}), Wanted({"lv-a": "/a", "lv-b": "/b"}))
    assert outcome.failed == {"lv-a": "refuses the key", "lv-b": "not tried: refuses the key"}
    assert ("load", "lv-b", "/b") not in seat.calls


def test_a_file_that_cannot_be_written_fails_its_voice_and_keeps_it_live_until_it_is_out_of_the_file() -> None:
    seat = FakeSeat({"lv-gone": "/g"})

    def full(change: Callable[[dict[str, str]], None]) -> None:
        raise OSError(28, "No space left on device")

    actions = plan(Wanted({}, ["lv-gone"]), Actual(dict(seat.live), {"lv-gone": "/g"}))
    outcome = Runner(seat, "voices-base", full).run(actions)
    assert "No space left" in outcome.failed["lv-gone"]
    assert seat.calls == [], "removed from the file first, unloaded second"


def test_the_run_is_proven_against_the_seat() -> None:
    seat = FakeSeat({})
    seat.load = lambda name, path: None  # type: ignore[method-assign] # says yes and does nothing
    outcome = carry_out(seat, File({}), Wanted({"lv-a": "/a"}))
    assert outcome.failed == {"lv-a": "after the run it is not live and should be /a: run again"}
    seat = FakeSeat({"lv-a": "/a"})
    seat.unload = lambda name: None  # type: ignore[method-assign]
    assert carry_out(seat, File({}), Wanted({}, ["lv-a"])).failed == {
        "lv-a": "after the run it is /a and should be not live: run again"
    }


def test_a_persisted_voice_is_proven_live_too() -> None:
    seat, file = FakeSeat({"lv-a": "/a"}), File({})
    actions = plan(Wanted({"lv-a": "/a"}), Actual(dict(seat.live), {}))
    seat.live.clear()
    outcome = Runner(seat, "voices-base", file.change).run(actions)
    assert outcome.failed == {"lv-a": "after the run it is not live and should be /a: run again"}


# Rehearsals: an adapter is heard before it is served.

REHEARSED = f"{REHEARSAL_PREFIX}lv-a"
SILENT = "/silent"


def test_an_adapter_is_heard_under_a_private_name_before_it_is_served() -> None:
    seat, file = FakeSeat({"lv-a": OLD}), File({"lv-a": OLD})
    outcome = carry_out(seat, file, Wanted({"lv-a": NEW}), "fail")
    assert outcome.failed == {}
    assert outcome.speech["lv-a"]["verdict"] == "speaks"
    assert seat.live == file.voices == {"lv-a": NEW}
    verbs = [call[:2] for call in seat.calls]
    assert verbs.index(("unload", REHEARSED)) < verbs.index(("unload", "lv-a")), "the gap holds no rehearsal"
    assert ("hear", "lv-a") not in verbs
    assert outcome.timings["lv-a"]["gap_s"] >= 0 and "rehearsal_s" in outcome.timings["lv-a"]


@pytest.mark.parametrize("live", [{}, {"lv-a": OLD}])
def test_a_silent_adapter_is_not_served_and_the_old_one_stays(live: dict[str, str]) -> None:
    seat, file = FakeSeat(live), File(live)
    outcome = carry_out(seat, file, Wanted({"lv-a": SILENT, "lv-b": "/b"}), "fail")
    assert "loaded but silent" in outcome.failed["lv-a"]
    assert (f"the previous adapter {OLD} was not touched" in outcome.failed["lv-a"]) is bool(live)
    assert outcome.speech["lv-a"] == {"difference": 0.0, "floor": 0.0, "rounds": 1, "verdict": "silent"}
    assert seat.live == file.voices == {**live, "lv-b": "/b"}
    assert ("unload", "lv-a") not in seat.calls


def test_a_silent_adapter_is_served_with_a_warning_when_the_inventory_says_so() -> None:
    seat, file = FakeSeat({}), File({})
    outcome = carry_out(seat, file, Wanted({"lv-a": SILENT}), "warn")
    assert outcome.failed == {} and seat.live == {"lv-a": SILENT}
    assert len(outcome.warnings) == 1 and "loaded but silent" in outcome.warnings[0]


def test_what_a_rehearsal_leaves_when_it_is_cut_off_is_no_trial_and_goes_first() -> None:
    actual = Actual({REHEARSED: "/x", "lv-t": "/t"}, {})
    assert trials(Wanted({}), actual) == {"lv-t": "/t"}
    for persist in (True, False):
        actions = plan(Wanted({"lv-a": "/a"}, persist=persist), actual)
        assert (actions[0].do, actions[0].what) == ("unload", REHEARSED)
        assert after(actions, actual.live) == {"lv-a": "/a", "lv-t": "/t"}


def test_a_rehearsal_that_breaks_unloads_itself_and_leaves_what_is_served() -> None:
    broken = {("hear", REHEARSED): raising(SeatError("HTTP 500 NaN", 500))}
    seat, file = FakeSeat({"lv-a": OLD}, broken), File({"lv-a": OLD})
    outcome = carry_out(seat, file, Wanted({"lv-a": NEW}), "fail")
    assert outcome.failed["lv-a"].startswith("it cannot be compared with the base (")
    assert outcome.failed["lv-a"].endswith(f"HTTP 500 NaN; the previous adapter {OLD} was not touched and is served")
    assert seat.live == {"lv-a": OLD}


def test_an_adapter_that_does_not_load_leaves_no_gap_at_all() -> None:
    seat = FakeSeat({"lv-a": OLD}, {("load", NEW): raising(SeatError("HTTP 400 bad rank", 400))})
    outcome = carry_out(seat, File({"lv-a": OLD}), Wanted({"lv-a": NEW}), "fail")
    assert outcome.failed["lv-a"].startswith(f"{NEW} did not load: HTTP 400 bad rank; the previous adapter")
    assert ("unload", "lv-a") not in seat.calls


def test_an_engine_that_dies_in_a_rehearsal_stops_the_run() -> None:
    seat = FakeSeat({}, {("hear", REHEARSED): raising(SeatUnreachable("nothing answers there"))})
    outcome = carry_out(seat, File({}), Wanted({"lv-a": "/a", "lv-b": "/b"}), "fail")
    assert outcome.failed == {"lv-a": "nothing answers there", "lv-b": "not tried: nothing answers there"}


# The module itself, where no seat answers.


@pytest.fixture
def nowhere() -> str:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def write_engine(directory: Path, voices: dict[str, str]) -> Path:
    path = directory / "engine.yaml"
    path.write_text(render({"model": "/carrier"}, voices))
    return path


def adapter(directory: Path) -> str:
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    return str(directory)


def test_check_mode_before_the_first_run_plans_every_load(nowhere: str, tmp_path: Path) -> None:
    args = {"base_url": nowhere, "voices": {"lv-a": OLD}, "engine_file": str(tmp_path / "engine.yaml")}
    result = run_module("vllm_lora_adapters", args, check=True)
    assert [(a["do"], a["what"], a["after"]) for a in result["actions"]] == [
        ("load", "lv-a", OLD),
        ("persist", "lv-a", OLD),
    ]
    assert result["changed"] and result["live"] == {"lv-a": OLD}
    assert list(tmp_path.iterdir()) == []


def test_check_mode_of_a_seat_that_is_down_starts_from_what_would_come_back(nowhere: str, tmp_path: Path) -> None:
    kept = adapter(tmp_path / "store/lv-kept")
    path = write_engine(tmp_path, {"lv-kept": kept, "lv-lost": str(tmp_path / "store/lv-lost")})
    voices = {"lv-kept": kept, "lv-lost": str(tmp_path / "store/lv-lost")}
    args = {"base_url": nowhere, "voices": voices, "engine_file": str(path)}
    result = run_module("vllm_lora_adapters", args, check=True)
    assert [(a["do"], a["what"]) for a in result["actions"]] == [("load", "lv-lost"), ("persist", "lv-lost")]


def test_check_mode_of_an_engine_that_starts_asks_nobody(nowhere: str, tmp_path: Path) -> None:
    path = write_engine(tmp_path, {"lv-a": OLD, "lv-gone": "/g"})
    args = {
        "base_url": nowhere,
        "voices": {"lv-a": NEW},
        "absent": ["lv-gone"],
        "engine_file": str(path),
        "engine_starts": True,
        "assume_live": {"lv-a": OLD},  # engine_file has planned to drop lv-gone
    }
    result = run_module("vllm_lora_adapters", args, check=True)
    assert [(a["do"], a["what"]) for a in result["actions"]] == [("replace", "lv-a"), ("persist", "lv-a")]
    assert result["trials"] == {}


def test_a_real_run_without_a_seat_is_an_error_that_names_it(nowhere: str, tmp_path: Path) -> None:
    path = write_engine(tmp_path, {})
    args = {"base_url": nowhere, "voices": {"lv-a": OLD}, "engine_file": str(path), "engine_starts": True}
    result = run_module("vllm_lora_adapters", args)
    assert result["failed"] and nowhere in result["msg"] and "is the seat up?" in result["msg"]
    result = run_module("vllm_lora_adapters", {**args, "engine_file": str(tmp_path / "none.yaml")})
    assert result["failed"] and "none.yaml is not there" in result["msg"]


def test_change_voices_touches_voices_only(tmp_path: Path) -> None:
    path = write_engine(tmp_path, {"lv-b": "/b"})
    path.chmod(0o644)
    directory = EngineDirectory(str(path))
    inode = path.stat().st_ino
    directory.change_voices(lambda voices: None)
    assert path.stat().st_ino == inode, "nothing changed, nothing written"

    def add(voices: dict[str, str]) -> None:
        voices["lv-a"] = "/a,b"

    directory.change_voices(add)
    assert directory.read_engine_file() == ({"model": "/carrier"}, {"lv-a": "/a,b", "lv-b": "/b"})
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(VoicesError, match="engine_file writes it first"):
        EngineDirectory(str(tmp_path / "none.yaml")).change_voices(add)


def test_a_result_is_plain_data(nowhere: str) -> None:
    result = run_module("vllm_lora_adapters", {"base_url": nowhere, "voices": {"lv-a": OLD}}, check=True)
    assert json.loads(json.dumps(result["diff"])) == [{"prepared": f"load lv-a: (none) -> {OLD}\n"}]
