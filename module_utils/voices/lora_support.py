"""Does this engine take LoRA on this carrier? Decided from the engine's source alone; nothing of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .lora_support_backend import way
from .lora_support_carrier import Carrier
from .lora_support_engine import Engine, why_lost
from .lora_support_parts import made_classes, merged_parts, moe_refusal
from .source_classes import Attribute
from .source_things import Class

YES, NO, THROUGH, UNKNOWN = "yes", "no", "through the Transformers backend", "unknown"
DECLARED = ("packed_modules_mapping", "embedding_modules", "is_3d_moe_weight")


@dataclass
class Verdict:
    """``declared`` is what the class itself says, ``packed_modules`` and ``embedding_modules`` what the engine makes of
    it for this carrier. ``unreadable``: what the text of the source does not tell, and why."""

    architecture: str
    engine_version: str
    supported: bool = False
    verdict: str = NO
    reason: str = ""
    backend: str = "native"
    class_name: str = ""
    file: str = ""
    line: int = 0
    evidence: list[str] = field(default_factory=list)
    declared: dict[str, Any] = field(default_factory=dict)
    packed_modules: dict[str, list[str]] = field(default_factory=dict)
    embedding_modules: dict[str, str] = field(default_factory=dict)
    is_3d_moe_weight: bool = False
    unreadable: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """As the module returns it."""
        found = asdict(self)
        found["class"] = found.pop("class_name")
        return found


def judge(engine: Engine, carrier: Carrier) -> Verdict:
    """The verdict on one carrier. Raises VoicesError for a source that cannot be read."""
    found = way(engine, carrier)
    verdict = Verdict(carrier.architectures[0], engine.version, backend=found.backend, evidence=list(found.why))
    if not found.name:
        verdict.reason = "; ".join(found.why)
        return verdict
    verdict.evidence.append(engine.registered(found.name))
    cls = engine.model_class(found.name)
    if not isinstance(cls, Class):
        verdict.verdict, verdict.reason = UNKNOWN, f"class of {found.name} not found: {why_lost(cls)}"
        return verdict
    verdict.class_name, verdict.file, verdict.line = cls.name, cls.module.path, cls.line
    declares(engine, cls, verdict)
    if verdict.supported:
        _for_carrier(engine, carrier, cls, verdict)
    if verdict.supported and verdict.backend == "transformers":
        verdict.verdict = THROUGH
    if found.doubt:
        verdict.unreadable.append(f"backend: {found.doubt}")
    return verdict


def declares(engine: Engine, cls: Class, verdict: Verdict) -> None:
    """Fill in what the class declares, and whether the engine counts it as one that takes LoRA."""
    chain = _chain(engine, cls, engine.interface)
    lost = engine.classes.lost(cls)
    if chain:
        verdict.evidence += [f"{one.place}: class {one.name}" for one in chain]
        verdict.supported, verdict.verdict = True, YES
        verdict.reason = f"{cls.name} derives from SupportsLoRA"
    elif members := _has_members(engine, cls):
        verdict.supported, verdict.verdict = True, YES
        verdict.reason = f"{cls.name} has all that SupportsLoRA asks for: {', '.join(members)}"
        verdict.evidence.append(f"{cls.place}: class {cls.name}")
    else:
        verdict.evidence += [f"{one.place}: class {one.name}" for one in engine.classes.own(cls)[:6]]
        verdict.reason = f"neither {cls.name} nor a base of it derives from SupportsLoRA"
        flag = engine.classes.attribute(cls, "supports_lora")
        if flag is not None and flag.value:
            verdict.reason += f" (supports_lora at {flag.place} alone is not enough for this engine)"
        if lost:
            verdict.verdict = UNKNOWN
            verdict.reason = f"whether {cls.name} derives from SupportsLoRA is not readable: {lost[0]}"
    verdict.unreadable += [f"bases: {why}" for why in lost]
    for name in DECLARED:
        attribute = engine.classes.attribute(cls, name)
        verdict.declared[name] = None if attribute is None or attribute.unreadable else attribute.value
        _note(name, attribute, verdict)
    verdict.packed_modules = _packed(verdict.declared["packed_modules_mapping"])
    verdict.embedding_modules = _embeddings(verdict.declared["embedding_modules"])
    verdict.is_3d_moe_weight = bool(verdict.declared["is_3d_moe_weight"])


def _note(name: str, attribute: Attribute | None, verdict: Verdict) -> None:
    if attribute is None:
        return
    if attribute.unreadable:
        verdict.unreadable.append(f"{_SHOWN.get(name, name)}: not readable: {attribute.unreadable}")
        return
    if attribute.value:
        verdict.evidence.append(f"{attribute.place}: {name} of {attribute.owner.name}")
    verdict.unreadable += [f"{_SHOWN.get(name, name)}: only {guard}" for guard in attribute.guards]


_SHOWN = {"packed_modules_mapping": "packed_modules"}


def _for_carrier(engine: Engine, carrier: Carrier, cls: Class, verdict: Verdict) -> None:
    """What the engine makes of the declarations when it makes the model for this carrier."""
    others = made_classes(engine, carrier, cls)
    for other in others:
        inner = Verdict(verdict.architecture, engine.version)
        declares(engine, other, inner)
        if not inner.supported and len(others) == 1 and carrier.version:
            verdict.supported, verdict.verdict = False, inner.verdict
            verdict.reason = f"version {carrier.version} is made as {other.name} ({other.place}): {inner.reason}"
        elif not inner.supported:
            verdict.unreadable.append(
                f"supported: {cls.name}.__new__ may make a {other.name} ({other.place}), which takes no LoRA"
            )
        clash = [k for k, v in inner.packed_modules.items() if verdict.packed_modules.get(k, v) != v]
        verdict.unreadable += [f"packed_modules: {k} is another in {other.name} ({other.place})" for k in clash]
        verdict.packed_modules = {**inner.packed_modules, **verdict.packed_modules}
        verdict.embedding_modules = {**inner.embedding_modules, **verdict.embedding_modules}
    if others:
        names = ", ".join(one.name for one in others)
        verdict.evidence.append(f"{cls.place}: {cls.name}.__new__ makes one of {names}, by the carrier's config")
    found = engine.classes.changes(cls, "packed_modules_mapping")
    changes = [change for change in found if not (others and change.method == "__new__")]
    for change in changes:
        condition = f" if {' and '.join(change.conditions)}" if change.conditions else ""
        verdict.unreadable.append(
            f"packed_modules: {change.place}: {change.text:.120}{condition}, when the model is made"
        )
    if not verdict.packed_modules and engine.reads_parts and not changes:
        merged_parts(engine, carrier, cls, verdict)
    experts = carrier.experts(engine.expert_keys)
    if not experts:
        return
    kind, place = engine.moe_rule
    if kind == "left out":
        verdict.unreadable.append(
            f"experts: {place}: this engine puts no LoRA on the {experts} experts, only beside them"
        )
    elif kind == "method":
        moe_refusal(engine, carrier, cls, verdict, f"{experts} experts", place)


def _chain(engine: Engine, cls: Class, target: Class) -> list[Class]:
    """The classes from ``cls`` to ``target``, each a base of the one before; empty when there is no way."""
    if cls == target:
        return [cls]
    if target not in engine.classes.order(cls):
        return []
    for base in engine.classes.bases(cls):
        if isinstance(base, Class) and (rest := _chain(engine, base, target)):
            return [cls, *rest]
    return []


def _has_members(engine: Engine, cls: Class) -> list[str]:
    """The members of SupportsLoRA when the class, or a model made of it, has them all; else empty."""
    members = sorted(engine.interface_members)
    missing = (
        name
        for name in members
        if engine.classes.attribute(cls, name) is None
        and engine.classes.method(cls, name) is None
        and not engine.classes.changes(cls, name)
    )
    return [] if next(missing, None) else members


def _packed(value: Any) -> dict[str, list[str]]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): [str(one) for one in names] for key, names in value.items() if isinstance(names, list | tuple)}


def _embeddings(value: Any) -> dict[str, str]:
    """As a map: some versions give a list of names without what they are."""
    if isinstance(value, Mapping):
        return {str(key): str(name) for key, name in value.items()}
    return dict.fromkeys(map(str, value), "") if isinstance(value, list | tuple) else {}
