"""An adapter's modules against the carrier's own: is there such a module, and what is near when there is not. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from .adapter_check_names import Part, unwrapped
from .adapter_findings import Finding, found, shown
from .carrier_tensors import EMBEDDING_NAMES, CarrierModules, is_tower, layer_of


def place(part: Part, carrier: CarrierModules, packed: Mapping[str, Sequence[Any]]) -> tuple[str, list[Finding]]:
    """The carrier's module that ``part`` belongs to ("" for none), and what is wrong with the name."""
    module = part.module
    if module in carrier.linears or module in carrier.embeddings:
        return module, _applied(part, carrier)
    if module in carrier.others:
        return "", [found("not-linear", f"{shown(module)} has no two-dimensional weight", part.tensor)]
    if is_tower(module) and carrier.multimodal:
        return "", [found("tower-module", f"{shown(module)} is no part of the language model", part.tensor)]
    near = carrier.by_tail(unwrapped(module))
    if near and carrier.multimodal:
        text = f"the carrier's module is {near}; whether the engine renames {shown(module)} is not known"
        return near, [found("prefix-not-checked", text, part.tensor)]
    if near:
        fix = f"rename the tensors: base_model.model.{near}.lora_{part.part}.weight and so on"
        text = f"the carrier's module is {near}, the tensor is for {shown(module)}"
        return "", [found("wrong-prefix", text, part.tensor, fix=fix)]
    return "", [_missing(part, carrier, packed)]


def _applied(part: Part, carrier: CarrierModules) -> list[Finding]:
    """Whether the engine takes LoRA on this module: linear layers always, embeddings where the class says so."""
    last = part.module.rpartition(".")[2]
    if is_tower(part.module):
        return [found("tower-module", f"{shown(part.module)} is no part of the language model", part.tensor)]
    if last not in (*EMBEDDING_NAMES, "lm_head"):
        return []
    if carrier.embedding_modules is None:
        return [found("embedding-not-checked", f"a LoRA on {last} of {carrier.architecture or '?'}", part.tensor)]
    if last in carrier.embedding_modules:
        return []
    named = ", ".join(sorted(carrier.embedding_modules)) or "none"
    text = f"{carrier.architecture} takes LoRA on these embeddings: {named}; the tensor is for {last}"
    return [found("embedding-not-applied", text, part.tensor)]


def _missing(part: Part, carrier: CarrierModules, packed: Mapping[str, Sequence[Any]]) -> Finding:
    module = unwrapped(part.module)
    last = module.rpartition(".")[2]
    if ".experts" in module:
        return found("shapes-not-checked", f"{shown(module)}: experts in a layout of their own", part.tensor)
    children = [str(child) for child in packed.get(last, ()) if str(child) != last]
    if children:
        fix = f"save it as {', '.join(children)}"
        text = f"{shown(module)} is the engine's packed name, not the carrier's"
        return found("unknown-module", text, part.tensor, fix=fix)
    if (split := layer_of(module)) and _in_another_layer(split, carrier):
        stem, number, _ = split
        count = max(carrier.layers(one) for one in carrier.stems if one.endswith(stem.rpartition(".")[2]))
        text = f"layer {number}, the carrier has {count} (0 to {count - 1})"
        return found("layer-out-of-range", text, part.tensor)
    names = sorted({name.rpartition(".")[2] for name in (*carrier.linears, *carrier.embeddings)})
    close = difflib.get_close_matches(last[:100], names, n=1)
    hint = f"; the nearest name is {close[0]}" if close else ""
    text = f"the carrier has no module {shown(module)}{hint} (it has {', '.join(names[:12])})"
    return found("unknown-module", text, part.tensor)


def _in_another_layer(split: tuple[str, int, str], carrier: CarrierModules) -> bool:
    """Whether the same module stands in some layer of the carrier, only not in this one."""
    stem, number, rest = split
    last = stem.rpartition(".")[2]
    stems = [one for one in carrier.stems if one.rpartition(".")[2] == last]
    return any(number >= carrier.layers(one) and f"{one}.0.{rest}" in carrier.linears for one in stems) or any(
        number >= carrier.layers(one) and f"{one}.{carrier.layers(one) - 1}.{rest}" in carrier.linears for one in stems
    )
