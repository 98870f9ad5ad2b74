"""The KV cache: bytes a token, tokens of a pin, and requests at once, as the engine's log has them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import CannotSize, read_carrier
from ansible.module_utils.voices.sizing_flags import read_flags
from ansible.module_utils.voices.sizing_kv import KvCache, plan_cache
from ansible.module_utils.voices.sizing_weights import shards
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.carrier import config

PIN = 1_610_612_736
FLAGS = {"max-model-len": 8192, "kv-cache-memory-bytes": PIN}


def cache(shape: str = "qwen3-4b", carrier: dict[str, Any] | None = None, **flags: Any) -> KvCache:
    found = read_carrier({**config(shape), **(carrier or {})})
    engine = read_flags({**FLAGS, **{key.replace("_", "-"): value for key, value in flags.items()}}, found)
    return plan_cache(shards(found, engine.tp, engine.pp), engine)


def test_the_reference_deployment() -> None:
    found = cache()
    assert found.bytes_a_token == 147_456
    assert (found.blocks, found.tokens, round(found.concurrency, 2)) == (682, 10_912, 1.33)
    assert found.fits_one_request and found.cache_bytes <= PIN


@pytest.mark.parametrize(
    ("change", "bytes_a_token", "tokens"),
    [
        ({"carrier": {"num_hidden_layers": 18}}, 73_728, 21_840),
        ({"carrier": {"num_key_value_heads": 4}}, 73_728, 21_840),
        ({"carrier": {"num_key_value_heads": 1}}, 18_432, 87_376),
        ({"carrier": {"head_dim": 256}}, 294_912, 5_456),
        ({"kv_cache_dtype": "fp8"}, 73_728, 21_840),
        ({"dtype": "float32"}, 294_912, 5_456),
        ({"kv_cache_memory_bytes": 2 * PIN}, 147_456, 21_840),
        ({"tensor_parallel_size": 2}, 73_728, 21_840),
        ({"tensor_parallel_size": 16}, 18_432, 87_376),
        ({"pipeline_parallel_size": 2}, 73_728, 21_840),
        ({"block_size": 32}, 147_456, 10_912),
        ({"num_gpu_blocks_override": 100}, 147_456, 1_600),
        ({"max_model_len": 4096}, 147_456, 10_912),
    ],
)
def test_each_input_moves_it_the_right_way(change: dict[str, Any], bytes_a_token: int, tokens: int) -> None:
    found = cache(**change)
    assert (found.bytes_a_token, found.tokens) == (bytes_a_token, tokens)


def test_mqa_and_mha() -> None:
    assert cache(carrier={"num_key_value_heads": 1}).bytes_a_token * 32 == (
        cache(carrier={"num_key_value_heads": 32}).bytes_a_token
    )


def test_a_length_that_is_no_multiple_of_a_block_is_logged_as_vllm_logs_it() -> None:
    # 63 blocks a request of 1,000 tokens, 682 blocks: 10.825 requests, and as many thousand tokens.
    assert cache(max_model_len=1000).tokens == 10_825


def test_a_request_that_does_not_fit() -> None:
    assert cache(max_model_len=10_912).fits_one_request
    assert not cache(max_model_len=10_913).fits_one_request


def test_the_engine_fits_the_length_itself() -> None:
    found = cache(max_model_len="auto")
    assert (found.max_model_len, found.fits_one_request) == (10_912, True)
    for blocks in range(100, 110):
        assert cache(max_model_len="auto", num_gpu_blocks_override=blocks).max_model_len == 16 * blocks
    assert cache("qwen3-1.7b", max_model_len=-1, kv_cache_memory_bytes=100 * PIN).max_model_len == 40_960


def test_without_a_pin() -> None:
    with pytest.raises(CannotSize, match="kv-cache-memory-bytes is not set"):
        cache(kv_cache_memory_bytes=None)


def mistral(**more: Any) -> dict[str, Any]:
    base = {**config("llama-3.1-8b"), "architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    return {**base, **more}


def test_a_window_for_all_layers() -> None:
    found = cache(carrier=mistral(), max_model_len=131072, max_num_batched_tokens=8192)
    # 4,095 tokens of the window, two batches in flight, and a block more because the window may begin within one.
    assert found.request_blocks == (4095 + 2 * 8192 + 15) // 16 + 1
    assert found.bytes_a_token == 131_072 and found.tensors == 32


def test_windows_for_some_layers_share_tensors() -> None:
    types = ["full_attention", *["sliding_attention"] * 3] * 8
    found = cache(carrier=mistral(layer_types=types), max_model_len=32768, max_num_batched_tokens=2048)
    assert found.tensors == 8  # four groups of eight layers
    assert found.request_blocks == 2048 + 3 * ((4095 + 4096 + 15) // 16 + 1)
    assert found.blocks == PIN // (16 * 4096) // 8
    halves = ["full_attention", "sliding_attention"] * 16
    with pytest.raises(CannotSize, match="layer_types mixes windows, and pipeline-parallel-size = 2"):
        cache(carrier=mistral(layer_types=halves), pipeline_parallel_size=2)


def test_almost_as_many_layers_with_a_window_as_without_are_padded() -> None:
    types = ["full_attention"] * 18 + ["sliding_attention"] * 14
    assert cache(carrier=mistral(layer_types=types)).tensors == 18


@settings(deadline=None)
@given(pin=st.integers(2**20, 2**40), size=st.sampled_from([16, 32, 64]), layers=st.integers(1, 80))
def test_properties(pin: int, size: int, layers: int) -> None:
    found = cache(carrier={"num_hidden_layers": layers}, kv_cache_memory_bytes=pin, block_size=size)
    assert found.tokens % size == 0
    assert found.cache_bytes <= pin < found.cache_bytes + found.block_bytes
    assert found.tokens * found.bytes_a_token == found.cache_bytes
    assert found.fits_one_request == (found.tokens >= 8192)
    more = cache(carrier={"num_hidden_layers": layers}, kv_cache_memory_bytes=pin + found.block_bytes, block_size=size)
    assert more.blocks == found.blocks + 1
