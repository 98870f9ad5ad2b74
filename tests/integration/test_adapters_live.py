"""vllm_lora_adapters and seat_verify against a real vLLM CPU engine."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.names import BASE_MODEL
from safetensors.numpy import load_file, save_file

from tests.support.live_engine import LiveEngine
from tests.support.run_module import run_module

VOICES = ("lv-austen", "lv-bronte", "lv-homer")
LONG_PROMPT = " ".join(f"On day {day} the wind turned and the ship went on past the headland." for day in range(1, 24))
ANSWER_TOKENS = 48


def three(engine: LiveEngine) -> dict[str, str]:
    return {name: engine.adapter(name, "v1") for name in VOICES}


def did(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(action["do"], action["what"]) for action in result["actions"]]


def state(engine: LiveEngine) -> tuple[dict[str, str], str, int]:
    """What a check must leave alone: the live set, and the bytes and inode of engine.yaml."""
    path = Path(engine.paths["engine_file"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return engine.api().adapters(BASE_MODEL), digest, path.stat().st_ino


def checked_then_run(engine: LiveEngine, voices: dict[str, str], **others: Any) -> dict[str, Any]:
    """Check, prove that nothing moved, run, prove that the plan was the same and that a second run has none."""
    before = state(engine)
    check = engine.sync(voices, check=True, **others)
    assert state(engine) == before
    real = engine.sync(voices, **others)
    assert not check.get("failed") and not real.get("failed"), (check, real)
    for key in ("actions", "diff", "live", "changed"):
        assert check[key] == real[key], key
    again = engine.sync(voices, **others)
    assert (again["changed"], again["actions"], again["diff"]) == (False, [], [])
    assert engine.api().adapters(BASE_MODEL) == real["live"]
    os.kill(engine.pid, 0)
    return real


def verify(engine: LiveEngine, models: list[str], **others: Any) -> dict[str, Any]:
    args = {"base_url": engine.base_url, "api_key_file": engine.paths["api_key_file"], "models": models}
    return run_module("seat_verify", {**args, **others})


def test_voices_become_live_and_lasting_without_a_restart(engine: LiveEngine) -> None:
    voices = three(engine)
    result = checked_then_run(engine, voices)
    assert did(result) == [(do, name) for name in VOICES for do in ("load", "persist")]
    assert result["live"] == engine.persisted() == voices
    assert all(result["timings"][name]["load_s"] > 0 for name in VOICES)
    answers = verify(engine, [BASE_MODEL, *VOICES])
    assert not answers.get("failed"), answers
    assert len(set(answers["answers"].values())) == 4, answers["answers"]


def test_a_retired_voice_is_taken_from_the_file_and_unloaded(engine: LiveEngine) -> None:
    voices = three(engine)
    engine.sync(voices)
    del voices["lv-homer"]
    result = checked_then_run(engine, voices, absent=["lv-homer"])
    assert did(result) == [("drop", "lv-homer"), ("unload", "lv-homer")]
    assert result["live"] == engine.persisted() == voices
    silent = verify(engine, ["lv-austen", "lv-homer"])
    assert silent["failed"] and "lv-homer: not served" in silent["msg"] and "lv-austen:" not in silent["msg"]


def test_a_lost_file_entry_is_written_again_and_nothing_is_loaded(engine: LiveEngine) -> None:
    path = engine.adapter("lv-austen", "v1")
    engine.api().load("lv-austen", path)
    result = checked_then_run(engine, {"lv-austen": path})
    assert did(result) == [("persist", "lv-austen")]
    assert engine.persisted() == {"lv-austen": path}


def test_changed_weights_come_from_a_new_path_and_answer_like_the_same_weights_loaded_fresh(engine: LiveEngine) -> None:
    """The stale prefix cache test: one long prompt before and after a replacement."""
    api = engine.api()
    old, new = engine.adapter("lv-austen", "v1"), engine.adapter("lv-austen", "v2")
    fresh = engine.adapter("lv-fresh-austen", "v2", weights_of="lv-austen")
    engine.sync({"lv-austen": old})
    before = api.complete("lv-austen", LONG_PROMPT, ANSWER_TOKENS)
    cached = engine.cached_tokens()
    assert api.complete("lv-austen", LONG_PROMPT, ANSWER_TOKENS) == before
    assert engine.cached_tokens() - cached > 200, "the prompt is not cached, so this test would see no stale cache"

    result = checked_then_run(engine, {"lv-austen": new})
    assert did(result) == [("replace", "lv-austen"), ("persist", "lv-austen")]
    assert engine.persisted() == {"lv-austen": new}
    assert 0 < result["timings"]["lv-austen"]["gap_s"] < 30
    after = api.complete("lv-austen", LONG_PROMPT, ANSWER_TOKENS)
    api.load("lv-fresh-austen", fresh)
    assert after == api.complete("lv-fresh-austen", LONG_PROMPT, ANSWER_TOKENS)
    assert after != before


def test_weights_overwritten_in_place_answer_from_the_stale_cache(engine: LiveEngine) -> None:
    """Why the store has one path for one content, and the proof that the comparison above can fail."""
    api = engine.api()
    place = engine.root / "in-place"
    shutil.copytree(engine.adapter("lv-stale", "v1"), place)
    api.load("lv-stale", str(place))
    before = api.complete("lv-stale", LONG_PROMPT, ANSWER_TOKENS)
    shutil.copytree(engine.adapter("lv-stale", "v2"), place, dirs_exist_ok=True)
    api.unload("lv-stale")
    api.load("lv-stale", str(place))
    stale = api.complete("lv-stale", LONG_PROMPT, ANSWER_TOKENS)
    api.load("lv-fresh-stale", engine.adapter("lv-fresh-stale", "v2", weights_of="lv-stale"))
    fresh = api.complete("lv-fresh-stale", LONG_PROMPT, ANSWER_TOKENS)
    again = api.complete("lv-fresh-stale", LONG_PROMPT, ANSWER_TOKENS)
    shutil.rmtree(place)
    assert fresh != before
    assert again == fresh, "an answer from a right cache differs too, so the next line would show nothing"
    assert stale != fresh


def test_a_voice_that_does_not_load_leaves_the_others_and_is_named(engine: LiveEngine) -> None:
    good = engine.adapter("lv-austen", "v1")
    missing = str(engine.root / "store/lv-homer@missing")
    result = engine.sync({"lv-austen": good, "lv-homer": missing})
    assert (
        result["failed"]
        and f"lv-homer: {missing} did not load: HTTP 404" in result["msg"]
        and "lv-austen:" not in result["msg"]
    )
    assert [item["voice"] for item in result["failed_voices"]] == ["lv-homer"]
    assert result["live"] == engine.persisted() == {"lv-austen": good}
    assert did(result) == [(do, name) for name in ("lv-austen", "lv-homer") for do in ("load", "persist")]


def test_a_replacement_that_does_not_load_leaves_the_old_voice_as_it_is(engine: LiveEngine) -> None:
    old = engine.adapter("lv-austen", "v1")
    engine.sync({"lv-austen": old})
    answer = engine.api().chat("lv-austen", "Good morning.", 16)
    result = engine.sync({"lv-austen": str(engine.root / "store/lv-austen@missing")})
    assert result["failed"] and f"the previous adapter {old} was not touched and is served" in result["msg"]
    assert result["live"] == engine.persisted() == {"lv-austen": old}
    assert engine.api().chat("lv-austen", "Good morning.", 16) == answer


def silent_adapter(engine: LiveEngine) -> str:
    """An adapter that vLLM loads, lists and answers 200 for, and that does nothing: no tensor fits a module's name."""
    directory = Path(engine.adapter("lv-silent", "v1"))
    weights = directory / "adapter_model.safetensors"
    named = {
        name.replace("model.model.layers", "model.model.language_model.layers"): tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(named, weights, metadata={"format": "pt"})
    return str(directory)


def test_a_silent_adapter_is_not_served_and_the_voice_before_it_stays(engine: LiveEngine) -> None:
    old, silent = engine.adapter("lv-austen", "v1"), silent_adapter(engine)
    spoken = engine.sync({"lv-austen": old})["speech"]["lv-austen"]
    assert spoken["verdict"] == "speaks" and spoken["difference"] > 0.1 and spoken["floor"] == 0
    result = engine.sync({"lv-austen": silent, "lv-bronte": engine.adapter("lv-bronte", "v1")})
    assert result["failed"] and "lv-austen: loaded but silent" in result["msg"]
    assert f"the previous adapter {old} was not touched" in result["msg"] and "lv-bronte:" not in result["msg"]
    assert result["speech"]["lv-austen"] == {"difference": 0.0, "floor": 0.0, "rounds": 1, "verdict": "silent"}
    assert result["live"] == engine.persisted() == {"lv-austen": old, "lv-bronte": engine.adapter("lv-bronte", "v1")}

    warned = engine.sync({"lv-austen": silent}, silent="warn")
    assert not warned.get("failed") and any("loaded but silent" in str(one) for one in warned["warnings"])
    verified = verify(engine, [BASE_MODEL, "lv-austen", "lv-bronte"])
    assert verified["failed"] and set(verified["failed_models"]) == {"lv-austen"}
    assert verified["speech"]["lv-bronte"]["verdict"] == "speaks"
    assert not verify(engine, [BASE_MODEL, "lv-austen"], silent="ignore").get("failed")


def test_what_a_cut_off_rehearsal_left_is_unloaded_first(engine: LiveEngine) -> None:
    path = engine.adapter("lv-austen", "v1")
    engine.api().load("voices-rehearsal-lv-austen", path)
    result = checked_then_run(engine, {"lv-austen": path})
    assert did(result)[0] == ("unload", "voices-rehearsal-lv-austen") and result["live"] == {"lv-austen": path}


def test_trials_are_reported_and_left_until_they_are_pruned(engine: LiveEngine) -> None:
    voice, trial = engine.adapter("lv-austen", "v1"), engine.adapter("lv-homer", "v1")
    loaded = checked_then_run(engine, {"lv-homer": trial}, persist=False)
    assert did(loaded) == [("load", "lv-homer")]
    assert loaded["trials"] == {"lv-homer": trial} and engine.persisted() == {}
    kept = checked_then_run(engine, {"lv-austen": voice})
    assert kept["trials"] == {"lv-homer": trial}
    assert any("trial lv-homer is served from" in str(warning) for warning in kept["warnings"])
    pruned = checked_then_run(engine, {"lv-austen": voice}, prune_trials=True)
    assert did(pruned) == [("prune", "lv-homer")]
    assert (pruned["live"], pruned["trials"]) == ({"lv-austen": voice}, {})


def test_a_wrong_key_names_its_file_and_is_not_shown(engine: LiveEngine, tmp_path: Path) -> None:
    key_file = tmp_path / "api_key"
    wrong = "not-the-key-of-this-seat-at-all"
    key_file.write_text(f"{wrong}\n")
    for check in (True, False):
        result = engine.sync(three(engine), check=check, api_key_file=str(key_file))
        assert result["failed"] and str(key_file) in result["msg"] and "401" in result["msg"]
        assert wrong not in str(result) and engine.key not in str(result)


def test_a_server_without_the_base_model_is_not_touched(engine: LiveEngine) -> None:
    result = engine.sync(three(engine), base_model="another-base")
    assert result["failed"] and "no another-base" in result["msg"] and engine.persisted() == {}
    assert engine.api().adapters(BASE_MODEL) == {}


def test_the_engine_refuses_what_the_unit_tests_replay(engine: LiveEngine) -> None:
    """The shapes of today's errors, so that a new engine version that changes them is seen here."""
    from ansible.module_utils.voices.seat_api import SeatError

    api, path = engine.api(), engine.adapter("lv-austen", "v1")
    api.load("lv-austen", path)
    cases = [
        (lambda: api.load("lv-austen", path), 400, "already been loaded"),
        (lambda: api.load("lv-x", "/nowhere/at-all"), 404, "No adapter found"),
        (lambda: api.load(BASE_MODEL, path), 400, "conflicts with a served base model"),
        (lambda: api.unload("lv-unknown"), 404, "cannot be found"),
    ]
    for call, status, text in cases:
        with pytest.raises(SeatError, match=text) as caught:
            call()
        assert caught.value.status == status
