"""What a carrier's config.json says of its shape, for sizing. Pure.

Read is what vLLM 0.26.0's own model classes read (model_executor/models/qwen3.py, qwen2.py, llama.py, mistral.py), with
the defaults of the configuration classes behind them. Any other carrier is refused by the key and value that rules it
out: a number that may be wrong by gigabytes is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .plan import VoicesError

#: Beyond these no model exists; a larger number is a damaged file.
_LARGEST = {"num_hidden_layers": 2_000, "vocab_size": 2**24, "max_position_embeddings": 2**28}
_LARGEST_SIZE = 2**20
_SHOWN = 60


class CannotSize(VoicesError):
    """This cannot be sized, and why: the text names the key (or flag), its value, and what would help."""

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot size this: {why}")


@dataclass(frozen=True)
class Family:
    """What a model class of vLLM adds to its config.json.

    ``head_size`` stands where the config has none (0: hidden size / heads). ``lora_embeddings``: LoRA slots also for
    the embeddings (``embedding_modules`` of the class). ``shared_head``: a tied output embedding is the input
    embedding's own module, so that LoRA wraps it a second time. ``window`` is the sliding window where the config names
    none.
    """

    name: str
    head_size: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False
    lora_embeddings: bool = False
    shared_head: bool = False
    window: int | None = None


_LLAMA = Family("llama", lora_embeddings=True)

FAMILIES: Mapping[str, Family] = {
    "Qwen3ForCausalLM": Family("qwen3", head_size=128, qk_norm=True, lora_embeddings=True, shared_head=True),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, shared_head=True),
    "LlamaForCausalLM": _LLAMA,
    "LLaMAForCausalLM": _LLAMA,
    "MistralForCausalLM": Family("mistral", window=4096),
}

#: Keys that rule a config out, whatever else it says, and what they mean.
_RULED_OUT = {
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "moe_intermediate_size": "a mixture of experts",
    "kv_lora_rank": "latent attention (MLA)",
    "linear_num_key_heads": "linear attention",
    "mamba_d_state": "a state space model",
    "ssm_cfg": "a state space model",
    "state_size": "a state space model",
    "vision_config": "multimodal, and its vision tower is not sized",
    "audio_config": "multimodal, and its audio tower is not sized",
    "dual_chunk_attention_config": "dual chunk attention",
    "is_encoder_decoder": "an encoder and a decoder",
}


@dataclass(frozen=True)
class Carrier:
    """The shape of a dense decoder. Sizes are elements, not bytes.

    ``rope_rows`` x ``rotary_size`` is the table of rotary embeddings that the engine keeps. ``windows`` has the sliding
    window of each layer, None for full attention. ``dtype`` is the checkpoint's, "" where the config does not say.
    """

    family: Family
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    rope_rows: int
    rotary_size: int
    longest: int
    windows: tuple[int | None, ...]
    dtype: str
    quantization: str


def read_carrier(config: Mapping[str, Any]) -> Carrier:
    """The shape in ``config``, the content of a config.json.

    Raises CannotSize naming the key and value that are missing, no number, or of a model that is not sized.
    """
    if not isinstance(config, Mapping):
        raise CannotSize(f"config.json holds a {type(config).__name__}, not an object")
    family = _family(config)
    text = config.get("text_config")
    if text is not None:
        config = {**config, **_mapping("text_config", text)}
        _refuse_ruled_out(config)
    heads, hidden = positive(config, "num_attention_heads"), positive(config, "hidden_size")
    layers = positive(config, "num_hidden_layers")
    kv_heads = heads if family is _LLAMA and config.get("num_key_value_heads") is None else 0
    kv_heads = kv_heads or positive(config, "num_key_value_heads")
    if heads % kv_heads:
        raise CannotSize(f"num_attention_heads = {heads} is no multiple of num_key_value_heads = {kv_heads}")
    head_size = _head_size(config, family, hidden, heads)
    rows, longest, rotary = _rope(config, head_size)
    attention_bias = flag(config, "attention_bias") or (family is _LLAMA and flag(config, "bias"))
    qkv_bias = flag(config, "qkv_bias") if family is _LLAMA and "qkv_bias" in config else attention_bias
    return Carrier(
        family=family,
        layers=layers,
        hidden=hidden,
        intermediate=positive(config, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocab=positive(config, "vocab_size"),
        tied=flag(config, "tie_word_embeddings"),
        qkv_bias=family.qkv_bias or qkv_bias,
        out_bias=attention_bias and family.name in ("llama", "mistral"),
        mlp_bias=flag(config, "mlp_bias") and family.name in ("llama", "mistral"),
        rope_rows=rows,
        rotary_size=rotary,
        longest=longest,
        windows=_windows(config, family, layers),
        dtype=_dtype(config),
        quantization=_quantization(config),
    )


def positive(config: Mapping[str, Any], key: str) -> int:
    """A whole number above 0. Raises CannotSize naming ``key`` and what it holds instead."""
    if config.get(key) is None:
        raise CannotSize(f"config.json has no {key}")
    value = config[key]
    most = _LARGEST.get(key, _LARGEST_SIZE)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise CannotSize(f"{key} = {shown(value)} is no whole number from 1 to {most}")
    return value


def flag(config: Mapping[str, Any], key: str) -> bool:
    """A boolean, False where it is missing or null."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CannotSize(f"{key} = {shown(value)} is neither true nor false")
    return bool(value)


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_SHOWN:
        return f"a number of more than {_SHOWN} digits"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _family(config: Mapping[str, Any]) -> Family:
    _refuse_ruled_out(config)
    named = config.get("architectures")
    if not isinstance(named, list | tuple) or len(named) != 1 or not isinstance(named[0], str):
        raise CannotSize(f"architectures = {shown(named)} is no list of one name")
    if named[0] not in FAMILIES:
        raise CannotSize(f"architectures = {shown(named[0])}; what is sized: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[named[0]]


def _refuse_ruled_out(config: Mapping[str, Any]) -> None:
    for key, meaning in _RULED_OUT.items():
        if config.get(key) not in (None, False, 0):
            raise CannotSize(f"{key} = {shown(config[key])}: {meaning}")


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CannotSize(f"{key} = {shown(value)} is no object")
    return value


def _head_size(config: Mapping[str, Any], family: Family, hidden: int, heads: int) -> int:
    if config.get("head_dim") is not None:
        return positive(config, "head_dim")
    if family.head_size:
        return family.head_size
    if hidden % heads:
        raise CannotSize(f"hidden_size = {hidden} is no multiple of num_attention_heads = {heads}, and no head_dim")
    return hidden // heads


def _rope(config: Mapping[str, Any], head_size: int) -> tuple[int, int, int]:
    """Rows of the rotary table, the longest context that the config allows, and the size of a row."""
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    rope = _mapping(key, config.get(key) or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    positions = positive(config, "max_position_embeddings")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise CannotSize(f"partial_rotary_factor = {shown(share)} is no number above 0 and up to 1")
    rotary = int(head_size * share)
    if not rotary:
        raise CannotSize(f"partial_rotary_factor = {shown(share)} leaves nothing of a head of {head_size}")
    if kind in ("default", "llama3"):
        return positions, positions, rotary
    if kind not in ("linear", "dynamic", "yarn"):
        raise CannotSize(f"{key}.rope_type = {shown(kind)}")
    factor = rope.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 10_000:
        raise CannotSize(f"{key}.factor = {shown(factor)} is no number from 1 to 10000")
    if kind == "yarn":
        positions = positive(rope, "original_max_position_embeddings")
    return int(positions * factor), int(positions * factor), rotary


def _windows(config: Mapping[str, Any], family: Family, layers: int) -> tuple[int | None, ...]:
    """The window of each layer: one for all from ``sliding_window``, unless ``layer_types`` mixes them (vLLM's
    is_interleaved, which keeps the config's window out of the cache)."""
    window = None
    if family.name in ("qwen2", "qwen3"):
        # The configuration classes forget the window unless this is set, and vLLM takes none with it for some layers.
        if flag(config, "use_sliding_window"):
            raise CannotSize(f"use_sliding_window = True: {family.name} with a sliding window")
    elif "sliding_window" not in config:
        window = family.window
    elif config["sliding_window"] not in (None, 0):
        window = positive(config, "sliding_window")
    types = config.get("layer_types")
    if types is None:
        return (window,) * layers
    if not isinstance(types, list | tuple) or len(types) != layers:
        raise CannotSize(f"layer_types = {shown(types)} does not name each of {layers} layers")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise CannotSize(f"layer_types has {shown(kind)}; what is sized: full_attention, sliding_attention")
    if "sliding_attention" in types and window is None:
        raise CannotSize("layer_types has sliding_attention, and there is no sliding_window")
    if "full_attention" in types and "sliding_attention" in types:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    return (window,) * layers


def _dtype(config: Mapping[str, Any]) -> str:
    for key in ("dtype", "torch_dtype"):
        value = config.get(key)
        if isinstance(value, str):
            return value.removeprefix("torch.").lower()
        if value is not None:
            raise CannotSize(f"{key} = {shown(value)} is no name of a data type")
    return ""


def _quantization(config: Mapping[str, Any]) -> str:
    """The checkpoint's quantisation, "" for none."""
    found = config.get("quantization_config")
    if found is None:
        return ""
    method = _mapping("quantization_config", found).get("quant_method")
    return f"quantization_config.quant_method = {shown(method)}"
