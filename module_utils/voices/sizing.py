"""What a seat will take on each of its cards, from its carrier's config.json and its engine's flags. Pure.

NVML shows for the engine's process, once it has started:

    resident = weights + LoRA slots + KV cache + CUDA graphs + CUDA context + overhead

The first three are computed to the byte. The overhead is what torch's allocator rounds up (``sizing_allocator``), the
rotary table, the buffers of max-num-seqs sequences, the cuBLAS workspace, what the warm-up leaves, and one measured
number (``sizing_allowance``). The engine's profile run does not count: its memory is given back when the graphs are
captured (v1/worker/gpu/model_runner.py, capture_model). The first full prefill takes it again for good, and that is
``activation_bytes``: ``loaded_bytes`` is what a seat with traffic takes.

Fitted and judged on one H200: docs/decisions/ has the table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .carrier_config import CannotSize, Carrier, read_carrier, shown
from .sizing_allocator import LoadAllocator, segment_bytes
from .sizing_allowance import MIB, CardAllowance, allowance_for, card_for, features
from .sizing_buffers import allocate_buffers
from .sizing_flags import EngineFlags, read_flags
from .sizing_graphs import activation_bytes, plan_graphs, pool_bytes, warm_up_bytes
from .sizing_kv import KvCache, plan_cache
from .sizing_lora import allocate_slots
from .sizing_notes import cache_notes, is_on, tensor_notes, unusual
from .sizing_weights import Shard, allocate_weights, rope_bytes, shards, weight_bytes

__all__ = ["CannotSize", "SeatSize", "requested_bytes", "size_seat"]

_MOST_BYTES = 2**60
#: What the profile run's blocks are larger than the cache tensors cut from them, without graphs (one configuration).
_LEFT_BY_PROFILE_BYTES = 16 * MIB


@dataclass(frozen=True)
class SeatSize:
    """What one card of a seat holds, in bytes (the fullest one, where a pipeline's stages differ).

    ``resident_bytes`` is the sum of weight, lora_slot, kv_cache, graph, context and overhead; ``loaded_bytes`` is that
    and ``activation_bytes``, an upper estimate of what the first full prefill adds. ``kv_tokens`` and ``concurrency``
    are what the engine logs; without ``fits_one_request`` it refuses to start. ``request_bytes`` is what it asks for
    with the utilization in its flags, ``ask_utilization`` the least that asks for ``resident_bytes``; both None without
    a card's total, and the latter where the seat is larger than the card. ``measured``: the allowances hold for this
    engine and kind of seat. ``parts`` splits the overhead, ``notes`` are for people.
    """

    weight_bytes: int
    kv_bytes_a_token: int
    kv_cache_bytes: int
    kv_tokens: int
    concurrency: float
    fits_one_request: bool
    max_model_len: int
    lora_slot_bytes: int
    lora_slots: int
    activation_bytes: int
    graph_bytes: int
    graphs: int
    context_bytes: int
    overhead_bytes: int
    resident_bytes: int
    loaded_bytes: int
    request_bytes: int | None
    ask_utilization: float | None
    engine_version: str
    measured: bool
    notes: tuple[str, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; each ``*_bytes`` has a ``*_mib`` twin, rounded, for people."""
        plain = dataclasses.asdict(self)
        plain["notes"] = list(self.notes)
        plain["concurrency"] = round(self.concurrency, 2)
        for name, value in list(plain.items()):
            if name.endswith("_bytes"):
                plain[f"{name.removesuffix('_bytes')}_mib"] = None if value is None else round(value / MIB)
        return plain


def size_seat(
    config: Mapping[str, Any],
    flags: Mapping[str, Any],
    *,
    engine_version: str,
    cuda_total_bytes: int | None = None,
    card_name: str = "",
    tensor_bytes: int | None = None,
    environment: Mapping[str, Any] | None = None,
) -> SeatSize:
    """The size of a seat on one of its cards.

    ``config`` is the carrier's config.json, ``flags`` are engine.yaml's, ``environment`` the engine's.
    ``cuda_total_bytes`` and ``card_name`` are the card's, as CUDA and NVML give them. ``tensor_bytes`` is the sum over
    the headers of the carrier's safetensors: the weights of a quantised carrier, and a check for any other.

    Raises CannotSize, naming the key or flag and its value, for what is not known to a few MiB.
    """
    total = _checked("cuda_total_bytes", cuda_total_bytes)
    tensors = _checked("tensor_bytes", tensor_bytes)
    carrier = read_carrier(config)
    engine = read_flags(flags, carrier, card_bytes=total, card_name=card_name)
    known = _quantized(carrier, engine, tensors)
    stages = shards(carrier, engine.tp, engine.pp)
    cache = plan_cache(stages, engine)
    card, card_note = card_for(card_name)
    allowance, version_note = allowance_for(engine_version)
    dual = engine.lora and is_on(environment or {}, "VLLM_LORA_ENABLE_DUAL_STREAM")
    sizes = [
        _card(stage, engine, cache, card, engine_version, known, allowance.dual_stream_bytes if dual else 0)
        for stage in stages
    ]
    size = max(sizes, key=lambda one: one.resident_bytes)
    strange = unusual(carrier, engine, environment or {})
    notes = [
        version_note,
        card_note,
        *strange,
        *cache_notes(cache, engine),
        *tensor_notes(size.weight_bytes, engine, tensors),
    ]
    asked = share = None
    if total is not None:
        asked = requested_bytes(total, engine.utilization)
        share = _share_for(size.resident_bytes, total)
        if share is None:
            notes.append(f"needs {size.resident_bytes // MIB} MiB, and the card has {total // MIB}")
    return dataclasses.replace(
        size,
        request_bytes=asked,
        ask_utilization=share,
        measured=not version_note and not strange,
        notes=tuple(note for note in notes if note),
    )


def requested_bytes(cuda_total_bytes: int, utilization: float) -> int:
    """What the engine asks for, and refuses to start without (v1/worker/utils.py, request_memory)."""
    return math.ceil(cuda_total_bytes * utilization)


def _card(
    shard: Shard,
    flags: EngineFlags,
    cache: KvCache,
    card: CardAllowance,
    version: str,
    known_weights: int | None,
    dual_bytes: int,
) -> SeatSize:
    """One stage's card, without what depends on the card's total."""
    allocator = LoadAllocator()
    weights = weight_bytes(shard, flags.dtype_bytes)
    rope = rope_bytes(shard, flags.dtype_bytes)
    if known_weights is None:
        allocate_weights(shard, flags.dtype_bytes, allocator)
    slots = allocate_slots(shard, flags, allocator) if flags.lora else 0
    buffers = allocate_buffers(shard, flags, allocator)
    kept = allocator.kept_bytes()
    if known_weights is not None:
        weights = -(-known_weights * shard.layers // (shard.carrier.layers * shard.tp))
        kept += weights + rope
    graphs = plan_graphs(flags)
    allowance, _note = allowance_for(version)
    counts = features(shard, graphs)
    activation = activation_bytes(shard, flags)
    if dual_bytes:
        activation = activation * 3 // 2  # the second stream keeps blocks of its own: 2,066 MiB against 1,364
    captured = (
        counts["plain_graph_bytes"] * allowance.plain_graph_bytes
        + counts["adapted_graph_bytes"] * allowance.adapted_graph_bytes
        + pool_bytes(shard, flags, graphs, card.workspace_bytes, card.splits)
    )
    parts = {
        "rope_bytes": rope,
        "buffer_bytes": buffers,
        "rounding_bytes": kept - weights - rope - slots - buffers + _cache_rounding(shard, flags, cache),
        "workspace_bytes": card.workspace_bytes,
        "warm_up_bytes": warm_up_bytes(shard, flags, graphs, cache.blocks, card.splits),
        "dual_stream_bytes": dual_bytes,
        # Without a capture nothing gives the profile run's memory back; the KV cache is cut from it.
        "profile_run_bytes": 0 if graphs.plain else _LEFT_BY_PROFILE_BYTES + max(0, activation - cache.cache_bytes),
        "fixed_bytes": allowance.fixed_bytes,
    }
    overhead = sum(parts.values())
    cache_bytes = cache.cache_bytes * shard.layers // max(shard.layers, cache.tensors)
    resident = weights + slots + cache_bytes + captured + card.context_bytes + overhead
    growth = activation
    return SeatSize(
        weight_bytes=weights,
        kv_bytes_a_token=cache.bytes_a_token,
        kv_cache_bytes=cache_bytes,
        kv_tokens=cache.tokens,
        concurrency=cache.concurrency,
        fits_one_request=cache.fits_one_request,
        max_model_len=cache.max_model_len,
        lora_slot_bytes=slots,
        lora_slots=flags.slots if flags.lora else 0,
        activation_bytes=growth,
        graph_bytes=captured,
        graphs=graphs.plain + graphs.adapted,
        context_bytes=card.context_bytes,
        overhead_bytes=overhead,
        resident_bytes=resident,
        loaded_bytes=resident + growth,
        request_bytes=None,
        ask_utilization=None,
        engine_version=version,
        measured=False,
        parts=parts,
        features=counts,
    )


def _cache_rounding(shard: Shard, flags: EngineFlags, cache: KvCache) -> int:
    """Segments of the cache's tensors beyond their bytes, for those that get new ones.

    The first are cut from what the profile run left free, about one input embedding's worth (its copy, on which
    torch.compile tunes; on a start with a warm compile cache the activations, which are as large).
    """
    if not cache.tensor_bytes:
        return 0
    left = shard.vocab * shard.carrier.hidden * flags.dtype_bytes
    new = cache.tensors - min(cache.tensors, left // cache.tensor_bytes)
    fresh = LoadAllocator()
    if new and segment_bytes(cache.tensor_bytes) > 2 * cache.tensor_bytes:
        for _ in range(new):
            fresh.allocate(cache.tensor_bytes)
        return fresh.kept_bytes() - new * cache.tensor_bytes
    return new * (segment_bytes(cache.tensor_bytes) - cache.tensor_bytes)


def _quantized(carrier: Carrier, flags: EngineFlags, tensor_bytes: int | None) -> int | None:
    """The bytes of a quantised carrier's tensors, None for one that is not quantised."""
    if flags.quantization and not carrier.quantization:
        raise CannotSize(f"the engine's flag quantization = {shown(flags.quantization)}: it quantises as it loads")
    if not carrier.quantization:
        return None
    if tensor_bytes is None:
        raise CannotSize(f"{carrier.quantization}: give the bytes of its safetensors' tensors")
    return tensor_bytes


def _share_for(resident_bytes: int, total_bytes: int) -> float | None:
    """The least share with four decimals that asks for ``resident_bytes``; None when all of the card is less."""
    for ten_thousandths in range(-(-resident_bytes * 10_000 // total_bytes), 10_001):
        if requested_bytes(total_bytes, ten_thousandths / 10_000) >= resident_bytes:
            return ten_thousandths / 10_000
    return None


def _checked(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST_BYTES):
        raise CannotSize(f"{name} = {shown(value)} is no number of bytes")
    return value
