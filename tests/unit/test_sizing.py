"""The size of a seat: the reference deployment's numbers, the sum, and what moves it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import read_carrier
from ansible.module_utils.voices.sizing import CannotSize, SeatSize, requested_bytes, size_seat
from ansible.module_utils.voices.sizing_costs import adapters_cost_bytes, merged_cost_bytes
from ansible.module_utils.voices.sizing_lora import adapter_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.carrier import config

MIB = 1024 * 1024
GIB = 1024 * MIB
H200_BYTES = 150_109_880_320
REFERENCE_BYTES = 97_249 * MIB  # 94.97 GiB by CUDA
CARRIER = config("qwen3-4b")
FLAGS: dict[str, Any] = {
    "model": "/carriers/Qwen3-4B-Instruct",
    "dtype": "bfloat16",
    "max-model-len": 8192,
    "kv-cache-memory-bytes": 1_610_612_736,
    "gpu-memory-utilization": 0.11,
    "max-num-seqs": 32,
    "cudagraph-capture-sizes": [1, 2, 4, 8, 16, 32],
    "enable-lora": True,
    "max-lora-rank": 32,
    "max-loras": 4,
}


def size(flags: dict[str, Any] | None = None, carrier: dict[str, Any] | None = None, **card: Any) -> SeatSize:
    card = {"engine_version": "0.26.0", "cuda_total_bytes": H200_BYTES, "card_name": "NVIDIA H200", **card}
    return size_seat({**CARRIER, **(carrier or {})}, {**FLAGS, **(flags or {})}, **card)


# The reference deployment's table.


def test_kv_cache_of_the_reference_deployment() -> None:
    found = size()
    assert found.kv_bytes_a_token == 147_456
    assert found.kv_tokens == 10_912
    assert found.as_dict()["concurrency"] == 1.33


def test_what_the_reference_deployment_asks_for() -> None:
    found = size(cuda_total_bytes=REFERENCE_BYTES)
    assert found.request_bytes is not None and found.request_bytes // MIB == 10_697
    assert found.request_bytes == requested_bytes(REFERENCE_BYTES, 0.11)


def test_the_refused_bring_up() -> None:
    """0.12 asks for 11.4 GiB, and 11.16 of 94.97 are free; 0.11 would have fitted."""
    asked = requested_bytes(REFERENCE_BYTES, 0.12)
    assert (round(asked / GIB, 1), round(REFERENCE_BYTES / GIB, 2)) == (11.4, 94.97)
    free = int(11.16 * GIB)
    assert asked > free > requested_bytes(REFERENCE_BYTES, 0.11)


@pytest.mark.parametrize(
    ("carrier", "adapter", "voices", "as_adapters", "merged"),
    [
        # Directory sizes in GiB, then tensors in GB.
        (7.6 * GIB, 0.265 * GIB, 3, 8.4, 22.8),
        (7.6 * GIB, 0.265 * GIB, 6, 9.2, 45.6),
        (8.044936192 * GIB, 0.264241152 * GIB, 3, 8.84, 24.13),
        (8.044936192 * GIB, 0.264241152 * GIB, 6, 9.63, 48.27),
    ],
)
def test_adapters_against_merged(
    carrier: float, adapter: float, voices: int, as_adapters: float, merged: float
) -> None:
    digits = 1 if merged in (22.8, 45.6) else 2
    assert round(adapters_cost_bytes(round(carrier), round(adapter), voices) / GIB, digits) == as_adapters
    assert round(merged_cost_bytes(round(carrier), voices) / GIB, digits) == merged


def test_costs_from_the_config_alone() -> None:
    found = size()
    adapter = adapter_bytes(read_carrier(CARRIER), 32, dtype_bytes=4)
    assert round(adapters_cost_bytes(found.weight_bytes, adapter, 3) / 1e9, 2) == 8.84
    assert round(merged_cost_bytes(found.weight_bytes, 6) / 1e9, 1) == 48.3
    assert adapters_cost_bytes(10, 3, 0) == 10 and merged_cost_bytes(10, 0) == 0


def test_adding_a_voice_takes_nothing() -> None:
    """96,092 MiB before and 96,090 after: slots are allocated at the start."""
    voices = [{"name": f"lv-{number}", "path": "/adapters/x"} for number in range(4)]
    assert size({"lora-modules": voices, "max-cpu-loras": 16}) == size()


# The sum.


def test_the_parts_make_the_sum() -> None:
    found = size()
    parts = found.weight_bytes + found.lora_slot_bytes + found.kv_cache_bytes + found.graph_bytes
    assert found.resident_bytes == parts + found.context_bytes + found.overhead_bytes
    assert found.overhead_bytes == sum(found.parts.values())
    assert found.loaded_bytes == found.resident_bytes + found.activation_bytes > found.resident_bytes
    assert found.lora_slots == 4 and found.measured and found.notes == ()


@pytest.mark.parametrize(
    ("flags", "carrier", "grows"),
    [
        ({"max-lora-rank": 64}, {}, (550, 650)),
        ({"max-loras": 8}, {}, (550, 650)),
        ({"kv-cache-memory-bytes": 3_221_225_472}, {}, (1500, 1600)),
        ({"max-num-seqs": 64}, {}, (30, 45)),
        ({"max-num-seqs": 256, "cudagraph-capture-sizes": None}, {}, (1100, 1250)),
        ({"dtype": "float32"}, {}, (8000, 8900)),
        ({}, {"num_hidden_layers": 37}, (185, 215)),
        ({}, {"tie_word_embeddings": False}, (700, 742)),  # 742 for the head, less a wrapping of it in each slot
        ({}, {"max_position_embeddings": 524288}, (30, 64)),  # the first tensors no longer lie in its leavings
        ({}, {"vocab_size": 152_064}, (0, 10)),
        ({"enable-lora": False}, {}, (-720, -680)),
        ({"max-lora-rank": 16}, {}, (-340, -300)),
        ({"cudagraph-capture-sizes": [1, 2]}, {}, (-90, -75)),
        ({"max-num-batched-tokens": 2048}, {}, (0, 0)),  # the profile run's memory is given back
        ({"max-model-len": 4096}, {}, (0, 0)),
        ({"gpu-memory-utilization": 0.5}, {}, (0, 0)),
        ({"kv-cache-dtype": "fp8"}, {}, (-1, 5)),
    ],
)
def test_one_input_moves_it_the_right_way(
    flags: dict[str, Any], carrier: dict[str, Any], grows: tuple[int, int]
) -> None:
    change = (size(flags, carrier).resident_bytes - size().resident_bytes) / MIB
    assert grows[0] <= change <= grows[1]


def test_long_prefills_take_what_batches_need() -> None:
    assert size({"max-num-batched-tokens": 2048}).activation_bytes < size().activation_bytes // 2


def test_no_graphs_keep_what_the_profile_run_needs_beyond_the_cache() -> None:
    """r32-s4-eager: 11,070 MiB, 56 less than with graphs; a cache that is smaller than the activations leaves more."""
    found = size({"enforce-eager": True})
    assert found.graphs == found.graph_bytes == 0 and found.activation_bytes == size().activation_bytes
    beyond = max(0, found.activation_bytes - found.kv_cache_bytes)
    assert found.parts["profile_run_bytes"] == beyond + 16 * MIB
    tiny = size({"enforce-eager": True, "kv-cache-memory-bytes": 256 * MIB, "max-model-len": 1024})
    assert tiny.parts["profile_run_bytes"] > found.parts["profile_run_bytes"] + 1000 * MIB


def test_two_streams_take_more() -> None:
    both = size(environment={"VLLM_LORA_ENABLE_DUAL_STREAM": "1"})
    assert both.resident_bytes - size().resident_bytes == 158 * MIB
    assert both.activation_bytes == size().activation_bytes * 3 // 2
    assert size({"enable-lora": False}, environment={"VLLM_LORA_ENABLE_DUAL_STREAM": "1"}) == size(
        {"enable-lora": False}
    )
    assert size(environment={"VLLM_LORA_ENABLE_DUAL_STREAM": "0"}) == size()


def test_the_reference_card_has_a_smaller_context_and_no_splits() -> None:
    here = size(card_name="NVIDIA RTX PRO 6000 Blackwell Server Edition", cuda_total_bytes=REFERENCE_BYTES)
    assert here.context_bytes == 469 * MIB and size().context_bytes == 552_402_944
    assert here.resident_bytes < size().resident_bytes - 100 * MIB
    assert here.notes == ()


@pytest.mark.parametrize(
    ("name", "note"), [("", "no card was named"), ("NVIDIA L40S", "NVIDIA L40S"), ("NVIDIA H100 PCIe", "NVIDIA H100")]
)
def test_other_cards_are_noted(name: str, note: str) -> None:
    assert note in size(card_name=name).notes[0]


def test_hopper_cards_are_alike() -> None:
    assert size(card_name="NVIDIA H100 80GB HBM3").resident_bytes == size().resident_bytes
    assert size(card_name="NVIDIA L40S").resident_bytes < size().resident_bytes


def test_workspaces_and_buffers() -> None:
    assert size().parts["workspace_bytes"] == 32 * MIB
    assert size(card_name="NVIDIA L40S").parts["workspace_bytes"] == 8_519_680  # cuBLAS's :4096:2:16:8
    # Of each sequence: counts of every token, two masks of them, and 4,481 more numbers.
    assert size().parts["buffer_bytes"] == 32 * 4 * (151_936 + 2 * 4_748 + 4_481)


# What to ask for.


def test_what_to_ask_for_predicts_the_residency() -> None:
    found = size()
    assert found.ask_utilization is not None
    assert requested_bytes(H200_BYTES, found.ask_utilization) >= found.resident_bytes
    assert requested_bytes(H200_BYTES, found.ask_utilization - 0.0001) < found.resident_bytes
    assert round(found.ask_utilization, 4) == found.ask_utilization


def test_without_a_total_there_is_nothing_to_ask_for() -> None:
    found = size(cuda_total_bytes=None)
    assert found.request_bytes is None and found.ask_utilization is None
    assert found.as_dict()["request_mib"] is None


def test_a_seat_larger_than_its_card() -> None:
    found = size(cuda_total_bytes=8 * GIB)
    assert found.ask_utilization is None
    assert any("and the card has 8192" in note for note in found.notes)


@settings(deadline=None)
@given(total=st.integers(9 * GIB, 300 * GIB))
def test_the_share_is_the_least_for_any_card(total: int) -> None:
    found = size(cuda_total_bytes=total)
    if found.ask_utilization is None:
        assert found.resident_bytes > total
    else:
        assert requested_bytes(total, found.ask_utilization) >= found.resident_bytes
        assert found.ask_utilization - found.resident_bytes / total < 0.0001 + 1e-9


# Several cards, other engines, quantised carriers.


def test_a_pin_that_is_too_small_is_said_with_the_fix() -> None:
    found = size({"max-model-len": 16384})
    assert not found.fits_one_request
    (note,) = found.notes
    assert "1,024 blocks" in note and "holds 682" in note and f"{16384 * 147_456:,}" in note
    assert size({"max-model-len": 16384, "kv-cache-memory-bytes": 16384 * 147_456}).fits_one_request


@pytest.mark.parametrize("version", ["0.27.1", "0.9", "", "main"])
def test_an_engine_that_was_not_measured(version: str) -> None:
    found = size(engine_version=version)
    assert not found.measured and "was not measured; allowances are those of 0.26.0" in found.notes[0]
    assert found.resident_bytes == size().resident_bytes
    assert size(engine_version="v0.26.0+cu130").measured


def test_two_cards_share_the_seat() -> None:
    here, two = size(), size({"tensor-parallel-size": 2})
    assert two.weight_bytes * 2 == here.weight_bytes + 36 * 2 * (2 * 2560 + 2 * 128) + 2 * 2560
    assert two.kv_bytes_a_token * 2 == here.kv_bytes_a_token
    assert not two.measured and "several cards" in two.notes[0]


def test_a_carrier_that_mixes_windows_was_not_measured() -> None:
    mixed = {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    found = size(carrier={**mixed, "layer_types": ["full_attention", "sliding_attention"] * 18})
    assert not found.measured and "mixes attention windows" in found.notes[0]
    assert size(carrier=mixed).measured


def test_a_pin_without_room_for_a_block() -> None:
    found = size({"kv-cache-memory-bytes": 1})
    assert (found.kv_cache_bytes, found.kv_tokens, found.fits_one_request) == (0, 0, False)
    assert found.parts["rounding_bytes"] == size({"kv-cache-memory-bytes": 36 * 65_536}).parts["rounding_bytes"]


def test_the_fullest_stage_counts() -> None:
    three = size({"pipeline-parallel-size": 3})
    assert not three.measured and not size({"pipeline-parallel-size": 2}).measured
    assert size().weight_bytes / 3 < three.weight_bytes < size().weight_bytes / 2  # the tied embedding is on two
    assert three.kv_cache_bytes <= FLAGS["kv-cache-memory-bytes"]


def test_a_quantised_carrier_needs_the_bytes_of_its_files() -> None:
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(CannotSize, match=r"quantization_config.quant_method = 'fp8': give the bytes"):
        size(carrier=quantised)
    found = size(carrier=quantised, tensor_bytes=4_500_000_000)
    assert found.weight_bytes == 4_500_000_000 and not found.measured
    assert found.lora_slot_bytes == size().lora_slot_bytes
    with pytest.raises(CannotSize, match="quantization = 'fp8'"):
        size({"quantization": "fp8"}, tensor_bytes=8_044_936_192)


def test_files_of_another_size_are_noted() -> None:
    assert size(tensor_bytes=8_044_936_192) == size()
    assert "16,089,872,384 bytes of tensors" in size(tensor_bytes=16_089_872_384).notes[0]


@pytest.mark.parametrize(
    ("environment", "note"),
    [
        ({"VLLM_USE_V2_MODEL_RUNNER": "0"}, "V1 model runner"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_CUDA_ALLOC_CONF is set"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_ALLOC_CONF is set"),
    ],
)
def test_environments_that_were_not_measured(environment: dict[str, str], note: str) -> None:
    found = size(environment=environment)
    assert not found.measured and note in found.notes[0]


def test_a_pipeline_split_by_hand() -> None:
    with pytest.raises(CannotSize, match="VLLM_PP_LAYER_PARTITION"):
        size({"pipeline-parallel-size": 2}, environment={"VLLM_PP_LAYER_PARTITION": "30,6"})
    assert size(environment={"VLLM_PP_LAYER_PARTITION": "36"}) == size()


def test_without_a_pin_it_says_what_to_set() -> None:
    with pytest.raises(CannotSize, match="kv-cache-memory-bytes is not set"):
        size({"kv-cache-memory-bytes": None})


@pytest.mark.parametrize("name", ["cuda_total_bytes", "tensor_bytes"])
@pytest.mark.parametrize("value", [0, -1, 2**61, 1.5, "8G", True])
def test_bytes_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(CannotSize, match=f"{name} = "):
        size(**{name: value})


def test_plain_data_for_modules() -> None:
    plain = size().as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["resident_mib"] == round(plain["resident_bytes"] / MIB)
    assert plain["kv_tokens"] == 10_912 and plain["notes"] == []


@settings(deadline=None)
@given(
    rank=st.sampled_from([1, 8, 16, 32, 64, 128]),
    slots=st.integers(1, 16),
    layers=st.integers(1, 48),
    seqs=st.integers(1, 512),
    pin_mib=st.integers(64, 8192),
)
def test_more_of_anything_is_more(rank: int, slots: int, layers: int, seqs: int, pin_mib: int) -> None:
    flags = {"max-lora-rank": rank, "max-loras": slots, "max-num-seqs": seqs, "kv-cache-memory-bytes": pin_mib * MIB}
    base = size(flags, {"num_hidden_layers": layers})
    more_slots = size({**flags, "max-loras": slots + 1}, {"num_hidden_layers": layers})
    deeper = size(flags, {"num_hidden_layers": layers + 1})
    wider = size({**flags, "max-num-seqs": seqs + 32}, {"num_hidden_layers": layers})
    # Not the sum: a tensor that grows from 9 to 10 MiB takes a segment of 10 instead of half of one of 20.
    assert more_slots.lora_slot_bytes > base.lora_slot_bytes
    assert deeper.weight_bytes > base.weight_bytes and deeper.kv_tokens <= base.kv_tokens
    assert wider.parts["buffer_bytes"] > base.parts["buffer_bytes"] and wider.graphs >= base.graphs
    for one in (base, more_slots, deeper, wider):
        assert one.parts["rounding_bytes"] >= 0
        assert one.resident_bytes < one.loaded_bytes
        assert math.isfinite(one.concurrency)
