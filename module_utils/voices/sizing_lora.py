"""LoRA: the slots that an engine allocates at its start, and the size of an adapter. Pure.

vLLM 0.26.0 wraps every linear layer (lora/model_manager.py, _create_lora_modules) and stacks A and B for max-loras
adapters of max-lora-rank, whatever the adapters' own rank: lora/layers/base_linear.py and column_parallel_linear.py.
Where the model's class names embedding_modules, the embedding has a pair, the logits processor one, and a tied output
embedding that is the input embedding's own module is wrapped a second time, which makes three.

Under tensor parallelism A of a column-parallel layer is whole and B a share; A of a row-parallel layer is a share and B
whole; fully-sharded-loras shares the other side too. Pairs of embeddings are whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .carrier_config import CannotSize, Carrier
from .sizing_allocator import LoadAllocator
from .sizing_flags import EngineFlags
from .sizing_weights import Shard

#: lora/layers/logits_processor.py raises beyond it.
LARGEST_VOCAB = 258_048

#: Packed layer -> the adapter's own names of its slices.
PACKED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
LINEARS = tuple(name for names in PACKED.values() for name in names)


def slot_elements(shard: Shard, flags: EngineFlags) -> Iterator[int]:
    """Elements of one slot's tensors of this card, in the order in which they are made: A and B of each module.

    Raises CannotSize for a vocabulary that vLLM refuses with LoRA.
    """
    carrier, rank = shard.carrier, flags.rank
    embeds = carrier.family.lora_embeddings
    if embeds and carrier.vocab > LARGEST_VOCAB:
        raise CannotSize(f"vocab_size = {carrier.vocab}: with LoRA vLLM takes at most {LARGEST_VOCAB}")
    if flags.fully_sharded and (rank % shard.tp or carrier.hidden % shard.tp):
        raise CannotSize(f"max-lora-rank = {rank} with fully-sharded-loras is no multiple of {shard.tp} cards")
    pair = (carrier.vocab * rank, carrier.hidden * rank)
    if embeds and shard.embeds and _wanted(("embed_tokens",), flags):
        yield from pair
    for _layer in range(shard.layers):
        yield from _layer_elements(shard, flags)
    if embeds and shard.last and _wanted(("lm_head",), flags):
        if carrier.tied and carrier.family.shared_head:
            yield from pair
        yield from (pair[1], pair[0])


def allocate_slots(shard: Shard, flags: EngineFlags, allocator: LoadAllocator) -> int:
    """Make every slot after the weights; returns the bytes of the tensors, all slots together."""
    total = 0
    for elements in slot_elements(shard, flags):
        size = elements * flags.slots * flags.lora_dtype_bytes
        allocator.allocate(size)
        total += size
    return total


def adapter_bytes(carrier: Carrier, rank: int, *, targets: Collection[str] = LINEARS, dtype_bytes: int = 2) -> int:
    """The tensors of an adapter of ``rank`` on ``targets`` (the adapter's names) in every layer, without its header.

    Raises CannotSize for a target that is no linear layer of the carrier.
    """
    sizes = _linears(carrier)
    unknown = sorted(set(targets) - set(sizes))
    if unknown:
        raise CannotSize(f"target module {unknown[0]!r}; a carrier's linear layers are {', '.join(sizes)}")
    return carrier.layers * rank * dtype_bytes * sum(sum(sizes[name]) for name in set(targets))


def _linears(carrier: Carrier) -> dict[str, tuple[int, int]]:
    """In and out features of each linear layer."""
    hidden, inner = carrier.hidden, carrier.intermediate
    q, kv = carrier.heads * carrier.head_size, carrier.kv_heads * carrier.head_size
    return {
        "q_proj": (hidden, q),
        **dict.fromkeys(("k_proj", "v_proj"), (hidden, kv)),
        "o_proj": (q, hidden),
        **dict.fromkeys(("gate_proj", "up_proj"), (hidden, inner)),
        "down_proj": (inner, hidden),
    }


def _layer_elements(shard: Shard, flags: EngineFlags) -> Iterator[int]:
    hidden, rank = shard.carrier.hidden, flags.rank
    shared_rank = rank // shard.tp if flags.fully_sharded else rank
    row_out = hidden // shard.tp if flags.fully_sharded else hidden
    outputs = {"qkv_proj": (shard.q, shard.kv, shard.kv), "gate_up_proj": (shard.inner, shard.inner)}
    inputs = {"o_proj": shard.q, "down_proj": shard.inner}
    for module, slices in PACKED.items():
        if not _wanted((module, *slices), flags):
            continue
        if module in outputs:
            yield from (shared_rank * hidden for _ in slices)
            yield from (size * rank for size in outputs[module])
        else:
            yield rank * inputs[module]
            yield row_out * rank


def _wanted(names: Collection[str], flags: EngineFlags) -> bool:
    """lora/utils.py, is_in_target_modules: a packed layer is wrapped when one of its slices is wanted."""
    return flags.lora_targets is None or any(name in flags.lora_targets for name in names)
