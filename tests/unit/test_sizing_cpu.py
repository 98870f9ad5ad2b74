"""What a seat on the CPU takes of its host's memory."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import CannotSize
from ansible.module_utils.voices.sizing_cpu import PROCESS_BYTES, CpuSeatSize, size_cpu_seat

MIB = 1024 * 1024
#: The embedded default's tiny carrier.
TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 2048,
}
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "enable-lora": True,
    "enforce-eager": True,
    "kv-cache-memory-bytes": 256 * MIB,
    "max-lora-rank": 8,
    "max-loras": 4,
    "max-model-len": 2048,
}


def size(carrier: dict[str, Any] | None = None, environment: dict[str, Any] | None = None, **flags: Any) -> CpuSeatSize:
    named = {key.replace("_", "-"): value for key, value in flags.items()}
    return size_cpu_seat({**TINY, **(carrier or {})}, {**FLAGS, **named}, environment)


def test_the_embedded_default() -> None:
    found = size()
    assert found.kv_tokens == 256 * MIB // (2 * 4 * 2 * 64 * 4) == 65_536
    assert found.fits_one_request and found.as_dict()["concurrency"] == 32.0
    assert found.kv_cache_bytes == 256 * MIB
    assert found.resident_bytes == (
        found.weight_bytes + found.lora_slot_bytes + found.kv_cache_bytes + found.process_bytes
    )
    assert 2400 < found.as_dict()["resident_mib"] < 2700  # 2.4 GB were seen, its cache untouched


def test_blocks_are_of_128_tokens() -> None:
    assert size(kv_cache_memory_bytes=128 * 4096 * 3 + 4095).kv_tokens == 128 * 3


@pytest.mark.parametrize(
    ("change", "least"),
    [
        ({"kv_cache_memory_bytes": 512 * MIB}, 256 * MIB),
        ({"max_loras": 64}, 10 * MIB),
        ({"carrier": {"num_hidden_layers": 40}}, 40 * MIB),
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": "1"}}, 768 * MIB),
    ],
)
def test_more_takes_more(change: dict[str, Any], least: int) -> None:
    assert size(**change).resident_bytes - size().resident_bytes >= least


def test_less_takes_less() -> None:
    assert size(dtype="bfloat16").resident_bytes < size().resident_bytes
    assert size(enable_lora=False).lora_slot_bytes == 0
    assert size(kv_cache_memory_bytes=MIB).resident_bytes > PROCESS_BYTES


def test_the_old_variable_goes_first() -> None:
    assert size(environment={"VLLM_CPU_KVCACHE_SPACE": 2}).kv_cache_bytes == 2048 * MIB
    assert size(environment={"VLLM_CPU_KVCACHE_SPACE": ""}) == size()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": "much"}}, "VLLM_CPU_KVCACHE_SPACE = 'much'"),
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": -1}}, "VLLM_CPU_KVCACHE_SPACE = -1"),
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": "0"}}, "kv-cache-memory-bytes is not set"),
        ({"kv_cache_memory_bytes": None}, "kv-cache-memory-bytes is not set"),
        ({"tensor_parallel_size": 2}, "tensor-parallel-size x pipeline-parallel-size = 2"),
        ({"carrier": {"quantization_config": {"quant_method": "awq"}}}, "'awq': on the CPU"),
        ({"carrier": {"hidden_size": None}}, "no hidden_size"),
    ],
)
def test_what_is_not_sized(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CannotSize, match=named):
        size(**change)
