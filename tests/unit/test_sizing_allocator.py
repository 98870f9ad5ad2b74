"""torch's caching allocator: what stays reserved for a series of tensors."""

from __future__ import annotations

import pytest
from ansible.module_utils.voices.sizing_allocator import MIB, LoadAllocator, segment_bytes
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("tensor_bytes", "segment"),
    [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 1, 20), (10 * MIB, 10), (10 * MIB + 1, 12), (95 * MIB, 96)],
)
def test_segments(tensor_bytes: int, segment: int) -> None:
    assert segment_bytes(tensor_bytes) == segment * MIB


def kept_mib(*sizes: float) -> float:
    allocator = LoadAllocator()
    for size in sizes:
        allocator.allocate(int(size * MIB))
    return allocator.kept_bytes() / MIB


def test_small_tensors_share_a_segment() -> None:
    assert kept_mib(0.5, 0.5, 0.5, 0.5) == 2
    assert kept_mib(0.5, 0.5, 0.5, 0.5, 0.001) == 4


def test_middle_tensors_share_twenty_mib() -> None:
    assert kept_mib(8, 8) == 20
    assert kept_mib(8, 8, 8) == 40
    assert kept_mib(8, 8, 3.5) == 20


def test_a_large_one_has_its_own() -> None:
    assert kept_mib(47.5, 47.5) == 96


def test_a_freed_large_block_is_not_cut_and_not_wasted_on_small() -> None:
    allocator = LoadAllocator()
    allocator.free(allocator.allocate(64 * MIB))
    assert allocator.kept_bytes() == 0
    allocator.allocate(8 * MIB)  # under max_split_size, the block is over it
    assert allocator.kept_bytes() == 20 * MIB
    allocator.allocate(30 * MIB)  # 34 MiB would be wasted
    assert allocator.kept_bytes() == 50 * MIB
    allocator.allocate(47 * MIB)  # 17 MiB are: as the two first down_proj of Qwen3-4B lie in what its rope left
    assert allocator.kept_bytes() == 114 * MIB


def test_neighbours_are_merged_again() -> None:
    allocator = LoadAllocator()
    blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.free(block)
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.kept_bytes() == 20 * MIB


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=60))
def test_nothing_is_lost(steps: list[tuple[int, bool]]) -> None:
    allocator = LoadAllocator()
    alive: dict[int, int] = {}
    blocks = []
    for size, freed in steps:
        block = allocator.allocate(size)
        assert block.size >= size
        assert block.size < size + 20 * MIB
        if freed:
            allocator.free(block)
        else:
            blocks.append(block)
            alive[block.number] = block.size
    assert len(alive) == len(blocks)  # no block is handed out twice
    assert sum(alive.values()) <= allocator.kept_bytes() <= sum(segment_bytes(size) for size, _ in steps)
    for block in blocks:
        allocator.free(block)
    assert allocator.kept_bytes() == 0
