"""Buffers that vLLM 0.26.0's V2 model runner holds for each sequence of a batch. Pure.

v1/worker/gpu/sample/penalties.py, logit_bias.py, bad_words.py and logprob.py, and v1/worker/gpu/structured_outputs.py.
The tokens of the sequences themselves lie in host memory (v1/worker/gpu/states.py, uva_instead_of_gpu).
"""

from __future__ import annotations

from .sizing_allocator import LoadAllocator
from .sizing_flags import EngineFlags
from .sizing_weights import Shard

_I32_BYTES = 4
#: int32 or float32 elements of a sequence: logit_bias's token ids (allowed, biased), biases and stop ids; bad words and
#: their offsets; token ids for logprobs.
_ROWS = (1024, 1024, 1024, 128, 1024, 129, 128)


def sequence_bytes(shard: Shard) -> tuple[int, ...]:
    """Bytes of one sequence in each buffer, in the order in which they are made; none before the last stage."""
    if not shard.last:
        return ()
    mask = -(-shard.carrier.vocab // 32) * _I32_BYTES  # one bit a token: what the prompt holds, what a grammar allows
    counts = shard.carrier.vocab * _I32_BYTES  # how often each token was said
    return (mask, counts, *(elements * _I32_BYTES for elements in _ROWS), mask)


def allocate_buffers(shard: Shard, flags: EngineFlags, allocator: LoadAllocator) -> int:
    """Make the buffers of max-num-seqs sequences after the model; returns their bytes."""
    total = 0
    for size in sequence_bytes(shard):
        allocator.allocate(size * flags.max_num_seqs)
        total += size * flags.max_num_seqs
    return total
