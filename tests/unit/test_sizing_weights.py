"""A carrier's tensors on one card."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import CannotSize, read_carrier
from ansible.module_utils.voices.sizing_allocator import MIB, LoadAllocator
from ansible.module_utils.voices.sizing_weights import (
    Shard,
    allocate_weights,
    rope_bytes,
    shards,
    stage_layers,
    weight_bytes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.carrier import config


def one(shape: str = "qwen3-4b", **more: Any) -> Shard:
    return shards(read_carrier({**config(shape), **more}), 1, 1)[0]


def of(shape: str, tp: int, pp: int = 1, **more: Any) -> tuple[Shard, ...]:
    return shards(read_carrier({**config(shape), **more}), tp, pp)


def kept_mib(shard: Shard) -> float:
    allocator = LoadAllocator()
    allocate_weights(shard, 2, allocator)
    return allocator.kept_bytes() / MIB


def test_the_reference_carrier_s_tensors() -> None:
    assert weight_bytes(one(), 2) == 8_044_936_192
    assert weight_bytes(one(), 4) == 2 * 8_044_936_192


def test_other_carriers_parameters() -> None:
    # As published: Qwen3-1.7B, Llama-3.1-8B, Qwen2.5-0.5B (biases, tied).
    assert weight_bytes(one("qwen3-1.7b"), 1) == 1_720_574_976
    assert weight_bytes(one("llama-3.1-8b"), 1) == 8_030_261_248
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "head_dim": None}
    qwen2 |= {"num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2}
    assert weight_bytes(one(**qwen2), 1) == 494_032_768


def test_a_tied_embedding_counts_once() -> None:
    embedding = 151936 * 2560 * 2
    assert weight_bytes(one(tie_word_embeddings=False), 2) == weight_bytes(one(), 2) + embedding


def test_the_vocabulary_is_padded_to_64() -> None:
    assert weight_bytes(one(vocab_size=151937), 2) == weight_bytes(one(vocab_size=152000), 2)
    assert weight_bytes(one(vocab_size=152001), 2) > weight_bytes(one(vocab_size=152000), 2)


def test_rope_table() -> None:
    assert rope_bytes(one(), 2) == 64 * MIB
    assert rope_bytes(one("qwen3-1.7b"), 2) == 10 * MIB


def test_what_torch_reserves_for_them() -> None:
    """To the MiB what torch's own counter said on the H200 after the load, with the cache emptied."""
    assert kept_mib(one()) == 7824
    assert kept_mib(one("qwen3-1.7b")) == 3360


def test_a_tied_head_of_llama_is_made_and_given_up() -> None:
    tied = one("llama-3.1-8b", tie_word_embeddings=True)
    untied = one("llama-3.1-8b")
    assert kept_mib(untied) - kept_mib(tied) == 128256 * 4096 * 2 / MIB


@pytest.mark.parametrize(
    ("layers", "stages", "split"), [(36, 1, [36]), (36, 4, [9] * 4), (38, 4, [9, 10, 10, 9]), (7, 2, [4, 3])]
)
def test_layers_of_stages(layers: int, stages: int, split: list[int]) -> None:
    assert stage_layers(layers, stages) == split


def test_a_pipeline_shares_everything_once() -> None:
    stages = of("llama-3.1-8b", 1, 4)
    assert sum(weight_bytes(stage, 2) for stage in stages) == weight_bytes(one("llama-3.1-8b"), 2)
    tied = of("qwen3-4b", 1, 2)
    assert sum(weight_bytes(stage, 2) for stage in tied) == weight_bytes(one(), 2) + 151936 * 2560 * 2


def test_kv_heads_are_kept_whole_when_cards_are_more() -> None:
    assert [of("qwen3-4b", tp)[0].kv for tp in (1, 2, 8, 16)] == [1024, 512, 128, 128]
    assert of("qwen3-4b", 2, num_key_value_heads=1)[0].kv == 128


@pytest.mark.parametrize(
    ("more", "tp", "pp", "named"),
    [
        ({}, 3, 1, "num_attention_heads = 32 is no multiple of tensor-parallel-size = 3"),
        ({"intermediate_size": 9729}, 2, 1, "intermediate_size = 9729"),
        ({}, 1, 37, "pipeline-parallel-size = 37 is more than num_hidden_layers = 36"),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 9720},
            6,
            1,
            "num_key_value_heads = 4",
        ),
        (
            {"num_attention_heads": 10, "num_key_value_heads": 5, "intermediate_size": 9730},
            5,
            1,
            "tensor-parallel-size = 5 do not divide",
        ),
        ({"num_attention_heads": 24, "num_key_value_heads": 12}, 8, 1, "num_key_value_heads = 12"),
    ],
)
def test_splits_that_vllm_refuses(more: dict[str, Any], tp: int, pp: int, named: str) -> None:
    with pytest.raises(CannotSize, match=named):
        of("qwen3-4b", tp, pp, **more)


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]), kv_heads=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_a_share_is_never_less_than_its_part(tp: int, kv_heads: int) -> None:
    whole, part = (of("qwen3-4b", n, num_key_value_heads=kv_heads)[0] for n in (1, tp))
    assert weight_bytes(part, 2) * tp >= weight_bytes(whole, 2)


@settings(deadline=None)
@given(
    key=st.sampled_from(["num_hidden_layers", "intermediate_size", "vocab_size", "head_dim", "hidden_size"]),
    more=st.integers(1, 4),
)
def test_a_larger_carrier_is_larger(key: str, more: int) -> None:
    base = config("qwen3-4b")
    larger = one(**{key: base[key] + 64 * more})
    assert weight_bytes(larger, 2) > weight_bytes(one(), 2)
    assert kept_mib(larger) * MIB >= weight_bytes(larger, 2) + rope_bytes(larger, 2)
