"""Which class serves an architecture that the registry does not name: the Transformers backend. Runs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .engine_source import REGISTRY
from .lora_support_carrier import Carrier
from .lora_support_engine import Engine
from .source_things import Class

_MODELING = "transformers/modeling_utils.py"
_CONFIG_FILES = ("vllm/config/model.py", "vllm/config/__init__.py", "vllm/config.py")


@dataclass(frozen=True)
class Way:
    """How an architecture is served: as the registered ``name``, or not at all when that is "". ``why`` in words."""

    name: str
    why: tuple[str, ...]
    backend: str = "native"
    doubt: str = ""


def way(engine: Engine, carrier: Carrier) -> Way:
    """The registered name under which this engine serves the carrier, found in the order in which the engine looks."""
    for name in carrier.architectures:
        if name in engine.models:
            through = engine.models[name] in {engine.models[one] for one in engine.backend_names}
            return Way(name, (), "transformers" if through else "native")
    first = carrier.architectures[0]
    missing = f"{first} is not among the {len(engine.models)} architectures of {engine.name}"
    if said := engine.gone(first):
        missing += f" ({said})"
    fallback = _fallback(engine, carrier, first, missing)
    if fallback.name:
        return fallback
    for name in carrier.architectures:
        base = _base_name(engine, name)
        if base:
            return Way(base, (missing, f"the engine takes it for {base}, whose name has another ending"))
    return Way("", (missing, *fallback.why))


def _base_name(engine: Engine, name: str) -> str:
    """``FooForCausalLM`` for ``FooForSequenceClassification`` where only that is there, as the engine does it."""
    suffix = next((suffix for suffix, _, _ in engine.suffixes if name.endswith(suffix)), "")
    others = (name.replace(suffix, other) for other, _, _ in engine.suffixes) if suffix else iter(())
    return next((other for other in others if other in engine.models), "")


def _fallback(engine: Engine, carrier: Carrier, name: str, missing: str) -> Way:
    if not engine.backend_names:
        return Way("", ("this version has no Transformers backend",))
    target = backend_class(engine, carrier)
    if target not in engine.models:
        return Way("", (f"its Transformers backend has no class {target} for such a carrier",))
    through = (missing, f"the engine falls back to its Transformers backend, class {target}")
    code = [key for key in carrier.custom_code if key.startswith("AutoModel")]
    found = _in_transformers(engine, carrier, name)
    if isinstance(found, Class):
        suits, why = _suits(engine, found)
        if suits:
            return Way(target, (*through, why), "transformers")
        return Way("", (why,))
    if code:
        doubt = f"whether the carrier's own code ({', '.join(code)}) suits the Transformers backend shows at the start"
        return Way(target, through, "transformers", doubt)
    if found == "absent":
        return Way("", (f"the Transformers beside it has no {name}, and the carrier brings no code for AutoModel",))
    doubt = f"whether its Transformers has {name} is not read, as that lies elsewhere or cannot be listed"
    return Way(target, through, "transformers", doubt)


def _suits(engine: Engine, found: Class) -> tuple[bool, str]:
    """Whether the engine takes this class of Transformers into its backend, and what says so."""
    compatible = engine.classes.attribute(found, "_supports_attention_backend")
    if compatible is not None and compatible.value is True:
        return True, f"{compatible.place}: {found.name} of Transformers takes other attention"
    no = f"{found.place}: {found.name} of Transformers does not say _supports_attention_backend"
    if "_can_set_attn_implementation(" not in (engine.tree.text(REGISTRY) or ""):
        return False, no
    # Newer engines ask Transformers for a guess too, which it makes by searching the text of the class's file.
    code, rule = found.module.text, engine.tree.text(_MODELING) or ""
    rule = rule[rule.find("def _can_set_attn_implementation") :][:3000]
    layers = re.search(r'if re\.search\(r"([^"]+)", code, re\.MULTILINE\)', rule)
    asked = re.search(r'can_set = "([^"]+)" in code', rule)
    if not layers or not asked:
        return False, f"{no}, and how Transformers guesses it is not known here"
    try:
        has_layers = re.search(layers.group(1), code, re.MULTILINE)
    except re.error:
        return False, f"{no}, and how Transformers guesses it is not known here"
    if has_layers and asked.group(1) not in code:
        return False, f"{no}, and its file never says {asked.group(1)}"
    return True, f"{found.place}: Transformers can set the attention of {found.name}, by its guess"


def _in_transformers(engine: Engine, carrier: Carrier, name: str) -> Class | str:
    """The class of Transformers, ``absent`` when it has none of that name, ``unknown`` where that is not readable."""
    if engine.tree.text(_MODELING) is None:
        return "unknown"
    engine.tree.text("transformers/__init__.py")  # another version is another answer, also where nothing is found
    kinds = dict.fromkeys([carrier.model_type, carrier.model_type.replace("-", "_")])
    for kind in filter(str.isidentifier, kinds):
        found = engine.classes.find(f"transformers.models.{kind}.modeling_{kind}", name)
        if isinstance(found, Class):
            return found
    # Some model types lie in the directory of another (llama4_text in llama4).
    directories = engine.tree.source.listing("transformers/models")
    for kind in directories:
        text = engine.tree.source.read(f"transformers/models/{kind}/modeling_{kind}.py") or b""
        if f"\nclass {name}(".encode() in text:
            found = engine.classes.find(f"transformers.models.{kind}.modeling_{kind}", name)
            return found if isinstance(found, Class) else "unknown"
    return "absent" if directories else "unknown"


def backend_class(engine: Engine, carrier: Carrier) -> str:
    """The backend's class for such a carrier, as ``ModelConfig._get_transformers_backend_cls`` puts it together."""
    texts = (engine.tree.text(path) or "" for path in _CONFIG_FILES)
    rule = next((text for text in texts if "def _get_transformers_backend_cls" in text), "")
    body = rule[rule.find("def _get_transformers_backend_cls") :][:4000].split("\n    def ", 1)[0]
    default = next(((r, c) for s, r, c in engine.suffixes if carrier.architectures[0].endswith(s)), ("", ""))
    if '"MultiModal"' not in body:  # before 0.11.1 the names were whole words
        if carrier.multimodal:
            return "TransformersForMultimodalLM"
        return "TransformersModel" if default[0] == "pooling" else "TransformersForCausalLM"
    name = "Transformers"
    name += "MultiModal" if carrier.multimodal else ""
    name += "MoE" if '"MoE"' in body and carrier.experts(engine.expert_keys) else ""
    ending = {"embed": "EmbeddingModel", "classify": "ForSequenceClassification"}.get(default[1], "")
    return name + (ending if default[0] == "pooling" and ending in body else "ForCausalLM")
