"""How much device memory torch's CUDA caching allocator keeps for a series of tensors. Pure.

The rules are those of torch 2.11 (c10/cuda/CUDACachingAllocator.cpp; the constants in CUDAAllocatorConfig.h): tensors
come in steps of 512 bytes; up to 1 MiB they share segments of 2 MiB, below 10 MiB segments of 20 MiB, and a larger one
has a segment of its own, in steps of 2 MiB. While vLLM loads a model it sets max_split_size to 20 MiB
(v1/worker/gpu_worker.py, load_model), so that a freed block of at least that size is not cut up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 1024 * 1024
STEP_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
ROUND_LARGE_BYTES = 2 * MIB
MAX_SPLIT_BYTES = 20 * MIB


def segment_bytes(tensor_bytes: int) -> int:
    """The segment that a tensor asks for when no cached block suits it."""
    if tensor_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if tensor_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-tensor_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


@dataclass
class Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbours there, ``number`` makes the order total."""

    size: int
    small: bool
    number: int
    segment: int
    used: bool = True
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[int, int]:
        """Best fit, then first made."""
        return (self.size, self.number)


class LoadAllocator:
    """The allocator while a model is loaded. ``allocate`` and ``free`` in the engine's order, then ``kept_bytes``."""

    def __init__(self) -> None:
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, Block] = {}
        self._segments: dict[int, int] = {}
        self._number = 0

    def allocate(self, tensor_bytes: int) -> Block:
        """A block for a tensor of so many bytes."""
        size = max(STEP_BYTES, -(-tensor_bytes // STEP_BYTES) * STEP_BYTES)
        small = size <= SMALL_BYTES
        block = self._cached(size, small) or self._new(segment_bytes(size), small)
        block.used = True
        rest = block.size - size
        if rest >= STEP_BYTES if small else size < MAX_SPLIT_BYTES and rest > SMALL_BYTES:
            self._cut(block, size, rest)
        return block

    def free(self, block: Block) -> None:
        """Give a tensor's block back to the cache, merged with free neighbours."""
        block.used = False
        for neighbour in (block.after, block.before):
            if neighbour is not None and not neighbour.used:
                self._uncache(neighbour)
                first, second = (block, neighbour) if neighbour is block.after else (neighbour, block)
                first.size += second.size
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                del self._blocks[second.number]
                block = first
        insort(self._free[block.small], block.key)

    def kept_bytes(self) -> int:
        """What stays reserved after empty_cache: every segment in which a tensor lives."""
        return sum(self._segments[number] for number in {one.segment for one in self._blocks.values() if one.used})

    def _cached(self, size: int, small: bool) -> Block | None:
        free = self._free[small]
        place = bisect_left(free, (size, 0))
        if place == len(free):
            return None
        found = free[place][0]
        if not small and (found >= MAX_SPLIT_BYTES if size < MAX_SPLIT_BYTES else found >= size + LARGE_SEGMENT_BYTES):
            return None
        return self._blocks[free.pop(place)[1]]

    def _new(self, size: int, small: bool) -> Block:
        self._number += 1
        block = Block(size, small, self._number, segment=self._number)
        self._blocks[block.number] = block
        self._segments[block.segment] = size
        return block

    def _cut(self, block: Block, size: int, rest: int) -> None:
        self._number += 1
        piece = Block(rest, block.small, self._number, block.segment, used=False, before=block, after=block.after)
        if block.after is not None:
            block.after.before = piece
        block.after, block.size = piece, size
        self._blocks[piece.number] = piece
        insort(self._free[piece.small], piece.key)

    def _uncache(self, block: Block) -> None:
        self._free[block.small].remove(block.key)
