"""One adapter against one carrier and one seat: every finding, from its configuration, headers and weights. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .adapter_check_config import Settings, check_config, parse_config
from .adapter_check_tensors import Pairs, check_tensors
from .adapter_findings import ERROR, Finding, allow_errors, allowed, capped, found, shown
from .adapter_weights import Scan
from .carrier_tensors import CarrierModules
from .names import voice_name_error
from .options import nearest
from .plan import VoicesError
from .safetensors_header import Tensor

_CACHED = re.compile(r"models--[^/]+--(?P<name>[^/]+)")


@dataclass(frozen=True)
class Source:
    """What a client read of an adapter's directory.

    ``findings`` are those of the files themselves. ``config`` and ``tensors`` are None where they could not be read;
    ``scans`` has the weights by tensor, None where they were not read. ``bytes`` are those of the weight file.
    """

    findings: tuple[Finding, ...] = ()
    config: bytes | None = None
    tensors: tuple[Tensor, ...] | None = None
    scans: Mapping[str, Scan] | None = None
    bytes: int = 0


@dataclass(frozen=True)
class Wish:
    """One voice to check: where its adapter lies, and the codes that the inventory allows."""

    voice: str
    source: str
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seat:
    """What adapters are compared with. ``packed`` and ``base_models`` may be empty; ``max_lora_rank`` 0: no check."""

    carrier: CarrierModules
    max_lora_rank: int = 0
    packed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    base_models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """The verdict on one adapter. ``rank`` is the largest of configuration and tensors."""

    findings: tuple[Finding, ...]
    rank: int = 0
    tensors: int = 0
    modules: int = 0
    bytes: int = 0
    weights_read: bool = False

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity == ERROR)

    def facts(self) -> dict[str, int | bool]:
        """For a module's ``checked``."""
        names = ("rank", "tensors", "modules", "bytes", "weights_read")
        return {name: getattr(self, name) for name in names}


def wishes_from(adapters: Mapping[Any, Any]) -> list[Wish]:
    """A module's ``adapters``. Raises VoicesError naming everything that is wrong with them."""
    wrong: list[str] = []
    wishes: list[Wish] = []
    for voice in sorted(adapters, key=str):
        options = adapters[voice]
        where = f"voice {shown(voice, 70)}"
        if problem := voice_name_error(voice):
            wrong.append(problem)
        if not isinstance(options, Mapping):
            wrong.append(f"{where} is '{shown(options, 80)}', not a map with source and, optionally, allow")
            continue
        known = ("source", "allow")
        wrong += [f"{where}: unknown key {shown(key, 40)}{nearest(key, known)}" for key in options if key not in known]
        source, allow = options.get("source"), options.get("allow") or []
        if not isinstance(source, str) or not source.startswith("/"):
            wrong.append(f"{where}: source is '{shown(source)}'; give the adapter's directory as an absolute path")
        if not isinstance(allow, list | tuple):
            wrong.append(f"{where}: allow is '{shown(allow)}', not a list of codes")
        else:
            wrong += allow_errors(where, allow)
            wishes.append(Wish(str(voice), str(source), tuple(allow)))
    if wrong:
        raise VoicesError("; ".join(wrong))
    return wishes


def check_adapter(source: Source, seat: Seat, allow: Sequence[str] = ()) -> Checked:
    """Every finding of one adapter, errors first and repeated ones counted."""
    findings = list(source.findings)
    settings, pairs, tensors = Settings(), Pairs(), source.tensors or ()
    if source.config is not None:
        config, wrong = parse_config(source.config)
        findings += wrong
        if config is not None:
            settings, wrong = check_config(config, seat.max_lora_rank)
            findings += [*wrong, *_base_model(settings.base_model, seat)]
    if source.tensors is not None:
        if tensors:
            pairs, wrong = check_tensors(tensors, settings, seat.carrier, seat.packed, seat.max_lora_rank)
            findings += wrong
        else:
            findings.append(found("empty", "adapter_model.safetensors holds no tensor"))
    if source.scans is not None:
        findings += _weights(source.scans, pairs)
    return Checked(
        findings=tuple(capped(allowed(findings, allow))),
        rank=max([settings.rank, pairs.rank, *settings.rank_values.values()]),
        tensors=len(tensors),
        modules=len(pairs.parts),
        bytes=source.bytes,
        weights_read=source.scans is not None,
    )


def _base_model(name: str, seat: Seat) -> Iterator[Finding]:
    if not name:
        yield found("base-model-unsaid", "base_model_name_or_path is missing")
        return
    known = (*seat.base_models, *seat.carrier.names)
    if not seat.carrier.names or name in known or _last(name) in map(_last, known):
        return
    text = f"base_model_name_or_path is '{shown(name)}'; the carrier is {', '.join(shown(one, 60) for one in known)}"
    yield found("base-model-differs", text)


def _last(name: str) -> str:
    """``qwen3-4b`` of ``Qwen/Qwen3-4B``, of a path to it, and of a hub's cache."""
    if match := _CACHED.search(name):
        return match["name"].lower()
    return name.rstrip("/").rpartition("/")[2].lower()


def _weights(scans: Mapping[str, Scan], pairs: Pairs) -> Iterator[Finding]:
    for tensor, scan in scans.items():
        if scan.bad:
            text = f"{scan.bad} of {scan.elements} weights are NaN or infinite, the first at {scan.first_bad}"
            yield found("non-finite", text, tensor)
    silent = []
    read = 0
    for parts in pairs.parts.values():
        known = [scans[part.tensor] for part in parts.values() if part.tensor in scans]
        read += bool(known)
        zero = next((part for part in parts.values() if part.tensor in scans and scans[part.tensor].zero), None)
        if zero is not None:
            silent.append(zero)
    if silent and len(silent) == read:
        parts_shown = "/".join(sorted({part.part for part in silent}))
        yield found("all-zero", f"lora_{parts_shown} of all {read} modules is zero", silent[0].tensor)
        return
    for part in silent:
        yield found("some-zero", f"lora_{part.part} of {shown(part.module)} is zero", part.tensor)
