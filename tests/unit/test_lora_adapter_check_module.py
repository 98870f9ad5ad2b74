"""The module lora_adapter_check, as Ansible calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.adapter_dirs import tree
from tests.support.bad_adapters import BAD, DOUBTFUL, GOOD
from tests.support.run_module import run_module
from tests.support.tiny_carrier import write_carrier


@pytest.fixture
def carrier(tmp_path: Path) -> str:
    write_carrier(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def adapters(tmp_path: Path, **named: str) -> dict[str, dict[str, Any]]:
    """Voices {name: case}, written below ``tmp_path``."""
    cases = {case.name: case for case in (*BAD, *DOUBTFUL, *GOOD)}
    return {f"lv-{voice}": {"source": str(cases[name].write(tmp_path / "in" / voice))} for voice, name in named.items()}


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()


def test_good_and_bad_voices_in_one_message_and_the_same_in_check_mode(tmp_path: Path, carrier: str) -> None:
    given = adapters(tmp_path, good="as-peft-writes-it", other="language-model-prefix", cut="truncated")
    args = {"adapters": given, "carrier": carrier, "max_lora_rank": 8}
    before = tree(tmp_path)
    check, real = run_module("lora_adapter_check", args, check=True), run_module("lora_adapter_check", args)
    assert check == real and tree(tmp_path) == before
    assert (real["failed"], real["changed"], real["actions"]) == (True, False, [])
    assert real["failed_voices"] == ["lv-cut", "lv-other"]
    assert real["msg"].startswith("2 of 3 adapters would not speak as they should:\n- voice lv-cut: truncated: ")
    assert "the carrier's module is model.layers.0.mlp.down_proj" in real["msg"]
    assert real["findings"]["lv-good"] == []
    assert real["checked"]["lv-good"] == {
        "rank": 8,
        "tensors": 56,
        "modules": 28,
        "bytes": 605613,
        "weights_read": True,
    }
    assert {"code", "severity", "tensor", "message", "fix"} == set(real["findings"]["lv-cut"][0])


def test_not_strict_reports_and_goes_on(tmp_path: Path, carrier: str) -> None:
    args = {"adapters": adapters(tmp_path, cut="truncated"), "carrier": carrier, "strict": False}
    result = run_module("lora_adapter_check", args)
    assert (result.get("failed"), result["failed_voices"]) == (None, ["lv-cut"])
    assert len(result["warnings"]) == 1
    assert "voice lv-cut: truncated: adapter_model.safetensors is truncated" in str(result["warnings"])


def test_allow_is_per_voice(tmp_path: Path, carrier: str) -> None:
    given = adapters(tmp_path, a="alpha-negative", b="alpha-negative")
    given["lv-a"]["allow"] = ["alpha-negative"]
    result = run_module("lora_adapter_check", {"adapters": given, "carrier": carrier})
    assert result["failed_voices"] == ["lv-b"]
    assert len(result["warnings"]) == 1
    assert "voice lv-a: alpha-negative: lora_alpha is -16 (allowed)" in str(result["warnings"])


def test_without_a_carrier_or_weights_it_says_what_it_did_not_look_at(tmp_path: Path) -> None:
    args = {"adapters": adapters(tmp_path, good="as-peft-writes-it", zero="zero-b"), "read_weights": False}
    result = run_module("lora_adapter_check", args)
    assert result.get("failed") is None
    assert {one["code"] for one in result["findings"]["lv-zero"]} == {"shapes-not-checked"}
    assert result["checked"]["lv-zero"]["weights_read"] is False


def test_the_engines_word_on_embeddings_goes_before_the_familys(tmp_path: Path, carrier: str) -> None:
    args = {"adapters": adapters(tmp_path, head="lm-head"), "carrier": carrier}
    assert run_module("lora_adapter_check", args).get("failed") is None
    result = run_module("lora_adapter_check", {**args, "support": {"embedding_modules": {}, "packed_modules": {}}})
    assert [one["code"] for one in result["findings"]["lv-head"]] == ["embedding-not-applied"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"adapters": {"austen": {"source": "/x"}}}, "voice 'austen' is outside the naming rule"),
        ({"adapters": {"lv-a": {"source": "x"}}}, "source is 'x'; give the adapter's directory as an absolute path"),
        ({"adapters": {"lv-a": {"source": "/x", "alow": []}}}, "unknown key alow; did you mean 'allow'?"),
        ({"adapters": {"lv-a": "/x"}}, "not a map with source"),
        ({"adapters": {"lv-a": {"source": "/x", "allow": ["pickle"]}}}, "pickle cannot be allowed"),
        ({"adapters": {"lv-a": {"source": "/x", "allow": "bias"}}}, "not a list of codes"),
        ({"adapters": {}, "max_lora_rank": -1}, "max_lora_rank is -1"),
        ({"adapters": {}, "carrier": "/nowhere"}, "point carrier at the directory"),
        ({"adapters": {}, "support": {"packed_modules": "x"}}, "give what vllm_lora_support returned"),
    ],
)
def test_wrong_options(args: dict[str, Any], words: str) -> None:
    result = run_module("lora_adapter_check", args)
    assert result["failed"] and words in result["msg"]
