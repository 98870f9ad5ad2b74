"""A carrier's tensors on one card, in the order in which vLLM 0.26.0 makes them. Pure.

Sources: model_executor/models/{qwen3,qwen2,llama,mistral}.py for the order and the biases; layers/linear.py for the
tensor parallel split (rows of a column-parallel layer, columns of a row-parallel one; KV heads are whole once there are
fewer of them than cards); layers/vocab_parallel_embedding.py for the padding of the vocabulary to 64;
layers/rotary_embedding/base.py for the table and the float32 tensors that it is made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .carrier_config import CannotSize, Carrier
from .sizing_allocator import Block, LoadAllocator

VOCAB_PADDING = 64
_F32_BYTES = 4


@dataclass(frozen=True)
class Shard:
    """What one card of a seat holds: ``layers`` of the carrier's, with or without its ends, and a share of each.

    Sizes are elements: ``q`` and ``kv`` of this card's query and key outputs, ``inner`` of its share of the MLP.
    """

    carrier: Carrier
    layers: int
    first: bool
    last: bool
    tp: int
    q: int
    kv: int
    inner: int

    @property
    def embeds(self) -> bool:
        """Whether the input embedding is here. A tied one is also on the last stage."""
        return self.first or (self.last and self.carrier.tied)

    @property
    def vocab(self) -> int:
        """Rows of an embedding on this card."""
        return -(-self.carrier.vocab // VOCAB_PADDING) * VOCAB_PADDING // self.tp


def shards(carrier: Carrier, tp: int, pp: int) -> tuple[Shard, ...]:
    """One shard for each pipeline stage; the cards of a stage hold the same.

    Raises CannotSize where vLLM cannot split the carrier so.
    """
    for what, size in (("num_attention_heads", carrier.heads), ("intermediate_size", carrier.intermediate)):
        if size % tp:
            raise CannotSize(f"{what} = {size} is no multiple of tensor-parallel-size = {tp}")
    if max(carrier.kv_heads, tp) % min(carrier.kv_heads, tp) or VOCAB_PADDING % tp:
        raise CannotSize(f"num_key_value_heads = {carrier.kv_heads} and tensor-parallel-size = {tp} do not divide")
    if pp > carrier.layers:
        raise CannotSize(f"pipeline-parallel-size = {pp} is more than num_hidden_layers = {carrier.layers}")
    return tuple(
        Shard(
            carrier=carrier,
            layers=layers,
            first=stage == 0,
            last=stage == pp - 1,
            tp=tp,
            q=carrier.heads // tp * carrier.head_size,
            kv=max(1, carrier.kv_heads // tp) * carrier.head_size,
            inner=carrier.intermediate // tp,
        )
        for stage, layers in enumerate(stage_layers(carrier.layers, pp))
    )


def stage_layers(layers: int, stages: int) -> list[int]:
    """Layers of each pipeline stage (distributed/utils.py, get_pp_indices)."""
    split = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        split[-place] += 1
    return split


def layer_sizes(shard: Shard) -> Iterator[tuple[str, int]]:
    """Name and elements of each tensor of a layer."""
    carrier = shard.carrier
    hidden, packed = carrier.hidden, shard.q + 2 * shard.kv
    yield "qkv_proj", packed * hidden
    if carrier.qkv_bias:
        yield "qkv_proj.bias", packed
    yield "o_proj", hidden * shard.q
    if carrier.out_bias:
        yield "o_proj.bias", hidden
    yield "rotary", 0
    if carrier.family.qk_norm:
        yield "q_norm", carrier.head_size
        yield "k_norm", carrier.head_size
    yield "gate_up_proj", 2 * shard.inner * hidden
    if carrier.mlp_bias:
        yield "gate_up_proj.bias", 2 * shard.inner
    yield "down_proj", hidden * shard.inner
    if carrier.mlp_bias:
        yield "down_proj.bias", hidden
    yield "input_layernorm", hidden
    yield "post_attention_layernorm", hidden


def weight_bytes(shard: Shard, dtype_bytes: int) -> int:
    """Bytes of the tensors alone, with the vocabulary's padding; a tied embedding counts once."""
    carrier = shard.carrier
    embedding = shard.vocab * carrier.hidden
    elements = shard.layers * sum(size for _name, size in layer_sizes(shard))
    elements += embedding if shard.embeds else 0
    elements += embedding if shard.last and not carrier.tied else 0
    elements += carrier.hidden if shard.last else 0
    return elements * dtype_bytes


def rope_bytes(shard: Shard, dtype_bytes: int) -> int:
    """The table of rotary embeddings, one for all layers."""
    return shard.carrier.rope_rows * shard.carrier.rotary_size * dtype_bytes


def allocate_weights(shard: Shard, dtype_bytes: int, allocator: LoadAllocator) -> None:
    """Make every tensor as the model's constructor does, so that ``allocator`` knows what stays reserved."""
    carrier = shard.carrier
    embedding = shard.vocab * carrier.hidden * dtype_bytes
    if shard.embeds:
        allocator.allocate(embedding)
    for layer in range(shard.layers):
        for name, size in layer_sizes(shard):
            if name != "rotary":
                allocator.allocate(size * dtype_bytes)
            elif layer == 0:
                _allocate_rope(shard, dtype_bytes, allocator)
    if not shard.last:
        return
    allocator.allocate(carrier.hidden * dtype_bytes)
    if not (carrier.tied and carrier.family.shared_head):
        head = allocator.allocate(embedding)
        if carrier.tied:  # made, and then given up for the input embedding's weight (UnquantizedEmbeddingMethod)
            allocator.free(head)


def _allocate_rope(shard: Shard, dtype_bytes: int, allocator: LoadAllocator) -> None:
    elements = shard.carrier.rope_rows * shard.carrier.rotary_size
    halves: list[Block] = [allocator.allocate(elements // 2 * _F32_BYTES) for _ in ("freqs", "cos", "sin")]
    whole = allocator.allocate(elements * _F32_BYTES)
    for half in halves:
        allocator.free(half)
    if dtype_bytes != _F32_BYTES:
        allocator.allocate(elements * dtype_bytes)
        allocator.free(whole)
