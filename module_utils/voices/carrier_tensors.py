"""A carrier's own modules: the names and sizes that an adapter's tensors must fit. Pure.

Names come from the carrier's safetensors, which are those of its own modules; where it has none, or its weights are
quantised and packed, sizes come from config.json for the families that the sizing knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .carrier_config import FAMILIES, CannotSize, Carrier, read_carrier

#: (out features, in features) of a linear layer; (vocabulary, hidden size) of an embedding; None: not told.
Size = tuple[int, int] | None

EMBEDDING_NAMES = ("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "embedding")
#: A two-dimensional weight of these types has the module's own shape. Packed ones (U8, I32) have not.
_PLAIN = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_PACKED = (".qweight", ".weight_packed")
_MOST_DIGITS = 6  # of a layer's number
_TOWER = re.compile(r"(^|\.)(visual|vision_\w+|audio_\w+|multi_modal_projector|mm_projector|image_\w+)(\.|$)")
_MULTIMODAL = ("text_config", "vision_config", "audio_config", "thinker_config")


@dataclass(frozen=True)
class CarrierModules:
    """What an adapter is compared with.

    ``linears`` and ``embeddings`` map module names (``model.layers.0.self_attn.q_proj``) to sizes, ``others`` are its
    modules that are neither. ``embedding_modules`` are the last names of embeddings that take LoRA, None: not known.
    ``known`` is false where nothing tells the modules' names.
    """

    known: bool
    linears: Mapping[str, Size] = field(default_factory=dict)
    embeddings: Mapping[str, Size] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    embedding_modules: frozenset[str] | None = None
    multimodal: bool = False
    architecture: str = ""
    why_unknown: str = ""
    names: tuple[str, ...] = ()
    _tails: dict[str, str] = field(default_factory=dict, init=False, compare=False)
    _layers: dict[str, int] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        for name in (*self.embeddings, *self.linears):
            if not is_tower(name):
                self._tails.setdefault(tail(name), name)
        for name in self.linears:
            if (split := layer_of(name)) and not is_tower(name):
                self._layers[split[0]] = max(self._layers.get(split[0], 0), split[1] + 1)

    def size(self, module: str) -> Size:
        return self.linears.get(module) or self.embeddings.get(module)

    def by_tail(self, module: str) -> str | None:
        """The module whose name ends alike: the same layer number and what follows, whatever stands before."""
        return self._tails.get(tail(module))

    def layers(self, stem: str) -> int:
        """How many layers there are below ``stem`` (``model.layers``)."""
        return self._layers.get(stem, 0)

    @property
    def stems(self) -> tuple[str, ...]:
        return tuple(self._layers)


def layer_of(module: str) -> tuple[str, int, str] | None:
    """(stem, number, rest) of ``model.layers.3.mlp.up_proj``: ("model.layers", 3, "mlp.up_proj"). None without one."""
    pieces = module.split(".")
    for at, piece in enumerate(pieces[1:-1], start=1):
        if piece.isascii() and piece.isdigit() and len(piece) <= _MOST_DIGITS and pieces[at - 1]:
            return ".".join(pieces[:at]), int(piece), ".".join(pieces[at + 1 :])
    return None


def tail(module: str) -> str:
    """``layers.3.mlp.up_proj`` of ``model.layers.3.mlp.up_proj``, ``lm_head`` of ``model.lm_head``."""
    split = layer_of(module)
    if split is None:
        return module.rpartition(".")[2]
    stem, number, rest = split
    return f"{stem.rpartition('.')[2]}.{number}.{rest}"


def is_tower(module: str) -> bool:
    """Whether the module belongs to a vision or audio tower or its connector."""
    return _TOWER.search(module) is not None


def carrier_modules(
    config: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] | None,
    *,
    names: tuple[str, ...] = (),
    embedding_modules: Mapping[str, Any] | None = None,
) -> CarrierModules:
    """The modules of a carrier with this config.json and these tensors {name: (dtype, shape)}, None without any.

    ``names`` are the names by which adapters may call it. ``embedding_modules`` is the engine's own word, if given.
    """
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    architecture = first if isinstance(first, str) else ""
    why, shape = "", None
    try:
        shape = read_carrier(config)
    except CannotSize as error:
        why = str(error).removeprefix("cannot size this: ")
    linears, embeddings, others = _from_tensors(tensors or {})
    if shape is not None:
        # The weights' own shapes go first; the config fills in what quantised or absent weights do not tell.
        from_config = _from_config(shape)
        embed = next(iter(embeddings), "model.embed_tokens")
        head = {"lm_head": (shape.vocab, shape.hidden)}
        sizes = {name: size for name, size in linears.items() if size is not None}
        linears = {**({**from_config, **head} if not tensors else {**head, **linears}), **sizes}
        linears = {name: size or from_config.get(name) for name, size in linears.items()}
        embeddings = {embed: (shape.vocab, shape.hidden), **{k: v for k, v in embeddings.items() if v}}
    elif embeddings and "lm_head" not in linears:
        linears["lm_head"] = next(iter(embeddings.values()))
    takes: frozenset[str] | None = None
    if embedding_modules is not None:
        takes = frozenset(map(str, embedding_modules))
    elif architecture in FAMILIES:
        takes = frozenset(("embed_tokens", "lm_head") if FAMILIES[architecture].lora_embeddings else ())
    return CarrierModules(
        known=bool(linears),
        linears=linears,
        embeddings=embeddings,
        others=others,
        embedding_modules=takes,
        multimodal=any(isinstance(config.get(key), Mapping) for key in _MULTIMODAL),
        architecture=architecture,
        why_unknown=why or "the carrier has no safetensors",
        names=names,
    )


def _from_tensors(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
) -> tuple[dict[str, Size], dict[str, Size], frozenset[str]]:
    """Linear layers, embeddings and other modules, from a checkpoint's tensors."""
    linears: dict[str, Size] = {}
    embeddings: dict[str, Size] = {}
    others: set[str] = set()
    for name, (dtype, shape) in tensors.items():
        suffix = next((end for end in (".weight", *_PACKED) if name.endswith(end)), "")
        module = name.removesuffix(suffix)
        if not suffix:
            continue
        if len(shape) != 2:
            others.add(module)
            continue
        size = (shape[0], shape[1]) if suffix == ".weight" and dtype in _PLAIN else None
        target = embeddings if module.rpartition(".")[2] in EMBEDDING_NAMES else linears
        target[module] = size
    return linears, embeddings, frozenset(others)


def _from_config(carrier: Carrier) -> dict[str, Size]:
    """The linear layers of a dense decoder as the families of carrier_config name them."""
    q, kv = carrier.heads * carrier.head_size, carrier.kv_heads * carrier.head_size
    hidden, inner = carrier.hidden, carrier.intermediate
    layer: dict[str, tuple[int, int]] = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {f"model.layers.{n}.{name}": size for n in range(carrier.layers) for name, size in layer.items()}
