"""What a person should know of a computed size: why it may not hold, and what the engine will say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .carrier_config import CannotSize, Carrier, shown
from .sizing_flags import EngineFlags
from .sizing_kv import KvCache

#: The most sequences for which the sizing was judged; an engine's own default on a large card is 1,024.
MOST_SEQUENCES = 256
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def is_on(environment: Mapping[str, Any], name: str, default: str = "0") -> bool:
    """Whether an environment variable says 1, as vLLM reads it (envs.py)."""
    return str(environment.get(name, default)).strip().lower() in ("1", "true")


def unusual(carrier: Carrier, flags: EngineFlags, environment: Mapping[str, Any]) -> list[str]:
    """Why the measured allowances may not hold for this seat; empty for a seat like the measured ones.

    Raises CannotSize for an environment that changes the split of a carrier.
    """
    if environment.get("VLLM_PP_LAYER_PARTITION") and flags.pp > 1:
        raise CannotSize(f"VLLM_PP_LAYER_PARTITION = {shown(environment['VLLM_PP_LAYER_PARTITION'])}")
    found = [
        f"{name} is set; other settings of the allocator were not measured"
        for name in _ALLOCATOR_SETTINGS
        if environment.get(name)
    ]
    if not is_on(environment, "VLLM_USE_V2_MODEL_RUNNER", "1"):
        found.append("VLLM_USE_V2_MODEL_RUNNER is 0; the V1 model runner was not measured")
    if carrier.quantization:
        found.append("a quantised carrier was not measured; its kernels keep more than its tensors")
    if flags.tp > 1 or flags.pp > 1:
        found.append("several cards were not measured; NCCL's buffers are not in the size")
    if flags.max_num_seqs > MOST_SEQUENCES:
        found.append(
            f"max-num-seqs {flags.max_num_seqs} was measured once, and not to 40 MiB; a seat of voices does with "
            f"{MOST_SEQUENCES} or fewer (engine_flags: max-num-seqs)"
        )
    if len(set(carrier.windows)) > 1:
        found.append("a carrier that mixes attention windows was not measured")
    return found


def cache_notes(cache: KvCache, flags: EngineFlags) -> list[str]:
    """What vLLM's refusal would say (v1/core/kv_cache_utils.py, _check_enough_kv_cache_memory), with the fix."""
    if cache.fits_one_request:
        return []
    return [
        f"vLLM will refuse to start: one request of {cache.max_model_len:,} tokens needs {cache.request_blocks:,}"
        f" blocks of {flags.block_size} tokens and the pin holds {cache.blocks:,}; raise kv-cache-memory-bytes to "
        f"{cache.request_blocks * cache.block_bytes:,} or lower max-model-len"
    ]


def tensor_notes(weight_bytes: int, flags: EngineFlags, tensor_bytes: int | None) -> list[str]:
    """A checkpoint of other bytes than its config says is stored in another type, or is not this carrier's."""
    if tensor_bytes is None or flags.tp * flags.pp > 1 or abs(tensor_bytes - weight_bytes) <= weight_bytes // 50:
        return []
    return [f"the files hold {tensor_bytes:,} bytes of tensors, the engine will hold {weight_bytes:,}"]
