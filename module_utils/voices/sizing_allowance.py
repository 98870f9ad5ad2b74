"""What an engine takes beyond what can be computed: measured, by engine version and card. Pure.

The three fitted numbers of a version are solved by least squares from the configurations of tests/gpu/measured that
``fitted_on`` names; ``features`` says which multiple of each number a configuration has. docs/decisions/ compares the
predictions for all other configurations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .sizing_graphs import Graphs
from .sizing_weights import Shard

MIB = 1024 * 1024


@dataclass(frozen=True)
class Allowance:
    """One engine version. ``fixed_bytes``: code on the card, and what the profile run leaves of its blocks, without the
    context; ``plain_graph_bytes`` and ``adapted_graph_bytes``: a CUDA graph's own memory, for each layer, without and
    with adapters; ``dual_stream_bytes``: more with VLLM_LORA_ENABLE_DUAL_STREAM."""

    version: str
    fixed_bytes: int
    plain_graph_bytes: int
    adapted_graph_bytes: int
    dual_stream_bytes: int
    fitted_on: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class CardAllowance:
    """One kind of card. ``context_bytes``: by how much a bare CUDA context lowers the card's free memory.

    ``workspace_bytes``: a cuBLAS workspace (torch, aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on compute
    capability 9.0, else 4096:2:16:8). ``splits``: FlashAttention 3, which only Hopper has, keeps the parts of a decode.
    """

    context_bytes: int
    workspace_bytes: int
    splits: bool
    source: str = ""


_HOPPER_WORKSPACE = 32 * MIB
_WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024

#: By engine version; several may be measured.
ALLOWANCES: Mapping[str, Allowance] = {
    "0.26.0": Allowance(
        version="0.26.0",
        fixed_bytes=286_016_770,
        plain_graph_bytes=147_598,
        adapted_graph_bytes=111_767,
        dual_stream_bytes=158 * MIB,
        fitted_on=("small-base", "base-256", "r32-s4-256"),
        source="tests/gpu/measured/h200-vllm-0.26.0.json; dual stream: 11,284 against 11,126 MiB of r32-s4",
    ),
}

#: By a part of the card's name as NVML gives it, in upper case; the first that is found.
CARDS: Mapping[str, CardAllowance] = {
    "H200": CardAllowance(552_402_944, _HOPPER_WORKSPACE, True, "a bare context, driver 580.159.04"),
    "RTX PRO 6000": CardAllowance(469 * MIB, _WORKSPACE, False, "11,897 MiB free before and 11,428 after"),
}
_HOPPER_NAMES = ("H100", "H800", "GH200", "H20")
_OTHER_HOPPER = CardAllowance(CARDS["H200"].context_bytes, _HOPPER_WORKSPACE, True)
_OTHER = CardAllowance(CARDS["H200"].context_bytes, _WORKSPACE, False)


def allowance_for(version: str) -> tuple[Allowance, str]:
    """The allowance of ``version`` and "", or the nearest version's and a note that says so."""
    wanted = _numbers(version)
    found = min(ALLOWANCES.values(), key=lambda one: (_distance(wanted, _numbers(one.version)), one.version))
    if wanted and wanted == _numbers(found.version):
        return found, ""
    return found, f"engine {version or 'of no known version'} was not measured; allowances are those of {found.version}"


def card_for(name: str) -> tuple[CardAllowance, str]:
    """What is known of the card called ``name``, and a note unless its context was measured."""
    upper = name.upper()
    for part, card in CARDS.items():
        if part in upper:
            return card, ""
    if not upper:
        return CARDS["H200"], "no card was named; the CUDA context is that of an H200"
    card = _OTHER_HOPPER if any(part in upper for part in _HOPPER_NAMES) else _OTHER
    return card, f"the CUDA context of {name} was not measured; an H200's {card.context_bytes // MIB} MiB stand for it"


def features(shard: Shard, graphs: Graphs) -> dict[str, int]:
    """How often each fitted number of ``Allowance`` counts in a configuration: what a least-squares fit needs."""
    return {
        "fixed_bytes": 1,
        "plain_graph_bytes": shard.layers * graphs.plain,
        "adapted_graph_bytes": shard.layers * graphs.adapted,
    }


def _numbers(version: str) -> tuple[int, ...]:
    """``v0.26.0+cu130`` -> (0, 26, 0); empty for no version."""
    match = re.match(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})", version.strip())
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    places = (10**12, 10**6, 1)
    value = [sum(number * place for number, place in zip(numbers, places, strict=False)) for numbers in (one, other)]
    return abs(value[0] - value[1])
