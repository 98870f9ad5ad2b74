"""LoRA slots as vLLM allocates them, and the size of adapters."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import CannotSize, read_carrier
from ansible.module_utils.voices.sizing_allocator import MIB, LoadAllocator
from ansible.module_utils.voices.sizing_flags import RANKS, read_flags
from ansible.module_utils.voices.sizing_lora import LINEARS, adapter_bytes, allocate_slots
from ansible.module_utils.voices.sizing_weights import allocate_weights, shards
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.carrier import config

CARRIER = read_carrier(config("qwen3-4b"))
PAIR = (151936 + 2560) * 32 * 2  # an embedding's, rank 32


def slots(
    shape: str = "qwen3-4b", rank: int = 32, count: int = 1, carrier: dict[str, Any] | None = None, **flags: Any
) -> int:
    found = read_carrier({**config(shape), **(carrier or {})})
    named = {key.replace("_", "-"): value for key, value in flags.items()}
    engine = read_flags({"max-lora-rank": rank, "max-loras": count, **named}, found)
    return sum(allocate_slots(shard, engine, LoadAllocator()) for shard in shards(found, engine.tp, engine.pp)[:1])


def test_adapters_of_the_reference_carrier() -> None:
    # The file of 132,188,360 bytes has a header of 67,784.
    assert adapter_bytes(CARRIER, 32) == 132_120_576
    assert adapter_bytes(CARRIER, 32, dtype_bytes=4) == adapter_bytes(CARRIER, 64) == 264_241_152


def test_targets_of_an_adapter() -> None:
    assert adapter_bytes(CARRIER, 8, targets=["q_proj"]) == 36 * 8 * (2560 + 4096) * 2
    assert sum(adapter_bytes(CARRIER, 8, targets=[name]) for name in LINEARS) == adapter_bytes(CARRIER, 8)
    with pytest.raises(CannotSize, match="target module 'lm_head'"):
        adapter_bytes(CARRIER, 8, targets=["lm_head"])


def test_a_slot_is_an_adapter_and_three_embeddings() -> None:
    """Tied and one module: the input embedding, its second wrapping as output, and the logits processor."""
    assert slots() == adapter_bytes(CARRIER, 32) + 3 * PAIR
    assert round(slots() / MIB, 1) == 154.3


@pytest.mark.parametrize(
    ("carrier", "pairs"),
    [
        ({"tie_word_embeddings": False}, 2),
        ({"architectures": ["LlamaForCausalLM"]}, 2),
        ({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}, 2),
        ({"architectures": ["Qwen2ForCausalLM"]}, 0),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 0),
    ],
)
def test_embeddings_by_model_class(carrier: dict[str, Any], pairs: int) -> None:
    assert slots(carrier=carrier) == adapter_bytes(CARRIER, 32) + pairs * PAIR


def test_only_the_product_of_slots_and_rank_counts() -> None:
    assert slots(rank=32, count=8) == slots(rank=64, count=4) == 2 * slots(rank=32, count=4) == 8 * slots()


def test_targets_that_the_engine_is_held_to() -> None:
    only = slots(lora_target_modules=["o_proj"])
    assert only == adapter_bytes(CARRIER, 32, targets=["o_proj"])
    packed = adapter_bytes(CARRIER, 32, targets=["q_proj", "k_proj", "v_proj"])
    assert slots(lora_target_modules=["q_proj"]) == slots(lora_target_modules=["qkv_proj"]) == packed
    assert slots(lora_target_modules=["embed_tokens"]) == PAIR
    assert slots(lora_target_modules=["lm_head"]) == 2 * PAIR


def test_types() -> None:
    assert slots(dtype="float32") == 2 * slots()
    assert slots(dtype="float32", lora_dtype="bfloat16") == slots()


def test_two_cards_share_b_of_columns_and_a_of_rows() -> None:
    a_column = 5 * 2560  # q, k, v, gate, up: whole
    b_column = (4096 + 1024 + 1024 + 2 * 9728) // 2
    rows = 4096 // 2 + 2560 + 9728 // 2 + 2560
    assert slots(tensor_parallel_size=2) == 36 * 32 * 2 * (a_column + b_column + rows) + 3 * PAIR
    sharded = 36 * 32 * 2 * (a_column // 2 + b_column + 4096 // 2 + 1280 + 9728 // 2 + 1280) + 3 * PAIR
    assert slots(tensor_parallel_size=2, fully_sharded_loras=True) == sharded


def test_a_stage_without_ends_has_no_embeddings() -> None:
    found = shards(CARRIER, 1, 3)[1]
    engine = read_flags({"max-lora-rank": 32}, CARRIER)
    assert allocate_slots(found, engine, LoadAllocator()) == adapter_bytes(CARRIER, 32) // 3


def test_a_vocabulary_that_vllm_refuses() -> None:
    with pytest.raises(CannotSize, match="vocab_size = 258049"):
        slots(carrier={"vocab_size": 258049})
    assert slots(carrier={"vocab_size": 258049, "architectures": ["Qwen2ForCausalLM"]}) == adapter_bytes(CARRIER, 32)
    with pytest.raises(CannotSize, match="fully-sharded-loras"):
        slots(rank=1, tensor_parallel_size=2, fully_sharded_loras=True)


@pytest.mark.parametrize(
    ("shape", "rank", "count", "mib"),
    [
        ("qwen3-4b", 16, 4, 8150),
        ("qwen3-4b", 32, 1, 7990),
        ("qwen3-4b", 32, 4, 8480),
        ("qwen3-4b", 64, 4, 9088),
        ("qwen3-1.7b", 32, 4, 3694),
    ],
)
def test_what_torch_reserves_for_carrier_and_slots(shape: str, rank: int, count: int, mib: int) -> None:
    """To the MiB what torch's own counter said on the H200 after the load, with the cache emptied."""
    carrier = read_carrier(config(shape))
    (shard,) = shards(carrier, 1, 1)
    allocator = LoadAllocator()
    allocate_weights(shard, 2, allocator)
    allocate_slots(shard, read_flags({"max-lora-rank": rank, "max-loras": count}, carrier), allocator)
    assert allocator.kept_bytes() / MIB == mib


@settings(deadline=None)
@given(
    ranks=st.tuples(st.sampled_from(RANKS), st.sampled_from(RANKS)),
    counts=st.tuples(st.integers(1, 64), st.integers(1, 64)),
)
def test_more_rank_or_slots_is_more(ranks: tuple[int, int], counts: tuple[int, int]) -> None:
    assert slots(rank=max(ranks), count=max(counts)) >= slots(rank=min(ranks), count=min(counts))
    assert slots(rank=max(ranks), count=max(counts) + 1) > slots(rank=min(ranks), count=min(counts))
    assert adapter_bytes(CARRIER, max(ranks)) >= adapter_bytes(CARRIER, min(ranks))


@settings(deadline=None)
@given(tp=st.sampled_from([1, 2, 4, 8, 16]), sharded=st.booleans())
def test_a_share_of_a_slot_is_never_less_than_its_part(tp: int, sharded: bool) -> None:
    assert slots(tensor_parallel_size=tp, fully_sharded_loras=sharded) * tp >= slots()
