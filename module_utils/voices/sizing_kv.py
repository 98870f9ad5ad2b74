"""The KV cache: bytes a token, and how many tokens a pin holds, as vLLM 0.26.0 counts them. Pure.

v1/core/kv_cache_utils.py: get_kv_cache_config_from_groups (blocks = pin // page // layers), get_kv_cache_capacity (the
engine's line "GPU KV cache size"), _get_kv_cache_groups_uniform_page_size (layers with and without a window share
tensors, so a carrier that mixes them has fewer of these than layers). v1/kv_cache_interface.py: pages, and what one
request needs at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from .carrier_config import CannotSize, Carrier
from .sizing_flags import EngineFlags
from .sizing_weights import Shard


@dataclass(frozen=True)
class KvCache:
    """One card's share: ``tensors`` of ``tensor_bytes`` each; ``tokens`` and ``concurrency`` are what the engine logs.

    ``request_blocks`` is what one request of the longest length needs; with fewer ``blocks`` the engine refuses to
    start.
    """

    bytes_a_token: int
    blocks: int
    request_blocks: int
    tokens: int
    concurrency: float
    tensors: int
    tensor_bytes: int
    block_bytes: int
    max_model_len: int

    @property
    def cache_bytes(self) -> int:
        """All tensors."""
        return self.tensors * self.tensor_bytes

    @property
    def fits_one_request(self) -> bool:
        """Whether vLLM starts with this pin."""
        return self.blocks >= self.request_blocks


def page_bytes(shard: Shard, flags: EngineFlags) -> int:
    """Keys and values of one block in one layer."""
    return 2 * shard.kv * flags.kv_dtype_bytes * flags.block_size


def plan_cache(stages: tuple[Shard, ...], flags: EngineFlags) -> KvCache:
    """The cache of the fullest pipeline stage; every stage has as many blocks as the one that has fewest.

    Raises CannotSize without a pin: what the engine takes then depends on what it finds free.
    """
    carrier = stages[0].carrier
    most = max(stage.layers for stage in stages)
    page = page_bytes(stages[0], flags)
    group, groups = _groups(carrier)
    if len(stages) > 1 and len(groups) > 1:
        raise CannotSize(f"layer_types mixes windows, and pipeline-parallel-size = {len(stages)}")
    tensors = group if len(groups) > 1 else most
    if flags.kv_blocks is not None:
        blocks = flags.kv_blocks
    elif flags.kv_pin_bytes is not None:
        blocks = flags.kv_pin_bytes // page // tensors
    else:
        raise CannotSize(
            "the engine's flag kv-cache-memory-bytes is not set: without a pin the KV cache takes what it finds free"
        )
    longest = flags.max_model_len
    if longest < 0:
        longest = _fitted(carrier, groups, flags, blocks)
    request = _request_blocks(groups, flags, longest)
    concurrency = blocks / request
    return KvCache(
        bytes_a_token=page * most // flags.block_size,
        blocks=blocks,
        request_blocks=request,
        tokens=int(concurrency * longest),
        concurrency=concurrency,
        tensors=tensors,
        tensor_bytes=page * blocks,
        block_bytes=page * tensors,
        max_model_len=longest,
    )


def _groups(carrier: Carrier) -> tuple[int, list[int | None]]:
    """Layers of a group, and the window of each group."""
    counts: dict[int | None, int] = {}
    for window in carrier.windows:
        counts[window] = counts.get(window, 0) + 1
    least, most = min(counts.values()), max(counts.values())
    group = most if most < least * 1.5 else least
    return group, [window for window, count in counts.items() for _ in range(-(-count // group))]


def _request_blocks(groups: list[int | None], flags: EngineFlags, longest: int) -> int:
    size = flags.block_size
    needed = 0
    for window in groups:
        if window is None:
            needed += -(-longest // size)
        else:
            needed += -(-min(window - 1 + flags.in_flight_tokens, longest) // size) + 1
    return needed


def _fitted(carrier: Carrier, groups: list[int | None], flags: EngineFlags, blocks: int) -> int:
    """The longest request up to the carrier's own limit that ``blocks`` hold (_auto_fit_max_model_len)."""
    low, high = 1, carrier.longest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _request_blocks(groups, flags, middle) <= blocks else (low, middle - 1)
    return low
