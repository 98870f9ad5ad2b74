"""The parts that a model is made of, as far as its ``__init__`` names them: their packed modules and their experts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .lora_support_carrier import Carrier
from .lora_support_engine import Engine
from .source_operations import Unreadable
from .source_things import Assigned, Class

if TYPE_CHECKING:
    from .lora_support import Verdict

_INNER = ("init_vllm_registered_model", "init_vllm_registered_model_with_prefix")
_LANGUAGE = ("language_model", "model", "llm", "transformer", "thinker", "text_model")


def made_classes(engine: Engine, carrier: Carrier, cls: Class) -> list[Class]:
    """The other model classes that ``cls.__new__`` names: one of them may be what is made.

    A table by version (MiniCPM's) gives only that of the carrier's version, where its config has one.
    """
    found = engine.classes.method(cls, "__new__")
    if found is None or found[0].module.name.endswith((".interfaces", ".interfaces_base")):
        return []
    owner, method = found
    made: dict[Class, None] = {}
    for node in ast.walk(method):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        thing = engine.classes.names.expression(node, owner.module)
        if isinstance(thing, Class) and _called(method, node):
            made[thing] = None
        elif isinstance(thing, Assigned):
            made |= dict.fromkeys(_classes_in(engine, thing, carrier.version))
    return [one for one in made if one not in (cls, owner)]


def _called(method: ast.FunctionDef, name: ast.Name) -> bool:
    return any(isinstance(node, ast.Call) and node.func is name for node in ast.walk(method))


def _classes_in(engine: Engine, thing: Assigned, version: str) -> list[Class]:
    try:
        value = engine.classes.values.assigned(thing)
    except Unreadable:
        return []
    if not isinstance(value, dict):
        return []
    number = tuple(int(part) for part in version.split(".") if part.isdigit())
    chosen = [value[number]] if number in value else list(value.values())
    return [one for one in chosen if isinstance(one, Class)]


def parts(engine: Engine, carrier: Carrier, cls: Class) -> Iterator[tuple[str, Class | None]]:
    """(attribute, class) of each part that is a module of the model; None where the text does not tell its class."""
    seen: set[str] = set()
    for attribute, call, owner in engine.classes.children(cls):
        if attribute in seen:
            continue
        name = ast.unparse(call.func)
        if name.rpartition(".")[2] in _INNER:
            seen.add(attribute)
            yield attribute, _inner(engine, carrier, call)
            continue
        if name.startswith("self.") and name.count(".") == 1:
            made = engine.classes.method(cls, name.partition(".")[2])
            value = _returned_call(made[1]) if made else None
            thing = engine.classes.names.expression(value.func, made[0].module) if made and value else None
        else:
            thing = engine.classes.names.expression(call.func, owner.module, None, dict(owner.local))
        if isinstance(thing, Class):
            seen.add(attribute)
            yield attribute, thing
        elif attribute in _LANGUAGE:
            seen.add(attribute)
            yield attribute, None


def _returned_call(method: ast.FunctionDef) -> ast.Call | None:
    returns = [node.value for node in ast.walk(method) if isinstance(node, ast.Return)]
    return returns[0] if len(returns) == 1 and isinstance(returns[0], ast.Call) else None


def _inner(engine: Engine, carrier: Carrier, call: ast.Call) -> Class | None:
    """The class of a part that is served like a model of its own, by its architecture."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    named = given.get("architectures")
    names: tuple[str, ...] = ()
    if isinstance(named, ast.List) and all(isinstance(one, ast.Constant) for one in named.elts):
        names = tuple(str(one.value) for one in named.elts if isinstance(one, ast.Constant))
    elif named is None or "text_config" in ast.unparse(named):
        names = carrier.text_architectures
    name = next((one for one in names if one in engine.models), "")
    thing = engine.model_class(name) if name else None
    return thing if isinstance(thing, Class) else None


def merged_parts(engine: Engine, carrier: Carrier, cls: Class, verdict: Verdict) -> None:
    """A class that declares no packed modules gets those of its parts, as ``get_packed_modules_mapping`` has it."""
    for attribute, part in parts(engine, carrier, cls):
        if part is None:
            verdict.unreadable.append(
                f"packed_modules: those of {cls.name}.{attribute}, whose class the text does not tell"
            )
            continue
        found = engine.classes.attribute(part, "packed_modules_mapping")
        if found is not None and isinstance(found.value, dict) and found.value:
            verdict.packed_modules |= {str(key): list(map(str, names)) for key, names in found.value.items()}
            verdict.evidence.append(f"{found.place}: packed_modules_mapping of {part.name}, a part of {cls.name}")


def moe_refusal(engine: Engine, carrier: Carrier, cls: Class, verdict: Verdict, experts: str, place: str) -> None:
    """Turn the verdict into a refusal where this engine would raise at its start for want of ``get_expert_mapping``."""
    if engine.classes.method(cls, "get_expert_mapping"):
        return
    unknown = []
    for attribute, part in parts(engine, carrier, cls):
        if part is None:
            unknown.append(attribute)
        elif engine.classes.method(part, "get_expert_mapping"):
            return
    wanted = f"{place}: with {experts} the engine asks {cls.name} or a part of it for get_expert_mapping"
    if unknown:
        verdict.unreadable.append(f"experts: {wanted}; the class of {', '.join(unknown)} the text does not tell")
        return
    verdict.supported, verdict.verdict = False, "no"
    verdict.reason = f"{wanted}, and none has it, so it would not start with LoRA"
    verdict.evidence.append(wanted)
