"""The check of an adapter_config.json by itself. Pure.

What vLLM refuses, honours and leaves out was read in 0.32.0 (lora/peft_helper.py): rank_pattern, alpha_pattern and
use_rslora are honoured; peft_type, task_type, layers_to_transform and fan_in_fan_out are not looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .adapter_check_patterns import compiled, compiled_keys, first_of
from .adapter_findings import Finding, found, shown
from .store import ALLOWED_RANKS

_LARGEST_SCALE = 64.0
_MOST_RANK = 1 << 24
#: Initialisations that leave the base's weights as they are (peft_helper.py, _init_is_supported).
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
_VARIANTS = {"use_qalora": "QALoRA", "use_bdlora": "block-diagonal LoRA", "arrow_config": "Arrow"}


@dataclass(frozen=True)
class Settings:
    """What tensors are compared with. ``rank`` 0: not told. ``*_keys`` hold None for a pattern that is not tried."""

    rank: int = 0
    rank_values: Mapping[str, int] = field(default_factory=dict)
    rank_keys: Mapping[str, re.Pattern[str] | None] = field(default_factory=dict)
    alpha_keys: Mapping[str, re.Pattern[str] | None] = field(default_factory=dict)
    targets: Sequence[str] | re.Pattern[str] | None = None
    layers: tuple[int, ...] | None = None
    base_model: str = ""

    def rank_of(self, module: str) -> int:
        """The rank that the module should have, 0 where that is not known."""
        value, sure = first_of(self.rank_keys, self.rank_values, module)
        if not sure:
            return 0
        return value if isinstance(value, int) else self.rank


class _NotFinite(ValueError):
    pass


class _Twice(ValueError):
    pass


def parse_config(blob: bytes) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The object in ``blob``, and what is wrong with it as JSON. None where there is no object."""
    findings: list[Finding] = []
    try:
        found_json = _load(blob, strict=True)
    except _Twice as error:
        findings.append(found("config-duplicate-key", f"adapter_config.json: {error}"))
    except _NotFinite as error:
        findings.append(found("config-not-finite", f"adapter_config.json: {error}"))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else shown(str(error))
        return None, [found("config-invalid", f"adapter_config.json is no valid JSON: {why}")]
    if findings:
        # The rest is checked as the engine would read it.
        try:
            found_json = _load(blob, strict=False)
        except (ValueError, RecursionError) as error:
            return None, [found("config-invalid", f"adapter_config.json is no valid JSON: {shown(str(error))}")]
    if not isinstance(found_json, dict):
        kind = type(found_json).__name__
        return None, [*findings, found("config-invalid", f"adapter_config.json holds a {kind}, not an object")]
    return found_json, findings


def check_config(config: Mapping[str, Any], max_lora_rank: int) -> tuple[Settings, list[Finding]]:
    """The settings that the tensors are compared with, and the findings of the configuration by itself."""
    findings = [*_kind(config), *_features(config)]
    rank, pattern, wrong = _ranks(config)
    findings += wrong
    largest = max([rank, *pattern.values()])
    findings += above_seat(largest, max_lora_rank)
    findings += _alphas(config, rank, pattern)
    rank_keys = compiled_keys(pattern)
    alphas = config.get("alpha_pattern")
    alpha_keys = compiled_keys(alphas) if isinstance(alphas, dict) else {}
    for where, keys in (("rank_pattern", rank_keys), ("alpha_pattern", alpha_keys)):
        findings += [
            found("pattern-not-checked", f"{where} '{shown(key)}'") for key, value in keys.items() if value is None
        ]
    given = {"rank_pattern": len(pattern), "alpha_pattern": len(alphas) if isinstance(alphas, dict) else 0}
    if any(given.values()):
        text = " and ".join(f"{name} with {count} entries" for name, count in given.items() if count)
        findings.append(found("per-module-scaling", text))
    targets, wrong = _targets(config)
    findings += wrong
    layers = config.get("layers_to_transform")
    layers = [layers] if _whole(layers) else layers
    base = config.get("base_model_name_or_path")
    return Settings(
        rank=rank,
        rank_values=pattern,
        rank_keys=rank_keys,
        alpha_keys=alpha_keys,
        targets=targets,
        layers=tuple(layers) if isinstance(layers, list) and layers and all(map(_whole, layers)) else None,
        base_model=base if isinstance(base, str) else "",
    ), findings


def above_seat(rank: int, max_lora_rank: int, tensor: str = "") -> list[Finding]:
    """The finding for a rank above the seat's, with the value to set. 0 checks nothing."""
    if not max_lora_rank or rank <= max_lora_rank:
        return []
    fitting = next((allowed for allowed in ALLOWED_RANKS if allowed >= rank), None)
    fix = f"set max_lora_rank to {fitting}" if fitting else "train it with a lower rank: no setting serves this one"
    ranks = ", ".join(map(str, ALLOWED_RANKS))
    message = f"rank {rank}, max_lora_rank is {max_lora_rank} (vLLM allows {ranks})"
    return [found("rank-above-seat", message, tensor, fix=fix)]


def _load(blob: bytes, *, strict: bool) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if strict and len(keys) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise _Twice(f"the key '{shown(twice)}' stands twice")
        return keys

    def constant(text: str) -> float:
        return _refuse_constant(text) if strict else float(text.replace("Infinity", "inf"))

    def number(text: str) -> float:
        value = float(text)
        return _refuse_constant(text) if strict and math.isinf(value) else value

    return json.loads(blob.decode(), object_pairs_hook=unique, parse_constant=constant, parse_float=number)


def _refuse_constant(text: str) -> NoReturn:
    raise _NotFinite(f"{shown(text, 40)} is no finite number")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_rank(value: Any) -> bool:
    """Above 0 and below what any module's rank can be: larger numbers break the sums."""
    return _whole(value) and 0 < value < _MOST_RANK


def _number(value: Any) -> bool:
    """A finite number that a float holds; JSON's whole numbers may be larger."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _kind(config: Mapping[str, Any]) -> Iterator[Finding]:
    kind = config.get("peft_type")
    if kind is None:
        yield found("peft-type-unsaid", "peft_type is missing; vLLM takes everything for a LoRA")
    elif kind != "LORA":
        yield found("not-lora", f"peft_type is '{shown(kind)}', and vLLM would take it for a LoRA")
    task = config.get("task_type")
    if task not in (None, "CAUSAL_LM"):
        yield found("task-type", f"task_type is '{shown(task)}', not CAUSAL_LM")


def _features(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Settings that make another thing of the tensors than a plain LoRA."""
    if config.get("use_dora"):
        yield found("dora", "use_dora is set")
    if saved := config.get("modules_to_save"):
        yield found("modules-to-save", f"modules_to_save is {shown(saved)}")
    if (bias := config.get("bias")) not in (None, "none"):
        yield found("bias", f"bias is '{shown(bias)}'")
    if config.get("lora_bias"):
        yield found("bias", "lora_bias is set")
    if tokens := config.get("trainable_token_indices"):
        yield found("trainable-tokens", f"trainable_token_indices is {shown(tokens, 60)}")
    if tokens := config.get("alora_invocation_tokens"):
        yield found("alora", f"alora_invocation_tokens is {shown(tokens, 60)}")
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        yield found("init-changes-base", f"init_lora_weights is '{shown(init)}'")
    if layers := config.get("layer_replication"):
        yield found("layer-replication", f"layer_replication is {shown(layers, 60)}")
    for key, name in _VARIANTS.items():
        if config.get(key):
            yield found("lora-variant", f"{key} is set ({name})")
    if config.get("fan_in_fan_out"):
        yield found("fan-in-fan-out", "fan_in_fan_out is set; vLLM does not look at it")


def _ranks(config: Mapping[str, Any]) -> tuple[int, dict[str, int], list[Finding]]:
    findings: list[Finding] = []
    given = config.get("r")
    rank = given if isinstance(given, int) and _is_rank(given) else 0
    if not rank:
        findings.append(found("rank-invalid", f"r is {shown(given)}; a LoRA rank is a whole number above 0"))
    pattern = config.get("rank_pattern") or {}
    if not isinstance(pattern, dict):
        findings.append(found("rank-pattern-invalid", f"rank_pattern is {shown(pattern)}"))
        pattern = {}
    good = {key: value for key, value in pattern.items() if _is_rank(value)}
    for key in pattern.keys() - good.keys():
        findings.append(found("rank-pattern-invalid", f"rank_pattern '{shown(key)}' is {shown(pattern[key])}"))
    return rank, good, findings


def _alphas(config: Mapping[str, Any], rank: int, ranks: Mapping[str, int]) -> Iterator[Finding]:
    if config.get("lora_alpha") is None:
        yield found("alpha-missing", "lora_alpha is missing")
    else:
        yield from _alpha("lora_alpha", config["lora_alpha"], rank, bool(config.get("use_rslora")))
    pattern = config.get("alpha_pattern") or {}
    if not isinstance(pattern, dict):
        yield found("alpha-invalid", f"alpha_pattern is {shown(pattern)}, not a map of modules to numbers")
        return
    for key, value in pattern.items():
        own = ranks.get(key, rank)
        yield from _alpha(f"alpha_pattern '{shown(key)}'", value, own, bool(config.get("use_rslora")))


def _alpha(name: str, alpha: Any, rank: int, rslora: bool) -> Iterator[Finding]:
    if isinstance(alpha, float) and not math.isfinite(alpha):
        return  # config-not-finite has said so
    if not _number(alpha):
        yield found("alpha-invalid", f"{name} is {shown(alpha)}, no number")
    elif alpha == 0:
        yield found("alpha-zero", f"{name} is 0: the scaling is 0 / {rank}")
    elif alpha < 0:
        yield found("alpha-negative", f"{name} is {shown(alpha)}")
    elif rank:
        scale = alpha / (math.sqrt(rank) if rslora else rank)
        if not 1 / _LARGEST_SCALE <= scale <= _LARGEST_SCALE:
            how = "sqrt(rank), as use_rslora is set" if rslora else "rank"
            yield found("alpha-absurd", f"{name} is {shown(alpha)} at rank {rank}: scaling {scale:g} (alpha / {how})")


def _targets(config: Mapping[str, Any]) -> tuple[Sequence[str] | re.Pattern[str] | None, list[Finding]]:
    if "target_modules" not in config:
        return None, [found("target-modules", "target_modules is missing, and vLLM refuses the adapter")]
    targets = config["target_modules"]
    if targets is None or targets == "all-linear":
        return None, []
    if isinstance(targets, str):
        pattern = compiled(targets, suffix=False)
        return pattern, [] if pattern else [found("pattern-not-checked", f"target_modules '{shown(targets)}'")]
    if not isinstance(targets, list) or not all(isinstance(one, str) and one for one in targets):
        return None, [found("target-modules", f"target_modules is {shown(targets)}, no list of names")]
    return targets, []
