"""Engine flags as sizing needs them: typed, with vLLM 0.26.0's defaults (engine/arg_utils.py). Pure.

Flags that change what is allocated in a way that is not sized are refused by name; all others allocate nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .carrier_config import CannotSize, Carrier
from .sizing_given import MOST_BYTES, Given

GIB = 1024**3
DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
KV_DTYPE_BYTES: Mapping[str, int] = {
    **{"float16": 2, "bfloat16": 2},
    **{"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1},
}
#: vLLM's MaxLoRARanks (config/lora.py).
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
DEFAULT_UTILIZATION = 0.92
#: get_batch_defaults: a card of 70 GiB and more that is no A100 gets larger batches.
LARGE_CARD_BYTES = 70 * GIB
GRAPH_MODES = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")
PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")

#: What these would allocate is not sized, except with one of the values that change nothing.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "speculative-config": ("", {}),
    "cpu-offload-gb": (0, "0"),
    "kv-transfer-config": ("", {}),
    "enable-sleep-mode": (False,),
    "enable-cumem-allocator": (False,),
    "hf-overrides": ("", {}),
    "model-impl": ("auto", "vllm"),
    "runner": ("auto", "generate"),
    "kv-cache-dtype-skip-layers": ("", []),
    "data-parallel-size": (1, "1"),
    "decode-context-parallel-size": (1, "1"),
    "prefill-context-parallel-size": (1, "1"),
    "disable-sliding-window": (False,),
    "disable-hybrid-kv-cache-manager": (False,),
}


@dataclass(frozen=True)
class EngineFlags:
    """What the flags say, with defaults. ``max_model_len`` of -1: the engine fits it to the pin.

    ``kv_pin_bytes`` (kv-cache-memory-bytes) and ``kv_blocks`` (num-gpu-blocks-override) are None where they are not
    set, ``capture_sizes`` for the engine's own list, ``lora_targets`` for every module.
    """

    dtype_bytes: int
    kv_dtype_bytes: int
    quantization: str
    max_model_len: int
    kv_pin_bytes: int | None
    kv_blocks: int | None
    block_size: int
    utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    tp: int
    pp: int
    async_scheduling: bool
    graph_mode: str
    capture_sizes: tuple[int, ...] | None
    max_capture_size: int | None
    interactive: bool
    lora: bool
    rank: int
    slots: int
    lora_dtype_bytes: int
    lora_targets: tuple[str, ...] | None
    fully_sharded: bool
    specialize_active: bool

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that are scheduled and not settled (config/vllm.py, max_in_flight_tokens)."""
        return (self.pp + (1 if self.async_scheduling else 0)) * self.max_num_batched_tokens


def read_flags(
    flags: Mapping[str, Any], carrier: Carrier, *, card_bytes: int | None = None, card_name: str = "", cpu: bool = False
) -> EngineFlags:
    """The flags (kebab-case, or with ``_``) of an engine that serves ``carrier`` on a card of ``card_bytes``.

    Without ``card_bytes`` the defaults of a large card stand. Raises CannotSize naming the flag and its value.
    """
    given = Given(flags)
    for name, harmless in _REFUSED.items():
        if name in given and given.get(name) not in harmless:
            raise given.refusal(name, "changes its memory in ways that are not known here")
    given.default("kv-cache-memory-bytes", given.get("kv-cache-memory"))
    graph_mode = _graphs(given)
    dtype = _dtype(given, carrier)
    lora_dtype = given.choice("lora-dtype", ("auto", "float16", "bfloat16"), "auto")
    longest = given.length("max-model-len", carrier.longest)
    seqs, batch = _batch(given, longest if longest > 0 else carrier.longest, _defaults(card_bytes, card_name, cpu))
    rank = given.whole("max-lora-rank", 16)
    if rank not in RANKS:
        raise given.refusal("max-lora-rank", f"is none of vLLM's: {', '.join(map(str, RANKS))}")
    return EngineFlags(
        dtype_bytes=DTYPE_BYTES[dtype],
        kv_dtype_bytes=_kv_dtype(given, DTYPE_BYTES[dtype]),
        quantization=str(given.get("quantization") or ""),
        max_model_len=longest,
        kv_pin_bytes=given.optional("kv-cache-memory-bytes", MOST_BYTES),
        kv_blocks=given.optional("num-gpu-blocks-override"),
        block_size=given.whole("block-size", 128 if cpu else 16),
        utilization=given.share("gpu-memory-utilization", DEFAULT_UTILIZATION),
        max_num_seqs=seqs,
        max_num_batched_tokens=batch,
        tp=given.whole("tensor-parallel-size", 1),
        pp=given.whole("pipeline-parallel-size", 1),
        async_scheduling=not cpu and given.boolean("async-scheduling", True),
        graph_mode="none" if cpu else graph_mode,
        capture_sizes=given.numbers("cudagraph-capture-sizes"),
        max_capture_size=given.optional("max-cudagraph-capture-size", 2**16),
        interactive=given.choice("performance-mode", PERFORMANCE_MODES, "balanced") == "interactivity",
        lora=given.boolean("enable-lora", False),
        rank=rank,
        slots=given.whole("max-loras", 1),
        lora_dtype_bytes=DTYPE_BYTES[dtype if lora_dtype == "auto" else lora_dtype],
        lora_targets=given.names("lora-target-modules"),
        fully_sharded=given.boolean("fully-sharded-loras", False),
        specialize_active=given.boolean("specialize-active-lora", False),
    )


def _defaults(card_bytes: int | None, card_name: str, cpu: bool) -> tuple[int, int]:
    """max-num-seqs and max-num-batched-tokens of an API server (get_batch_defaults)."""
    if cpu:
        return 128, 2048
    large = (card_bytes is None or card_bytes >= LARGE_CARD_BYTES) and "a100" not in card_name.lower()
    return (1024, 8192) if large else (256, 2048)


def _batch(given: Given, longest: int, defaults: tuple[int, int]) -> tuple[int, int]:
    """Sequences and tokens of a batch (_set_default_max_num_seqs_and_batched_tokens_args)."""
    double = 2 if given.choice("performance-mode", PERFORMANCE_MODES, "balanced") == "throughput" else 1
    seqs = given.whole("max-num-seqs", defaults[0] * double)
    if "max-num-batched-tokens" in given:
        batch = given.whole("max-num-batched-tokens", 0)
    else:
        batch = defaults[1] * double
        if not given.boolean("enable-chunked-prefill", True):
            batch = max(batch, longest)
        batch = min(batch, seqs * longest)
    return seqs if "max-num-seqs" in given else min(seqs, batch), batch


def _dtype(given: Given, carrier: Carrier) -> str:
    """config/model.py, _resolve_auto_dtype: a float32 checkpoint (or one that does not say) is served in bfloat16."""
    name = given.choice("dtype", ("auto", *DTYPE_BYTES), "auto")
    if name != "auto":
        return name
    return "float16" if carrier.dtype in ("float16", "half") else "bfloat16"


def _kv_dtype(given: Given, model_bytes: int) -> int:
    name = given.choice("kv-cache-dtype", ("auto", *KV_DTYPE_BYTES), "auto")
    return model_bytes if name == "auto" else KV_DTYPE_BYTES[name]


def _graphs(given: Given) -> str:
    """The mode of CUDA graphs (config/vllm.py: the optimisation level decides, enforce-eager before it)."""
    for key, value in given.json("compilation-config").items():
        if key not in ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"):
            raise CannotSize(f"the engine's flag compilation-config sets {key!r}: its memory is not known here")
        given.default(key.replace("_", "-"), value)
    level = str(given.get("optimization-level") if "optimization-level" in given else 2).upper().removeprefix("O")
    if level not in ("0", "1", "2", "3"):
        raise given.refusal("optimization-level", "is no level from 0 to 3")
    usual = {"0": "none", "1": "piecewise"}.get(level, "full_and_piecewise")
    mode = given.choice("cudagraph-mode", GRAPH_MODES, usual)
    return "none" if given.boolean("enforce-eager", False) else mode
