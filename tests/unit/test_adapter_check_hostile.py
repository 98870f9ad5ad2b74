"""Adapters made to hang, crash or fool the check, and how long a real one takes."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.adapter_check import Checked, Seat, Source, check_adapter
from ansible.module_utils.voices.adapter_check_client import read_source
from ansible.module_utils.voices.adapter_findings import CODES, ERROR, found
from ansible.module_utils.voices.carrier_tensors import CarrierModules, carrier_modules
from ansible.module_utils.voices.safetensors_header import Tensor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.adapter_dirs import raw_file
from tests.support.adapter_drafts import CONFIG, WEIGHTS, draft

QWEN3_4B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
CONFIG_4B = {"peft_type": "LORA", "r": 32, "lora_alpha": 64, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


@pytest.fixture(scope="module")
def carrier() -> CarrierModules:
    return carrier_modules(QWEN3_4B, None, names=("qwen3-4b",))


def real_size(carrier: CarrierModules, rank: int = 32) -> tuple[Tensor, ...]:
    """The header of an adapter over 36 layers x 7 modules."""
    tensors = []
    for module, size in carrier.linears.items():
        if module != "lm_head" and size is not None:
            for part, shape in (("A", (rank, size[1])), ("B", (size[0], rank))):
                tensors.append(Tensor(f"base_model.model.{module}.lora_{part}.weight", "BF16", shape, 0, 0))
    return tuple(tensors)


def judged(
    carrier: CarrierModules, tensors: tuple[Tensor, ...], config: Mapping[str, Any] = CONFIG_4B
) -> tuple[Checked, float]:
    begun = time.process_time()
    seen = check_adapter(Source(config=json.dumps(config).encode(), tensors=tensors), Seat(carrier, 32))
    return seen, time.process_time() - begun


def test_a_real_size_header_takes_far_less_than_a_second(carrier: CarrierModules) -> None:
    tensors = real_size(carrier)
    assert len(tensors) == 36 * 7 * 2
    seen, seconds = judged(carrier, tensors)
    assert (seen.errors, seen.modules, seen.rank) == ((), 252, 32)
    assert seconds < 0.5


def test_one_rank_for_each_module_by_name_is_tried(carrier: CarrierModules) -> None:
    """What PEFT's EVA and AdaLoRA-like methods write: as many patterns as modules."""
    pattern = {module: 32 for module in carrier.linears if module != "lm_head"}
    seen, seconds = judged(carrier, real_size(carrier), {**CONFIG_4B, "r": 8, "rank_pattern": pattern})
    assert {one.code for one in seen.findings} == {"per-module-scaling", "base-model-unsaid"}
    assert seconds < 2


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|aa)+$",
        "a?" * 60 + "a" * 60,
        r"\(?" * 60 + "x",
        r"\\*" * 90,
        "(aa|a)" * 40 + "b",
        ".*" * 20 + "x",
        ".*a.*a.*a.*a.*b",
        "(?=(a+))a*b",
        r"(a*)\1\1b",
        "a{0,99}" * 20 + "b",
        "(" * 400,
        "[",
        "x" * 1_000_000,
    ],
)
@pytest.mark.parametrize("where", ["target_modules", "rank_pattern", "alpha_pattern"])
def test_a_pattern_that_never_ends_is_left_out(carrier: CarrierModules, pattern: str, where: str) -> None:
    value: Any = pattern if where == "target_modules" else {pattern: 32}
    names = ("a" * 199, "(" * 199, "\\" * 199)
    tensors = tuple(Tensor(f"{name}.lora_{part}.weight", "F32", (32, 32), 0, 0) for name in names for part in "AB")
    seen, seconds = judged(carrier, (*real_size(carrier), *tensors), {**CONFIG_4B, where: value})
    assert "pattern-not-checked" in {one.code for one in seen.findings}
    assert seconds < 1


@pytest.mark.parametrize("keys", [3_000, 50_000])
def test_many_patterns_on_many_modules_are_left_out(carrier: CarrierModules, keys: int) -> None:
    config = {**CONFIG_4B, "rank_pattern": {f".*m{number}": 32 for number in range(keys)}}
    tensors = tuple(
        Tensor(f"model.layers.{n}.m.lora_{part}.weight", "F32", (32, 32), 0, 0) for n in range(5_000) for part in "AB"
    )
    seen, seconds = judged(carrier, tensors, config)
    assert "pattern-not-checked" in {one.code for one in seen.findings}
    assert seconds < 5


def test_ten_thousand_strange_tensors(carrier: CarrierModules) -> None:
    names = [f"model.layers.{n}.{'x' * 400}.lora_{part}.weight" for n in range(5_000) for part in "AB"]
    seen, seconds = judged(carrier, tuple(Tensor(name, "F32", (32, 32), 0, 0) for name in names))
    assert {one.code for one in seen.errors} == {"unknown-module"}
    assert len(seen.findings) < 12
    assert seconds < 5


@pytest.mark.parametrize(
    ("piece", "times"), [("x", 5_000_000), (".lora_A", 500_000), ("a.", 2_000_000), ("", 1), (".", 1)]
)
def test_names_of_megabytes_and_of_nothing(carrier: CarrierModules, piece: str, times: int) -> None:
    name = piece * times
    seen, seconds = judged(carrier, (Tensor(name, "F32", (32, 32), 0, 0),))
    assert {one.code for one in seen.errors} == {"tensor-name"}
    assert max(len(one.line()) for one in seen.findings) < 1_000
    assert seconds < 1


def test_nothing_that_a_terminal_obeys_gets_into_a_message(carrier: CarrierModules) -> None:
    evil = "model.\x1b[31m\r\n\u202e\udc80.layers.0.mlp.up_proj.lora_A.weight"
    config = {**CONFIG_4B, "base_model_name_or_path": "\x1b]0;gotcha\x07", "peft_type": "\n\nok: [host]"}
    seen, _ = judged(carrier, (Tensor(evil, "F32", (32, 2560), 0, 0),), config)
    told = " ".join(one.line() + str(one.as_dict()) for one in seen.findings)
    assert "\\x1b[31m" in told
    assert not [letter for letter in told if not letter.isprintable()]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"r": 8' + "0" * 5_000 + "}", "config-invalid"),
        ('{"r": 1' + "0" * 4_000 + ', "lora_alpha": 1.5, "target_modules": []}', "rank-invalid"),
        ('{"r": 8, "lora_alpha": 1' + "0" * 4_000 + ', "target_modules": []}', "alpha-invalid"),
        ('{"r": 8, "lora_alpha": 1e999, "target_modules": []}', "config-not-finite"),
        ('{"r": 8, "lora_alpha": 16, "bias": ' + "[" * 500 + "]" * 500 + ', "target_modules": []}', "bias"),
        ('{"r": true, "lora_alpha": 16, "target_modules": []}', "rank-invalid"),
        ("[" * 1_000_000, "config-invalid"),
        ("", "config-invalid"),
        ("null", "config-invalid"),
        ("\ufeff{}", "config-invalid"),
    ],
)
def test_configurations_made_to_break_a_parser(carrier: CarrierModules, text: str, code: str) -> None:
    seen = check_adapter(Source(config=text.encode()), Seat(carrier, 32))
    assert code in {one.code for one in seen.errors}
    assert all(len(one.line()) < 1_000 for one in seen.findings)


def test_a_million_keys_of_which_the_last_stands_twice(carrier: CarrierModules) -> None:
    text = json.dumps({f"k{number}": 1 for number in range(100_000)})[:-1] + ', "k99999": 2}'
    begun = time.process_time()
    seen = check_adapter(Source(config=text.encode()), Seat(carrier, 32))
    assert "k99999" in next(one.message for one in seen.errors if one.code == "config-duplicate-key")
    assert time.process_time() - begun < 5


def test_a_base_model_name_of_megabytes(carrier: CarrierModules) -> None:
    seen, seconds = judged(carrier, real_size(carrier), {**CONFIG_4B, "base_model_name_or_path": "models--" * 500_000})
    assert [one.code for one in seen.findings] == ["base-model-differs"]
    assert seconds < 1


def test_a_damaged_header_is_always_a_finding(tmp_path: Path) -> None:
    """Flip bytes anywhere in the first 4 KiB: no exception, and a verdict each time."""
    at = draft().write(tmp_path / "adapter")
    whole = (at / WEIGHTS).read_bytes()
    chance = random.Random(5)  # noqa: S311 - no secret
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(4096)] = chance.randrange(256)
        (at / WEIGHTS).write_bytes(data)
        seen = read_source(str(at), read_weights=False)
        assert (seen.tensors is None) == bool(seen.findings)


def test_names_of_files_that_are_no_text(tmp_path: Path) -> None:
    at = draft().write(tmp_path / "adapter")
    (Path(bytes(at).decode()) / "plain.txt").write_text("x")
    with open(bytes(at) + b"/\xff\x1b[31m.bin", "wb") as stream:
        stream.write(b"x")
    seen = read_source(str(at), read_weights=False)
    assert [one.code for one in seen.findings] == ["pickle"]
    assert all(one.line().isprintable() for one in seen.findings)


@pytest.mark.parametrize("path", ["/dev/null", "/nowhere", "/proc/self/mem", "a\0b"])
def test_sources_that_are_no_directory(path: str) -> None:
    assert [one.code for one in read_source(path, read_weights=True).findings] == ["source-missing"]


def test_a_link_to_itself_and_to_a_device(tmp_path: Path) -> None:
    for number, (target, code) in enumerate(((WEIGHTS, "link-broken"), ("/dev/zero", "link-escapes"))):
        at = draft().write(tmp_path / str(number))
        (at / WEIGHTS).unlink()
        (at / WEIGHTS).symlink_to(target)
        assert [one.code for one in read_source(str(at), read_weights=True).findings] == [code]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [*draft().config, "lora_bias", "layers_to_transform", "alora_invocation_tokens", "layer_replication"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8))
def test_any_value_anywhere_in_the_configuration_gets_a_verdict(config: dict[str, Any]) -> None:
    carrier = carrier_modules({**QWEN3_4B, "num_hidden_layers": 1}, None)
    blob = json.dumps({**CONFIG_4B, **config}).encode()
    seen = check_adapter(Source(config=blob, tensors=real_size(carrier)), Seat(carrier, 32))
    assert all(one.code in CODES and one.line().isprintable() for one in seen.findings)


@settings(max_examples=150, deadline=None)
@given(
    name=st.text(max_size=30) | st.sampled_from([tensor.name for tensor in real_size(carrier_modules(QWEN3_4B, None))]),
    dtype=st.sampled_from(["F32", "BF16", "U8", "I64", "F8_E4M3", "F4", "F64"]),
    shape=st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 32, 2560]), max_size=4),
)
def test_any_tensor_gets_a_verdict(name: str, dtype: str, shape: list[int]) -> None:
    carrier = carrier_modules(QWEN3_4B, None)
    seen, _ = judged(carrier, (Tensor(name, dtype, tuple(shape), 0, 0),))
    assert any(one.severity == ERROR for one in seen.findings)  # one tensor is never a pair
    assert found("empty", "x").severity == ERROR


def test_metadata_and_config_may_be_large_and_are_read_in_bounds(tmp_path: Path) -> None:
    at = draft().write(tmp_path / "adapter")
    (at / WEIGHTS).write_bytes(raw_file(json.dumps({"__metadata__": {"note": "x" * 5_000_000}}).encode()))
    assert read_source(str(at), read_weights=True).tensors == ()
    assert (at / CONFIG).exists()
