"""Engine flags for sizing: types, vLLM's defaults, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import CannotSize, read_carrier
from ansible.module_utils.voices.sizing_flags import GIB, read_flags
from ansible.module_utils.voices.sizing_given import whole_number
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.carrier import config

CARRIER = read_carrier(config("qwen3-4b"))


def read(flags: dict[str, Any], **card: Any) -> Any:
    return read_flags(flags, CARRIER, **card)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (8192, 8192),
        ("8192", 8192),
        (" 16 ", 16),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25600),
        ("2G", 2 * GIB),
        ("1.5G", None),
        ("1.5", None),
        ("-4", None),
        ("", None),
        (True, None),
        (1.0, None),
        (None, None),
        ("٣", None),
    ],
)
def test_numbers_as_vllm_reads_them(value: Any, number: int | None) -> None:
    assert whole_number(value) == number


@pytest.mark.parametrize(
    ("card", "seqs", "tokens"),
    [
        ({}, 1024, 8192),
        ({"card_bytes": 140 * GIB, "card_name": "NVIDIA H200"}, 1024, 8192),
        ({"card_bytes": 70 * GIB}, 1024, 8192),
        ({"card_bytes": 70 * GIB - 1}, 256, 2048),
        ({"card_bytes": 80 * GIB, "card_name": "NVIDIA A100-SXM4-80GB"}, 256, 2048),
        ({"cpu": True}, 128, 2048),
    ],
)
def test_batches_by_card(card: dict[str, Any], seqs: int, tokens: int) -> None:
    found = read({}, **card)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, tokens)


def test_batches_follow_each_other() -> None:
    assert read({"max-num-seqs": 2, "max-model-len": 100}).max_num_batched_tokens == 200
    assert read({"max-num-batched-tokens": 64}).max_num_seqs == 64
    assert read({"max-num-batched-tokens": 64, "max-num-seqs": 128}).max_num_seqs == 128
    assert read({"performance-mode": "throughput"}).max_num_batched_tokens == 16384
    assert read({"enable-chunked-prefill": False, "max-model-len": 32768}).max_num_batched_tokens == 32768


def test_lengths() -> None:
    assert read({}).max_model_len == 262144
    assert read({"max-model-len": "auto"}).max_model_len == read({"max-model-len": -1}).max_model_len == -1
    assert read({"max-model-len": "8K"}).max_model_len == 8192


@pytest.mark.parametrize(
    ("flags", "model", "cache", "lora"),
    [
        ({}, 2, 2, 2),
        ({"dtype": "float32"}, 4, 4, 4),
        ({"dtype": "half", "kv-cache-dtype": "fp8"}, 2, 1, 2),
        ({"dtype": "float32", "kv-cache-dtype": "bfloat16", "lora-dtype": "float16"}, 4, 2, 2),
    ],
)
def test_types(flags: dict[str, Any], model: int, cache: int, lora: int) -> None:
    found = read(flags)
    assert (found.dtype_bytes, found.kv_dtype_bytes, found.lora_dtype_bytes) == (model, cache, lora)


def test_a_float32_checkpoint_is_served_in_two_bytes() -> None:
    whole = read_carrier({**config("qwen3-4b"), "torch_dtype": "float32"})
    assert read_flags({"dtype": "auto"}, whole).dtype_bytes == 2


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ({}, "full_and_piecewise"),
        ({"enforce-eager": True}, "none"),
        ({"enforce-eager": "true"}, "none"),
        ({"optimization-level": 0}, "none"),
        ({"optimization-level": "O1"}, "piecewise"),
        ({"compilation-config": '{"cudagraph_mode": "FULL_DECODE_ONLY"}'}, "full_decode_only"),
        ({"compilation-config": {"cudagraph_mode": "PIECEWISE"}, "optimization-level": 0}, "piecewise"),
    ],
)
def test_graph_modes(flags: dict[str, Any], mode: str) -> None:
    assert read(flags).graph_mode == mode


def test_a_flag_may_be_spelled_three_ways() -> None:
    assert read({"max_loras": 4}).slots == read({"--max-loras": 4}).slots == read({"max-loras": "4"}).slots == 4
    assert read({"enable-lora": True, "no-enable-lora": True}).lora is False
    assert read({"kv-cache-memory": 5}).kv_pin_bytes == 5
    assert read({"cudagraph-capture-sizes": 8}).capture_sizes == (8,)
    assert read({"compilation-config": '{"cudagraph_capture_sizes": [1, 2]}'}).capture_sizes == (1, 2)
    assert read({"lora-target-modules": ["o_proj"]}).lora_targets == ("o_proj",)


def test_none_is_not_set() -> None:
    assert read(dict.fromkeys(("dtype", "max-model-len", "kv-cache-memory-bytes", "speculative-config"))) == read({})


def test_tokens_in_flight() -> None:
    assert read({"max-num-batched-tokens": 100}).in_flight_tokens == 200
    assert read({"max-num-batched-tokens": 100, "async-scheduling": False}).in_flight_tokens == 100
    assert read({"max-num-batched-tokens": 100, "pipeline-parallel-size": 4}).in_flight_tokens == 500


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max-lora-rank", 24),
        ("max-lora-rank", "many"),
        ("max-loras", 0),
        ("max-num-seqs", -1),
        ("max-num-seqs", True),
        ("max-num-batched-tokens", 10**30),
        ("kv-cache-memory-bytes", "1.5GiB"),
        ("kv-cache-memory-bytes", -1),
        ("gpu-memory-utilization", 0),
        ("gpu-memory-utilization", 1.2),
        ("gpu-memory-utilization", "nan"),
        ("gpu-memory-utilization", []),
        ("gpu-memory-utilization", True),
        ("dtype", "int8"),
        ("dtype", 16),
        ("kv-cache-dtype", "nvfp4"),
        ("lora-dtype", "float32"),
        ("enable-lora", "yes"),
        ("optimization-level", 9),
        ("cudagraph-capture-sizes", []),
        ("cudagraph-capture-sizes", [1, "x"]),
        ("lora-target-modules", [1]),
        ("performance-mode", "turbo"),
        ("compilation-config", "{"),
        ("compilation-config", "[]"),
        ("speculative-config", '{"method": "ngram"}'),
        ("cpu-offload-gb", 4),
        ("enable-sleep-mode", True),
        ("hf-overrides", {"num_hidden_layers": 1}),
        ("data-parallel-size", 2),
        ("model-impl", "transformers"),
    ],
)
def test_what_is_refused_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(CannotSize, match=f"the engine's flag {name} = "):
        read({name: value})


def test_an_unknown_part_of_the_compilation_config() -> None:
    with pytest.raises(CannotSize, match="compilation-config sets 'pass_config'"):
        read({"compilation-config": '{"pass_config": {}}'})


def test_flags_that_are_no_dict() -> None:
    with pytest.raises(CannotSize, match="flags are a list"):
        read_flags([], CARRIER)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.lists(st.integers())


@settings(deadline=None)
@given(
    name=st.sampled_from(
        [
            "max-model-len",
            "max-num-seqs",
            "max-num-batched-tokens",
            "kv-cache-memory-bytes",
            "gpu-memory-utilization",
            "dtype",
            "cudagraph-capture-sizes",
            "enforce-eager",
            "max-loras",
            "compilation-config",
            "block-size",
            "lora-target-modules",
            "optimization-level",
            "quantization",
        ]
    ),
    value=VALUES,
)
def test_no_value_is_a_traceback(name: str, value: Any) -> None:
    try:
        found = read({name: value})
    except CannotSize as error:
        assert name in str(error)
    else:
        assert found.max_num_seqs >= 1 and found.max_num_batched_tokens >= 1
