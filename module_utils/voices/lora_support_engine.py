"""An engine's source as the questions about LoRA need it: registry, interface, its own rules. Runs nothing."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import Any

from .engine_source import REGISTRY, Source, engine_platform, engine_version
from .plan import VoicesError
from .source_classes import Classes
from .source_operations import Unreadable
from .source_things import Class, Lost, Thing
from .source_tree import Tree

_MODELS = "vllm.model_executor.models"
_INTERFACES = f"{_MODELS}.interfaces"
_LORA_FILES = ("vllm/lora/utils.py", "vllm/lora/model_manager.py", "vllm/lora/models.py")
# What is asked where the source does not name the keys itself.
_EXPERT_KEYS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_EXPERT_FILES = (
    "vllm/transformers_utils/model_arch_config_convertor.py",
    "vllm/config/model.py",
    "vllm/config/__init__.py",
    "vllm/config.py",
)


class Engine:
    """The engine. Raises VoicesError when its source is not of a kind that is known here."""

    def __init__(self, source: Source, platform: str = "") -> None:
        self.version = engine_version(source)
        self.tree = Tree(source, platform or engine_platform(source, self.version))
        self.classes = Classes(self.tree)

    @property
    def name(self) -> str:
        """What a message calls it."""
        return f"vLLM {self.version or 'of unknown version'}"

    def _registry_value(self, name: str) -> Any:
        module = self.tree.module(f"{_MODELS}.registry")
        if module is None:
            raise VoicesError(f"{self.tree.source.where} holds no {REGISTRY}: it is no vLLM")
        if not module.scope.bound(name):
            return None
        try:
            return self.classes.values.named(module, name)
        except Unreadable as error:
            raise VoicesError(f"the registry of {self.name} cannot be read: {error}") from None

    @cached_property
    def models(self) -> dict[str, tuple[str, str]]:
        """(module, class) of each architecture name."""
        found = self._registry_value("_VLLM_MODELS")
        if not isinstance(found, dict) or not found:
            raise VoicesError(f"{REGISTRY} of {self.name} has no _VLLM_MODELS: this version is not known here")
        models = {}
        for name, place in found.items():
            if not (isinstance(name, str) and isinstance(place, tuple | list) and len(place) >= 2):
                raise VoicesError(f"{REGISTRY} of {self.name}: {name!r} is {place!r:.80} and not (module, class)")
            *package, module, cls = place
            dotted = ".".join(map(str, [*package, module]))
            models[name] = (dotted if dotted.startswith("vllm.") else f"{_MODELS}.{dotted}", str(cls))
        return models

    @cached_property
    def backend_names(self) -> frozenset[str]:
        """The architectures of the Transformers backend itself; empty where this version has none."""
        found = self._registry_value("_TRANSFORMERS_BACKEND_MODELS") or {}
        older = {name for name in self.models if name.startswith("Transformers")}
        return frozenset(found if isinstance(found, dict) and found else older)

    def gone(self, architecture: str) -> str:
        """Why an architecture that is not there is not, as the registry itself says; "" where it does not."""
        dropped = self._registry_value("_PREVIOUSLY_SUPPORTED_MODELS")
        if isinstance(dropped, dict) and architecture in dropped:
            return f"its last vLLM was {dropped[architecture]}"
        outside = self._registry_value("_OOT_SUPPORTED_MODELS")
        if isinstance(outside, dict) and architecture in outside:
            return f"it takes the plugin {outside[architecture]}"
        return ""

    @cached_property
    def _registry_lines(self) -> dict[str, int]:
        module = self.tree.module(f"{_MODELS}.registry")
        lines: dict[str, int] = {}
        for node in ast.walk(module.tree) if module else ():
            if isinstance(node, ast.Dict):
                for key in node.keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        lines[key.value] = key.lineno  # of two, the later is in force
        return lines

    def registered(self, architecture: str) -> str:
        """Where the registry names it, and as what."""
        module, cls = self.models[architecture]
        return f"{REGISTRY}:{self._registry_lines.get(architecture, 0)}: {architecture} is {module}.{cls}"

    def model_class(self, architecture: str) -> Thing:
        """The class that a registered architecture is."""
        return self.classes.find(*self.models[architecture])

    @cached_property
    def interface(self) -> Class:
        """``SupportsLoRA``. The engine asks ``isinstance(model, SupportsLoRA)``, in every version that has it."""
        found = self.classes.find(_INTERFACES, "SupportsLoRA")
        if not isinstance(found, Class):
            raise VoicesError(
                f"{self.name} in {self.tree.source.where} has no SupportsLoRA in {_INTERFACES}: this version is not "
                "known here"
            )
        return found

    @cached_property
    def interface_members(self) -> frozenset[str]:
        """What an object must have to count as one without deriving from it: it is a runtime-checkable protocol."""
        names = {
            node.target.id
            for node in self.interface.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        scope = self.tree.class_scope(self.interface.module, self.interface.node)
        return frozenset(names | {name for name in scope.steps if "." not in name and not name.startswith("_")})

    @cached_property
    def suffixes(self) -> list[tuple[str, str, str]]:
        """(suffix of an architecture name, runner, conversion), as this engine tells them; empty where unreadable."""
        for module_name in ("vllm.config.model", "vllm.config", "vllm.config.utils"):
            module = self.tree.module(module_name)
            if module is not None and module.scope.bound("_SUFFIX_TO_DEFAULTS"):
                try:
                    found = self.classes.values.named(module, "_SUFFIX_TO_DEFAULTS")
                    return [(str(suffix), str(runner), str(convert)) for suffix, (runner, convert) in found]
                except (Unreadable, TypeError, ValueError):
                    return []
        return []

    @cached_property
    def expert_keys(self) -> tuple[str, ...]:
        """The keys of a config.json by which this engine tells how many experts there are."""
        for path in _EXPERT_FILES:
            match = re.search(r"num_expert_names\s*=\s*(\[[^]]*\])", self.tree.text(path) or "")
            if match:
                try:
                    return tuple(map(str, ast.literal_eval(match.group(1))))
                except (ValueError, SyntaxError):
                    continue
        return _EXPERT_KEYS

    @cached_property
    def moe_rule(self) -> tuple[str, str]:
        """What this engine does with LoRA on a mixture of experts, and where it says so.

        ``left out``: the experts take none. ``method``: the model or a part of it must have get_expert_mapping, or the
        engine does not start. ``any``: the layers themselves bring what it takes.
        """
        for path in _LORA_FILES:
            text = self.tree.text(path) or ""
            for kind, words in (
                ("method", "'get_expert_mapping' must be implemented"),
                ("left out", "does not support fused MoE LoRA"),
            ):
                if words in text:
                    return kind, f"{path}:{text[: text.index(words)].count(chr(10)) + 1}"
        return "any", ""

    @cached_property
    def reads_parts(self) -> bool:
        """Whether a model that declares no packed modules gets those of its parts."""
        return "def get_packed_modules_mapping" in (self.tree.text("vllm/model_executor/utils.py") or "")


def why_lost(thing: Thing) -> str:
    """Why a thing is no class."""
    return thing.why if isinstance(thing, Lost) else "it is no class of this source"
