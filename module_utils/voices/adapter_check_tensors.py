"""The check of an adapter's tensors: pairs, ranks, shapes and types, against carrier and configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .adapter_check_config import Settings, above_seat
from .adapter_check_modules import place
from .adapter_check_names import Part, Whole, read_name
from .adapter_check_patterns import affordable, fits, untried
from .adapter_findings import Finding, found, shown
from .carrier_tensors import CarrierModules, layer_of
from .safetensors_header import Tensor

#: Types that a trained LoRA is saved in. vLLM casts them to its own.
FLOATS = ("BF16", "F16", "F32")


@dataclass
class Pairs:
    """The modules of an adapter: for each the parts A and B that are there, and where the carrier has it ("": not)."""

    parts: dict[str, dict[str, Part]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The largest rank of the tensors themselves, 0 without any."""
        return max(
            (rank for parts in self.parts.values() for part in parts.values() if (rank := rank_of(part))), default=0
        )


def rank_of(part: Part) -> int:
    """The rank that the tensor's shape shows, 0 for a tensor that has not two dimensions."""
    if len(part.shape) != 2:
        return 0
    return part.shape[0] if part.part == "A" else part.shape[1]


def check_tensors(
    tensors: Sequence[Tensor],
    settings: Settings,
    carrier: CarrierModules,
    packed: Mapping[str, Sequence[Any]],
    max_lora_rank: int,
) -> tuple[Pairs, list[Finding]]:
    """The adapter's modules, and every finding of its tensors' names, types and shapes."""
    pairs, findings = Pairs(), []
    for tensor in sorted(tensors, key=lambda one: _in_order(one.name)):
        part = read_name(tensor.name, tensor.dtype, tensor.shape)
        if isinstance(part, Finding):
            findings.append(part)
        elif isinstance(part, Whole):
            findings.append(_whole(part, carrier))
        else:
            findings += _dtype(part)
            findings += _collect(part, pairs, carrier, packed)
    settings, left_out = _afforded(settings, list(pairs.parts))
    findings += left_out
    for module, parts in pairs.parts.items():
        findings += _pair(module, parts, settings, max_lora_rank)
        findings += _shapes(pairs.places[module], parts, carrier)
    if pairs.parts and not carrier.known:
        text = f"{carrier.why_unknown}: {len(pairs.parts)} modules were compared with nothing"
        findings.append(found("shapes-not-checked", text))
    findings += _declared(pairs, settings)
    findings += _layers(pairs, settings, carrier)
    return pairs, findings


def _afforded(settings: Settings, modules: Sequence[str]) -> tuple[Settings, list[Finding]]:
    """The settings without the patterns that would take too long on this many modules."""
    left_out = []
    if not affordable(settings.rank_keys, modules):
        left_out.append(_too_many("rank_pattern", len(settings.rank_keys), modules))
        settings = replace(settings, rank_keys=untried(settings.rank_keys))
    if not affordable(settings.alpha_keys, modules):
        left_out.append(_too_many("alpha_pattern", len(settings.alpha_keys), modules))
        settings = replace(settings, alpha_keys=untried(settings.alpha_keys))
    return settings, left_out


def _too_many(where: str, entries: int, modules: Sequence[str]) -> Finding:
    return found("pattern-not-checked", f"{where}: {entries} entries on {len(modules)} modules")


def _in_order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    return [
        (int(piece), "") if piece.isascii() and piece.isdigit() and len(piece) < 10 else (-1, piece)
        for piece in name.split(".")
    ]


def _collect(
    part: Part, pairs: Pairs, carrier: CarrierModules, packed: Mapping[str, Sequence[Any]]
) -> Iterator[Finding]:
    parts = pairs.parts.setdefault(part.module, {})
    if part.part in parts:
        yield found(
            "duplicate-module", f"{shown(parts[part.part].tensor)} is the same: the last one counts", part.tensor
        )
    parts[part.part] = part
    if not carrier.known:
        pairs.places[part.module] = ""
        return
    where, findings = place(part, carrier, packed)
    if part.module not in pairs.places:  # once a module, not once a tensor
        yield from findings
    pairs.places[part.module] = where


def _dtype(part: Part) -> Iterator[Finding]:
    if part.dtype == "F64":
        yield found("dtype-wide", "float64", part.tensor)
    elif part.dtype not in FLOATS:
        yield found("dtype", f"{part.dtype}; a LoRA is saved in {', '.join(FLOATS)}", part.tensor)


def _pair(module: str, parts: Mapping[str, Part], settings: Settings, max_lora_rank: int) -> Iterator[Finding]:
    """One module's A and B by themselves: both there, one rank, the configuration's rank."""
    if len(parts) < 2:
        there = next(iter(parts.values()))
        other = "B" if there.part == "A" else "A"
        yield found(f"missing-{other.lower()}", f"{shown(module)} has no lora_{other}", there.tensor)
    flat = [part for part in parts.values() if len(part.shape) == 2]
    for part in parts.values():
        if len(part.shape) != 2 and ".experts" not in module:
            yield found("shape-not-2d", f"shape {list(part.shape)}", part.tensor)
    ranks = {part.part: rank_of(part) for part in flat}
    declared = settings.rank_of(module)
    if len(set(ranks.values())) > 1:
        a, b = parts["A"], parts["B"]
        if declared and (a.shape[1] == declared != ranks["A"] or b.shape[0] == declared != ranks["B"]):
            turned = a if a.shape[1] == declared != ranks["A"] else b
            text = f"shape {list(turned.shape)}, and the rank {declared} stands on the wrong side"
            yield found("shape-transposed", text, turned.tensor)
        else:
            text = f"lora_A {list(a.shape)} has rank {ranks['A']}, lora_B {list(b.shape)} rank {ranks['B']}"
            yield found("rank-mismatch", text, a.tensor)
    elif ranks and declared and (rank := next(iter(ranks.values()))) != declared:
        text = f"rank {rank} by its shape, the configuration says {declared}: the engine scales by that"
        yield found("rank-differs", text, flat[0].tensor)
        yield from above_seat(rank, max_lora_rank, flat[0].tensor)


def _shapes(where: str, parts: Mapping[str, Part], carrier: CarrierModules) -> Iterator[Finding]:
    """The sides of A and B that belong to the carrier."""
    if not where:
        return
    size = carrier.size(where)
    if size is None:
        tensor = next(iter(parts.values())).tensor
        yield found("shapes-not-checked", f"the carrier's {where} is packed, and {carrier.why_unknown}", tensor)
        return
    for part in parts.values():
        if len(part.shape) != 2:
            continue
        # An embedding is A: vocabulary -> rank, B: rank -> hidden; a linear layer A: in -> rank, B: rank -> out.
        out, into = (size[1], size[0]) if part.embedding else size
        own, wanted, side = (part.shape[1], into, "in") if part.part == "A" else (part.shape[0], out, "out")
        if own == wanted or _turned(part, wanted):
            continue
        text = f"shape {list(part.shape)}: {own} {side} features, the carrier's {where} has {wanted}"
        yield found("shape-other-carrier", text, part.tensor)


def _turned(part: Part, wanted: int) -> bool:
    """Whether the carrier's side is where the rank should be: ``_pair`` says that it is transposed."""
    return rank_of(part) == wanted


def _whole(part: Whole, carrier: CarrierModules) -> Finding:
    base = carrier.embeddings.get(part.module) or carrier.linears.get(part.module)
    if part.copy and base is not None and tuple(part.shape) == base:
        return found("embedding-copy", f"a weight of shape {list(part.shape)}, as the carrier's", part.tensor)
    than = f", the carrier's is {list(base)}" if base else ""
    return found("embedding-weights", f"a whole weight of shape {list(part.shape)}{than}", part.tensor)


def _declared(pairs: Pairs, settings: Settings) -> Iterator[Finding]:
    """target_modules and the patterns' keys against the modules that have tensors."""
    modules = list(pairs.parts)
    if not modules:
        return
    for where, keys in (("rank_pattern", settings.rank_keys), ("alpha_pattern", settings.alpha_keys)):
        for key, pattern in keys.items():
            if pattern is not None and not any(fits(pattern, module) for module in modules):
                yield found("pattern-unmatched", f"{where} '{shown(key)}' fits none of {len(modules)} modules")
    targets = settings.targets
    if targets is None:
        return
    covered = _covered(modules, targets)
    if not isinstance(targets, re.Pattern):
        ends = {end for module in modules for end in _ends(module)}
        for target in targets:
            if target not in ends:
                yield found("target-absent", f"target module '{shown(target)}' has no tensor")
    elif not covered:
        yield found("target-absent", f"target_modules '{shown(targets.pattern)}' fits no module that has tensors")
        return
    for module in modules:
        if module not in covered:
            yield found("target-undeclared", f"{shown(module)} is none of target_modules")


def _covered(modules: Iterable[str], targets: Sequence[str] | re.Pattern[str]) -> set[str]:
    if isinstance(targets, re.Pattern):
        return {module for module in modules if fits(targets, module)}
    named = set(targets)
    return {module for module in modules if any(end in named for end in _ends(module))}


def _ends(module: str) -> Iterator[str]:
    """By PEFT's rule what a name in a list may be to fit: the whole name, or its end at a dot."""
    yield module
    while module := module.partition(".")[2]:
        yield module


def _layers(pairs: Pairs, settings: Settings, carrier: CarrierModules) -> Iterator[Finding]:
    """Layers without any tensor. A voice that trained one layer alone looks like a whole one to a probe."""
    there: dict[str, set[int]] = {}
    for where in filter(None, pairs.places.values()):
        if split := layer_of(where):
            there.setdefault(split[0], set()).add(split[1])
    for stem, numbers in there.items():
        count = carrier.layers(stem)
        wanted = set(settings.layers) if settings.layers is not None else set(range(count))
        if missing := sorted(wanted - numbers):
            listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            why = "of layers_to_transform" if settings.layers is not None else f"of the carrier's {count}"
            yield found("layers-missing", f"{len(missing)} {why} layers have no tensor: {listed}")
