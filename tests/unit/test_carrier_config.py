"""A carrier's config.json: what is read from it, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.carrier_config import CannotSize, read_carrier
from ansible.module_utils.voices.plan import VoicesError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.carrier import config

QWEN3 = config("qwen3-4b")
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
LLAMA = config("llama-3.1-8b")


def without(base: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in base.items() if name != key}


def test_the_reference_carrier() -> None:
    carrier = read_carrier(QWEN3)
    assert (carrier.layers, carrier.hidden, carrier.intermediate) == (36, 2560, 9728)
    assert (carrier.heads, carrier.kv_heads, carrier.head_size, carrier.vocab) == (32, 8, 128, 151936)
    assert carrier.tied and not carrier.qkv_bias and not carrier.out_bias and not carrier.mlp_bias
    assert carrier.rope_rows == carrier.longest == 262144 and carrier.rotary_size == 128
    assert carrier.windows == (None,) * 36 and carrier.dtype == "bfloat16" and carrier.quantization == ""


def test_defaults_are_those_of_the_model_class() -> None:
    assert read_carrier(without(QWEN3, "head_dim")).head_size == 128  # Qwen3Config's own, not 2560 / 32
    assert read_carrier(QWEN2).head_size == 64
    assert read_carrier(QWEN2).qkv_bias and not read_carrier(QWEN2).out_bias
    assert read_carrier(without(LLAMA, "num_key_value_heads")).kv_heads == 32
    assert not read_carrier(without(QWEN3, "tie_word_embeddings")).tied


def test_biases_of_llama() -> None:
    with_bias = read_carrier({**LLAMA, "attention_bias": True, "mlp_bias": True})
    assert with_bias.qkv_bias and with_bias.out_bias and with_bias.mlp_bias
    only_qkv = read_carrier({**LLAMA, "qkv_bias": True})
    assert only_qkv.qkv_bias and not only_qkv.out_bias


def test_the_dtype_under_either_name() -> None:
    assert read_carrier({**without(QWEN3, "torch_dtype"), "dtype": "float16"}).dtype == "float16"
    assert read_carrier({**QWEN3, "torch_dtype": "torch.float32"}).dtype == "float32"


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({}, (4096,) * 32),
        ({"sliding_window": None}, (None,) * 32),
        ({"sliding_window": 0}, (None,) * 32),
        ({"layer_types": ["full_attention"] * 32}, (4096,) * 32),
        ({"layer_types": ["full_attention", "sliding_attention"] * 16}, (None, 4096) * 16),
    ],
)
def test_windows_of_mistral(more: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read_carrier({**MISTRAL, **more}).windows == windows


def test_mistral_without_the_key_has_its_class_s_window() -> None:
    assert read_carrier(without(MISTRAL, "sliding_window")).windows == (4096,) * 32


def test_qwen_forgets_a_window_that_it_does_not_use() -> None:
    assert read_carrier(QWEN2).windows == (None,) * 24
    with pytest.raises(CannotSize, match="use_sliding_window = True"):
        read_carrier({**QWEN2, "use_sliding_window": True})


@pytest.mark.parametrize(
    ("rope", "rows"),
    [
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "linear", "factor": 2}, 262144),
    ],
)
def test_rope_tables(rope: dict[str, Any], rows: int) -> None:
    assert read_carrier({**LLAMA, "rope_scaling": rope}).rope_rows == rows
    assert read_carrier({**LLAMA, "rope_parameters": rope}).rope_rows == rows


def test_half_of_a_head_may_be_rotated() -> None:
    assert read_carrier({**LLAMA, "partial_rotary_factor": 0.5}).rotary_size == 64


def test_a_text_config_inside_is_the_one_that_counts() -> None:
    assert read_carrier({"architectures": ["Qwen3ForCausalLM"], "text_config": without(QWEN3, "architectures")}) == (
        read_carrier(QWEN3)
    )
    with pytest.raises(CannotSize, match="num_experts = 8: a mixture of experts"):
        read_carrier({"architectures": ["Qwen3ForCausalLM"], "text_config": {**QWEN3, "num_experts": 8}})


REQUIRED = [
    "architectures",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(CannotSize, match=f"^cannot size this: .*{key}"):
        read_carrier(without(QWEN3, key))


@pytest.mark.parametrize("key", [key for key in REQUIRED if key != "architectures"])
@pytest.mark.parametrize("value", [0, -1, "36", 2.5, True, [36], {}, 10**400, float("nan")])
def test_what_is_no_size_is_named_with_its_value(key: str, value: Any) -> None:
    with pytest.raises(CannotSize, match=f"{key} = "):
        read_carrier({**QWEN3, key: value})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"num_experts": 128}, "num_experts = 128: a mixture of experts"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"n_routed_experts": 256}, "n_routed_experts = 256"),
        ({"kv_lora_rank": 512}, "kv_lora_rank = 512: latent attention"),
        ({"linear_num_key_heads": 16}, "linear_num_key_heads = 16: linear attention"),
        ({"mamba_d_state": 128}, "mamba_d_state = 128: a state space model"),
        ({"vision_config": {"depth": 27}}, "vision_config = .*multimodal"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder = True"),
        ({"dual_chunk_attention_config": {"chunk_size": 1}}, "dual_chunk_attention_config"),
        ({"layer_types": ["linear_attention"] * 36}, "layer_types has 'linear_attention'"),
        ({"layer_types": ["full_attention"]}, "layer_types = .*36 layers"),
        ({"layer_types": ["sliding_attention"] * 36}, "layer_types has sliding_attention"),
        ({"architectures": ["MixtralForCausalLM"]}, "architectures = 'MixtralForCausalLM'"),
        ({"architectures": []}, r"architectures = \[\]"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures = 'Qwen3ForCausalLM'"),
        ({"num_attention_heads": 30}, "num_attention_heads = 30 is no multiple of num_key_value_heads = 8"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type = 'longrope'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "no original_max_position_embeddings"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "rope_scaling.factor = '4'"),
        ({"rope_scaling": "yarn"}, "rope_scaling = 'yarn' is no object"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor = 0"),
        ({"torch_dtype": 16}, "torch_dtype = 16"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
        ({"text_config": [1]}, "text_config"),
        ({"quantization_config": "fp8"}, "quantization_config = 'fp8'"),
    ],
)
def test_what_is_not_sized_is_named(more: dict[str, Any], named: str) -> None:
    with pytest.raises(CannotSize, match=named):
        read_carrier({**QWEN3, **more})


@pytest.mark.parametrize("content", [None, [], "x", 3])
def test_a_file_that_holds_no_object(content: Any) -> None:
    with pytest.raises(CannotSize, match="not an object"):
        read_carrier(content)


def test_a_quantised_carrier_is_read() -> None:
    found = read_carrier({**QWEN3, "quantization_config": {"quant_method": "fp8"}})
    assert found.quantization == "quantization_config.quant_method = 'fp8'"


def test_it_is_an_error_that_modules_report() -> None:
    assert issubclass(CannotSize, VoicesError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(key=st.sampled_from(sorted({*QWEN3, *MISTRAL, "text_config", "rope_scaling", "layer_types"})), value=JSON)
def test_no_value_of_any_key_is_a_traceback(key: str, value: Any) -> None:
    for base in (QWEN3, QWEN2, MISTRAL, LLAMA):
        try:
            carrier = read_carrier({**base, key: value})
        except CannotSize as error:
            assert len(str(error)) < 300
        else:
            assert carrier.layers == len(carrier.windows) > 0 and carrier.rope_rows > 0 and carrier.rotary_size > 0
