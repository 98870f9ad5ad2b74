"""What an engine's own code says about LoRA, by importing it: the truth that reading its source is held against.

usage: PYTHON -m tests.support.lora_runtime_answers [--stand-ins] OUT.json      (from the repository's root)

PYTHON is that of an environment in which vLLM is installed; another version's unpacked wheel may stand before it on
PYTHONPATH. With --stand-ins, third-party packages that are missing are replaced by empty stand-ins, so that the classes
behind them import too; a class of vLLM itself is never replaced.

OUT.json gets {version, platform, stand_ins, architectures: {name: answer}, fallbacks: {class of Transformers:
{model_type, class of the backend}}, flags: [options of the server's parser]}. An answer is {error} or {class, line,
supports_lora, packed_modules_mapping, embedding_modules, is_3d_moe_weight}. ``supports_lora`` is vLLM's own
supports_lora() of an instance made without __init__, which is what it asks at its start, and of the class where an
instance needs arguments.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
T = TypeVar("T")
#: More missing packages than this behind one import mean that something else is wrong.
MOST_MISSING = 40


class StandIn:
    """Stands for any class or function of a package that is not there."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class StandInModule(ModuleType):
    """A module in which every name is a stand-in: a class where the name looks like one's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[:1].isupper() else StandIn()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages named in ``missing``, last of all."""

    def __init__(self) -> None:
        self.missing: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.missing:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def importing(finder: Finder | None, work: Callable[[], T]) -> T:
    """``work()``, again with a stand-in for each third-party package that it misses."""
    for _ in range(MOST_MISSING):
        try:
            return work()
        except ModuleNotFoundError as error:
            top = (error.name or "").partition(".")[0]
            if finder is None or not top or top == "vllm" or top in finder.missing or top in sys.modules:
                raise
            finder.missing.add(top)
    raise ImportError(f"more than {MOST_MISSING} packages are missing")


def answer(cls: type, supports_lora: Callable[[object], bool]) -> dict[str, Any]:
    """vLLM's word on one class."""
    try:
        made = cls.__new__(cls)
    except Exception:  # its __new__ wants a configuration
        made = cls
    found: dict[str, Any] = {"class": f"{cls.__module__}.{cls.__qualname__}", "supports_lora": supports_lora(made)}
    try:
        found["line"] = inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        found["line"] = 0
    for name in ("packed_modules_mapping", "embedding_modules", "is_3d_moe_weight"):
        value = getattr(cls, name, None)
        found[name] = value if isinstance(value, dict | bool | list) else None
    return found


def server_flags() -> list[str]:
    """Every option string of the OpenAI server's parser."""
    parsers = importlib.import_module("vllm.utils.argparse_utils") if _there("vllm.utils.argparse_utils") else None
    parsers = parsers or importlib.import_module("vllm.utils")
    for name in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
        if _there(name):
            parser = importlib.import_module(name).make_arg_parser(parsers.FlexibleArgumentParser())
            return sorted(option for action in parser._actions for option in action.option_strings)
    return []


def fallbacks(registry: ModuleType) -> dict[str, dict[str, str]]:
    """For each class of Transformers that is not registered, the class of the Transformers backend that serves it."""
    transformers = importlib.import_module("transformers")
    pick = importlib.import_module("vllm.config.model").ModelConfig._get_transformers_backend_cls
    found: dict[str, dict[str, str]] = {}
    for file in sorted(Path(str(transformers.__file__)).parent.glob("models/*/modeling_*.py")):
        kind = file.parent.name
        for name in re.findall(_SERVED, file.read_text(), re.MULTILINE) if file.name == f"modeling_{kind}.py" else ():
            if name in registry.ModelRegistry.models or not hasattr(transformers, name):
                continue
            inner = SimpleNamespace(auto_map=None)
            config = SimpleNamespace(hf_config=inner, hf_text_config=inner, is_moe=False, architectures=[name])
            config.runner, config.model_impl, config.model = "auto", "auto", name
            config._get_transformers_backend_cls = functools.partial(pick, config)
            try:
                served = registry.ModelRegistry._try_resolve_transformers(name, config)
            except (AssertionError, AttributeError):  # a factory, no model
                continue
            found[name] = {"model_type": kind, "class": served or ""}
    return found


_SERVED = r"^class (\w+(?:ForCausalLM|LMHeadModel|ForConditionalGeneration|ForSequenceClassification))\("


def _there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def answers(finder: Finder | None) -> dict[str, Any]:
    """All answers of the vLLM that this Python imports."""
    registry = importing(finder, lambda: importlib.import_module("vllm.model_executor.models.registry"))
    interfaces = importing(finder, lambda: importlib.import_module("vllm.model_executor.models.interfaces"))
    found: dict[str, Any] = {}
    for name, model in registry.ModelRegistry.models.items():

        def load(model: Any = model) -> Any:
            return getattr(importlib.import_module(model.module_name), model.class_name)

        try:
            cls = importing(finder, load)
        except BaseException as error:  # a class that does not import is an answer too, whatever it raises
            found[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:160]}
            continue
        found[name] = answer(cls, interfaces.supports_lora)
    try:
        flags = importing(finder, server_flags)
    except Exception as error:
        print(f"no flags: {type(error).__name__}: {error}", file=sys.stderr)
        flags = []
    version = importlib.import_module("vllm.version").__version__
    platform = importlib.import_module("vllm.platforms").current_platform.device_name
    missing = sorted(finder.missing) if finder else []
    return {
        "version": version,
        "platform": platform,
        "stand_ins": missing,
        "architectures": found,
        "fallbacks": fallbacks(registry),
        "flags": flags,
    }


def main(arguments: Sequence[str]) -> int:
    finder = Finder() if "--stand-ins" in arguments else None
    if finder:
        sys.meta_path.append(finder)
    result = answers(finder)
    Path(arguments[-1]).write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
