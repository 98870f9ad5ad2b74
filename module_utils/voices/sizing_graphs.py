"""CUDA graphs: how many an engine captures, and what their memory pool and the warm-up after it keep. Pure.

vLLM 0.26.0: config/vllm.py, _set_cudagraph_sizes, for the sizes; v1/worker/gpu/cudagraph_utils.py, _init_candidates,
for the graphs; v1/worker/gpu/lora_utils.py, get_lora_capture_cases: with LoRA every graph is captured with and without
adapters. v1/attention/backends/flash_attn.py: FlashAttention 3 (Hopper) splits a decode into up to 32 parts, whose
float32 results need room for every token of the largest captured batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from .carrier_config import CannotSize
from .sizing_allocator import LARGE_SEGMENT_BYTES, MIB, SMALL_SEGMENT_BYTES, segment_bytes
from .sizing_flags import EngineFlags
from .sizing_weights import Shard

LARGEST_DEFAULT_SIZE = 512
ATTENTION_SPLITS = 32
_F32_BYTES = 4
#: With more sequences than these the graphs' pool keeps attention's parts twice; measured at 256 and 512.
_WIDE_DECODE = 256
#: Of an H200; what has more takes a few rows more.
_MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Graphs:
    """``plain`` graphs without adapters and ``adapted`` ones; ``largest`` tokens, ``largest_decode`` sequences."""

    plain: int
    adapted: int
    largest: int
    largest_decode: int


def capture_sizes(flags: EngineFlags) -> list[int]:
    """The batch sizes to capture, in tokens, ascending; empty without graphs."""
    if flags.graph_mode == "none":
        return []
    tokens = flags.max_num_batched_tokens
    if flags.capture_sizes is not None:
        return sorted({size for size in flags.capture_sizes if size <= tokens})
    most = min(tokens, flags.max_capture_size or min(2 * flags.max_num_seqs, LARGEST_DEFAULT_SIZE))
    sizes = list(range(1, min(most, 32) + 1)) if flags.interactive else [size for size in (1, 2, 4) if size <= most]
    sizes += range(8, min(most + 1, 256), 8)
    sizes += range(256, most + 1, 16)
    return sorted({*sizes, *([tokens] if tokens <= most else [])})


def plan_graphs(flags: EngineFlags) -> Graphs:
    """The graphs that are captured. Raises CannotSize for capture sizes that vLLM refuses."""
    sizes = capture_sizes(flags)
    if flags.graph_mode != "none" and not sizes:
        raise CannotSize("the engine's flag cudagraph-capture-sizes names no size up to max-num-batched-tokens")
    decode = [size for size in sizes if size <= flags.max_num_seqs]
    mixed = 0 if flags.graph_mode == "full_decode_only" else len(sizes)
    # "full" asks of FlashAttention what it cannot do for mixed batches, and becomes full_and_piecewise.
    full = 0 if flags.graph_mode in ("none", "piecewise") else len(decode)
    return Graphs(
        plain=mixed + full,
        adapted=(mixed + full) * _lora_cases(flags),
        largest=max(sizes, default=0),
        largest_decode=max(decode, default=0) if full else 0,
    )


def pool_bytes(shard: Shard, flags: EngineFlags, graphs: Graphs, workspace_bytes: int, splits: bool) -> int:
    """What the graphs' own pool reserves: a cuBLAS workspace, activations of the largest batch, attention's parts."""
    if not graphs.plain:
        return 0
    activations = 2 * graphs.largest * _token_bytes(shard, flags.dtype_bytes)
    segments = -(-activations // LARGE_SEGMENT_BYTES) * LARGE_SEGMENT_BYTES
    parts = split_bytes(shard, graphs.largest_decode) if splits else 0
    own = segment_bytes(parts) if parts >= LARGE_SEGMENT_BYTES // 2 else 0
    if graphs.largest_decode > _WIDE_DECODE:
        own *= 2  # seen: two blocks of 256 MiB with 512 sequences, one of 128 with 256
    return workspace_bytes + segments + own + 2 * SMALL_SEGMENT_BYTES


def warm_up_bytes(shard: Shard, flags: EngineFlags, graphs: Graphs, cache_blocks: int, splits: bool) -> int:
    """What the warm-up after the capture leaves (v1/worker/gpu/warmup.py).

    It is a prefill of two tokens for as many sequences as the cache has blocks for. One that is as large as a captured
    batch leaves the attention's parts, and beside them the logits (as they come and in float32) and the sampler's
    buffer, where they do not fit into the parts' block: seen for 64, 128 and 256 sequences. A larger one runs without a
    graph: it leaves the logits twice as they come, once in float32, and its MLP's activations.
    """
    if not shard.last:
        return 0
    seqs = max(1, min(flags.max_num_seqs, flags.max_num_batched_tokens // 2, cache_blocks - 1))
    once, exact = (segment_bytes(seqs * shard.carrier.vocab * size) for size in (flags.dtype_bytes, _F32_BYTES))
    if not graphs.largest_decode:
        return once + exact
    if 2 * seqs > graphs.largest:
        return 2 * once + exact + 2 * seqs * 4 * shard.inner * flags.dtype_bytes
    parts = split_bytes(shard, 2 * seqs) if splits else 0
    if not parts:
        return once + exact
    # What is freed first serves what comes next, where it fits: the logits lie in the parts' block, and so does the
    # buffer of top-k and top-p (v1/sample/ops/topk_topp_triton.py: a float32 row for each sequence, their number
    # rounded up to a power of two, and for each multiprocessor at most).
    row = shard.carrier.vocab * _F32_BYTES
    raw, whole = seqs * shard.carrier.vocab * flags.dtype_bytes, seqs * row
    buffer = min(1 << (seqs - 1).bit_length(), _MULTIPROCESSORS) * row
    beside = raw + whole > parts
    left = parts if beside else parts - whole
    taken = segment_bytes(parts) + (exact if beside else 0)
    return max(once + exact, taken + (segment_bytes(buffer) if buffer > left else 0))


def split_bytes(shard: Shard, tokens: int) -> int:
    """Attention's parts for ``tokens``: [splits, heads, tokens, head size] in float32."""
    return ATTENTION_SPLITS * shard.q * tokens * _F32_BYTES


def activation_bytes(shard: Shard, flags: EngineFlags) -> int:
    """What the first full prefill adds, an upper estimate.

    The allocator keeps up to three blocks for the MLP's widest tensor, because prefills of different lengths do not
    fit into each other's, and one or two for each of the others. Measured for Qwen3-4B: 1,366 MiB of 1,661 at 8,192
    tokens, 436 of 635 at 2,048.
    """
    carrier = shard.carrier
    widths = 3 * 2 * shard.inner + shard.inner + (shard.q + 2 * shard.kv) + 2 * shard.q + 2 * carrier.hidden
    sampler = 2 * min(flags.max_num_seqs, flags.max_num_batched_tokens) * carrier.vocab * _F32_BYTES
    return flags.max_num_batched_tokens * widths * flags.dtype_bytes + (sampler if shard.last else 0) + 256 * MIB


def _lora_cases(flags: EngineFlags) -> int:
    if not flags.lora:
        return 0
    if not flags.specialize_active:
        return 1
    most = flags.slots + 1  # powers of two up to it, and itself (lora/utils.py, get_captured_lora_counts)
    return most.bit_length() + (0 if most & (most - 1) == 0 else 1)


def _token_bytes(shard: Shard, dtype_bytes: int) -> int:
    """Activations of one token that live at once: three of the MLP's width, packed attention, three hidden."""
    return (3 * shard.inner + shard.q + 2 * shard.kv + 3 * shard.carrier.hidden) * dtype_bytes
