"""The module vllm_lora_support, called as Ansible calls it, on small engines."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from ansible.module_utils.voices import lora_support_client

from tests.support.lora_engines import MODELS, make_carrier, make_engine
from tests.support.observe import tree
from tests.support.run_module import run_module


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return make_engine(tmp_path / "engine")


@pytest.fixture
def carrier(tmp_path: Path) -> Path:
    return make_carrier(tmp_path / "carrier", "PlainForCausalLM")


def call(engine: Path, carrier: Path, *, check: bool = False, **more: Any) -> dict[str, Any]:
    return run_module("vllm_lora_support", {"directory": str(engine), "carrier": str(carrier), **more}, check=check)


def test_a_supported_carrier(engine: Path, carrier: Path) -> None:
    result = call(engine, carrier, flags=["dtype", "lora-modules"])
    assert not result.get("failed")
    assert (result["supported"], result["verdict"], result["class"]) == (True, "yes", "PlainForCausalLM")
    assert result["packed_modules"] == {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    assert result["embedding_modules"] == {"embed_tokens": "input_embeddings"}
    assert (result["changed"], result["actions"], result["unknown_flags"], result["cached"]) == (False, [], [], False)
    assert result["message"] == (
        f"vLLM 0.32.0 ({engine}) takes LoRA on PlainForCausalLM: PlainForCausalLM derives from SupportsLoRA "
        f"({MODELS}/plain.py:4)"
    )


def test_its_answer_is_what_the_adapter_check_takes(engine: Path, carrier: Path, tmp_path: Path) -> None:
    result = call(engine, carrier)
    support = {key: result[key] for key in ("packed_modules", "embedding_modules")}
    none = run_module("lora_adapter_check", {"adapters": {}, "carrier": str(carrier), "support": support})
    assert "support" not in none.get("msg", "")
    assert not none.get("failed"), none


def test_an_unsupported_carrier_fails_or_is_reported(engine: Path, tmp_path: Path) -> None:
    deaf = make_carrier(tmp_path / "deaf", "DeafForCausalLM")
    refused = call(engine, deaf)
    assert refused["failed"]
    assert "takes no LoRA on DeafForCausalLM" in refused["msg"]
    assert "choose another carrier" in refused["msg"]
    assert refused["verdict"] == "no"
    reported = call(engine, deaf, strict=False)
    assert not reported.get("failed")
    assert reported["supported"] is False
    assert "takes no LoRA on DeafForCausalLM" in str(reported["warnings"])


def test_unknown_flags_fail_with_the_nearest(engine: Path, carrier: Path) -> None:
    refused = call(engine, carrier, flags=["kv-cache-memory", "dtype", "enforce-eagre"])
    assert refused["failed"]
    assert refused["supported"]
    assert [one["flag"] for one in refused["unknown_flags"]] == ["enforce-eagre", "kv-cache-memory"]
    assert "flags: enforce-eagre is no option of this engine; enforce-eager is the nearest" in refused["msg"]
    assert not call(engine, carrier, flags=["kv-cache-memory"], strict=False).get("failed")


def test_an_open_verdict_says_what_to_do(engine: Path, tmp_path: Path) -> None:
    refused = call(engine, make_carrier(tmp_path / "gone", "GoneModel"))
    assert refused["failed"]
    assert "cannot be read from its source" in refused["msg"]
    assert "set strict: false if it does" in refused["msg"]


def test_the_platform_can_be_said(tmp_path: Path, carrier: Path) -> None:
    text = """
        from .interfaces import SupportsLoRA
        from vllm.platforms import current_platform
        if current_platform.is_rocm():
            class PlainForCausalLM(SupportsLoRA): ...
        else:
            class PlainForCausalLM: ...
    """
    root = make_engine(tmp_path / "engine", {f"{MODELS}/plain.py": text})
    assert call(root, carrier, strict=False)["supported"] is False
    assert call(root, carrier, platform="rocm")["supported"] is True


# ------------------------------------------------------------------------------------------------------------ the cache


def test_an_answer_is_kept_and_used_again(engine: Path, carrier: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache/inner"
    first = call(engine, carrier, cache=str(cache), flags=["dtype"])
    with patch.object(lora_support_client, "judge", side_effect=AssertionError("asked again")):
        second = call(engine, carrier, cache=str(cache), flags=["dtype"])
    assert (first.pop("cached"), second.pop("cached")) == (False, True)
    assert first == second
    files = list(cache.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_check_mode_answers_the_same_and_writes_nothing(engine: Path, carrier: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    checked = call(engine, carrier, cache=str(tmp_path / "cache"), check=True)
    assert tree(tmp_path) == before
    assert checked == call(engine, carrier, cache=str(tmp_path / "cache"))
    assert call(engine, carrier, cache=str(tmp_path / "cache"), check=True)["cached"]


EDITS = {
    "the class": (f"{MODELS}/plain.py", "class PlainForCausalLM: ...\n"),
    "the registry": (f"{MODELS}/registry.py", "_VLLM_MODELS = {'PlainForCausalLM': ('deaf', 'DeafForCausalLM')}\n"),
    "the interface": (f"{MODELS}/interfaces.py", "class SupportsLoRA: ...\nclass SupportsPP: ...\n"),
    "the version": ("vllm/_version.py", "__version__ = '0.33.0'\n"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_engine_is_asked_again(engine: Path, carrier: Path, tmp_path: Path, what: str) -> None:
    path, text = EDITS[what]
    given: dict[str, Any] = {"cache": str(tmp_path / "cache"), "strict": False}
    assert not call(engine, carrier, **given)["cached"]
    assert call(engine, carrier, **given)["cached"]
    (engine / path).write_text(text)
    again = call(engine, carrier, **given)
    assert not again["cached"]
    assert again["supported"] is (what in ("the version", "the interface"))
    assert again["engine_version"] == ("0.33.0" if what == "the version" else "0.32.0")
    assert call(engine, carrier, **given)["cached"]


def test_a_file_that_appears_where_none_was_is_noticed(engine: Path, carrier: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"cache": str(tmp_path / "cache"), "strict": False}
    place = "from .nowhere import PlainForCausalLM\n"
    (engine / f"{MODELS}/plain.py").write_text(place)
    assert call(engine, carrier, **given)["verdict"] == "unknown"
    (engine / f"{MODELS}/nowhere.py").write_text(
        "from .interfaces import SupportsLoRA\nclass PlainForCausalLM(SupportsLoRA): ...\n"
    )
    assert call(engine, carrier, **given)["verdict"] == "yes"


def test_another_carrier_and_other_flags_are_other_questions(engine: Path, carrier: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    call(engine, carrier, cache=cache, flags=["dtype"])
    assert not call(engine, carrier, cache=cache, flags=["api-key"])["cached"]
    make_carrier(carrier, "PlainForCausalLM", num_experts=8)
    assert not call(engine, carrier, cache=cache)["cached"]
    make_carrier(carrier, "PlainForCausalLM", num_experts=8, hidden_size=4096)
    assert call(engine, carrier, cache=cache)["cached"], "a size decides nothing"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"null", b"[]", b'{"asked": {}}', b"\xff\xfe", b'{"asked": {}, "files": {"a": 1}, "answer": {}}'],
)
def test_a_damaged_entry_is_made_again(engine: Path, carrier: Path, tmp_path: Path, damage: bytes) -> None:
    cache = tmp_path / "cache"
    whole = call(engine, carrier, cache=str(cache))
    (entry,) = cache.iterdir()
    good = entry.read_bytes()
    entry.write_bytes(damage)
    assert call(engine, carrier, cache=str(cache)) == whole
    assert entry.read_bytes() == good


def test_an_entry_that_was_tampered_with_is_not_taken_for_another_question(
    engine: Path, carrier: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    call(engine, carrier, cache=str(cache))
    (entry,) = cache.iterdir()
    kept = json.loads(entry.read_text())
    kept["asked"]["question"]["lora"]["architectures"] = ["DeafForCausalLM"]
    entry.write_text(json.dumps(kept))
    assert not call(engine, carrier, cache=str(cache))["cached"]


# ---------------------------------------------------------------------------------------------------------- its errors


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "config.json is not there: carrier must be the directory of a model"),
        (b"{", "is no JSON"),
        (b"[]", "holds a list"),
        (b"{}", "names no architectures"),
    ],
)
def test_a_carrier_that_cannot_be_read(engine: Path, tmp_path: Path, config: bytes | None, words: str) -> None:
    (tmp_path / "carrier").mkdir()
    if config is not None:
        (tmp_path / "carrier/config.json").write_bytes(config)
    result = call(engine, tmp_path / "carrier")
    assert result["failed"]
    assert words in result["msg"]


def test_exactly_one_source_is_asked_for(engine: Path, carrier: Path) -> None:
    both = call(engine, carrier, python=str(engine))
    assert "mutually exclusive" in both["msg"]
    none = run_module("vllm_lora_support", {"carrier": str(carrier)})
    assert "one of the following is required" in none["msg"]


def test_a_source_without_vllm_fails_in_words(carrier: Path, tmp_path: Path) -> None:
    result = call(tmp_path / "nothing", carrier)
    assert result["failed"]
    assert "give the directory in which the engine's vllm/ lies" in result["msg"]
    assert "Traceback" not in result["msg"]
