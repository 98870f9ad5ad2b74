"""CUDA graphs: how many there are, and what their pool and the warm-up keep."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import CannotSize, read_carrier
from ansible.module_utils.voices.sizing_allocator import MIB
from ansible.module_utils.voices.sizing_flags import EngineFlags, read_flags
from ansible.module_utils.voices.sizing_graphs import (
    Graphs,
    activation_bytes,
    capture_sizes,
    plan_graphs,
    pool_bytes,
    warm_up_bytes,
)
from ansible.module_utils.voices.sizing_weights import Shard, shards
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.carrier import config

CARRIER = read_carrier(config("qwen3-4b"))
SMALL = {"max-num-seqs": 32, "cudagraph-capture-sizes": [1, 2, 4, 8, 16, 32]}


def flags(**given: Any) -> EngineFlags:
    return read_flags({key.replace("_", "-"): value for key, value in given.items()}, CARRIER)


def shard(shape: str = "qwen3-4b", tp: int = 1) -> Shard:
    return shards(read_carrier(config(shape)), tp, 1)[0]


def test_the_engine_s_own_sizes() -> None:
    sizes = capture_sizes(flags(max_num_seqs=256))
    assert sizes[:5] == [1, 2, 4, 8, 16] and sizes[-1] == 512 and len(sizes) == 51
    assert capture_sizes(flags(max_num_seqs=1024)) == sizes
    assert capture_sizes(flags(max_num_seqs=3)) == [1, 2, 4]
    assert capture_sizes(flags(max_num_seqs=10)) == [1, 2, 4, 8, 16]
    assert capture_sizes(flags(max_num_seqs=256, max_num_batched_tokens=100))[-2:] == [96, 100]
    assert capture_sizes(flags(performance_mode="interactivity"))[:34] == [*range(1, 33), 40, 48]
    assert capture_sizes(flags(max_cudagraph_capture_size=8)) == [1, 2, 4, 8]


def test_given_sizes_are_sorted_and_cut_at_the_batch() -> None:
    assert capture_sizes(flags(cudagraph_capture_sizes=[64, 1, 64, 8], max_num_batched_tokens=32)) == [1, 8]
    with pytest.raises(CannotSize, match="cudagraph-capture-sizes names no size"):
        plan_graphs(flags(cudagraph_capture_sizes=[64], max_num_batched_tokens=32))


@pytest.mark.parametrize(
    ("given", "plain", "adapted"),
    [
        # As the engine's progress lines counted them: PIECEWISE and FULL together.
        (SMALL, 12, 0),
        ({**SMALL, "enable-lora": True, "max-loras": 4}, 12, 12),
        ({"max-num-seqs": 256}, 86, 0),
        ({"max-num-seqs": 256, "enable-lora": True}, 86, 86),
        # From the source.
        ({**SMALL, "enforce-eager": True}, 0, 0),
        ({**SMALL, "optimization-level": 1}, 6, 0),
        ({**SMALL, "compilation-config": '{"cudagraph_mode": "FULL_DECODE_ONLY"}'}, 6, 0),
        ({**SMALL, "enable-lora": True, "max-loras": 4, "specialize-active-lora": True}, 12, 48),
        ({**SMALL, "enable-lora": True, "max-loras": 7, "specialize-active-lora": True}, 12, 48),
        ({"max-num-seqs": 4, "cudagraph-capture-sizes": [1, 4, 8]}, 5, 0),
    ],
)
def test_how_many(given: dict[str, Any], plain: int, adapted: int) -> None:
    found = plan_graphs(flags(**given))
    assert (found.plain, found.adapted) == (plain, adapted)


def pool_mib(given: EngineFlags, of: Shard, splits: bool = True) -> float:
    return pool_bytes(of, given, plan_graphs(given), 32 * MIB, splits) / MIB


def test_the_graphs_pool() -> None:
    """72, 56 and 252 MiB lay in the pool's segments on the H200."""
    small, large = flags(**SMALL), flags(max_num_seqs=256)
    assert pool_mib(small, shard()) == 72
    assert pool_mib(small, shard("qwen3-1.7b")) == 56
    assert pool_mib(large, shard()) == pytest.approx(252, abs=15)
    assert pool_mib(large, shard(), splits=False) == pool_mib(large, shard()) - 128
    assert pool_mib(flags(enforce_eager=True), shard()) == 0


def test_the_warm_up() -> None:
    small, large, largest = flags(**SMALL), flags(max_num_seqs=256), flags(max_num_seqs=1024)
    plans = {one.max_num_seqs: plan_graphs(one) for one in (small, large, largest)}

    def left(given: EngineFlags, blocks: int = 10_000, splits: bool = True, of: Shard | None = None) -> float:
        return warm_up_bytes(of or shard(), given, plans[given.max_num_seqs], blocks, splits) / MIB

    # 64 tokens are no captured batch: logits of 9.3, 9.3 and 18.5 MiB in a segment each, and activations.
    assert left(small) == pytest.approx(3 * 20 + 4.75)
    assert left(large) == 256  # attention's parts of 512 tokens: the segment that was seen
    assert left(large, splits=False) == 76 + 150
    assert left(largest, blocks=682) == pytest.approx(896, abs=5)  # 198, 198, 396, 52, 26 and 26 were seen
    # 32 sequences: a block for each, and one that is never given out. Parts with the logits in them, and the buffer.
    assert left(largest, blocks=33) == 32 + 20
    middle = flags(max_num_seqs=128)
    plans[128] = plan_graphs(middle)
    assert left(middle) == 128 + 76  # both were seen: the parts with the logits in them, and the sampler's buffer
    few = flags(max_num_seqs=64)
    plans[64] = plan_graphs(few)
    assert left(few, of=shard("qwen3-1.7b")) == 32 + 38 + 38  # all were seen: parts, float32 logits, buffer
    assert left(small, of=shards(CARRIER, 1, 2)[0]) == 0


def test_activations_are_an_upper_estimate() -> None:
    for shape, small, grown in (
        ("qwen3-4b", SMALL, 1366),
        ("qwen3-4b", {**SMALL, "max-num-batched-tokens": 2048}, 436),
        ("qwen3-4b", {"max-num-seqs": 256}, 1686),
        ("qwen3-1.7b", SMALL, 450),
    ):
        assert grown <= activation_bytes(shard(shape), flags(**small)) / MIB <= grown + 710


@settings(deadline=None)
@given(seqs=st.integers(1, 2048), tokens=st.integers(1, 16384), tp=st.sampled_from([1, 2, 4]))
def test_more_sequences_are_never_less(seqs: int, tokens: int, tp: int) -> None:
    here, more = (flags(max_num_seqs=n, max_num_batched_tokens=tokens) for n in (seqs, seqs + 16))
    assert plan_graphs(more).plain >= plan_graphs(here).plain
    assert pool_mib(more, shard(tp=tp)) >= pool_mib(here, shard(tp=tp))
    assert activation_bytes(shard(tp=tp), more) >= activation_bytes(shard(tp=tp), here)


def test_no_graphs() -> None:
    assert plan_graphs(flags(enforce_eager=True)) == Graphs(0, 0, 0, 0)
