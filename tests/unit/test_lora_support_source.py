"""Reading source gives what Python makes of it: each odd way in which engines write classes, beside a real import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.engine_source import DirectorySource
from ansible.module_utils.voices.lora_support import DECLARED, UNKNOWN, Verdict, declares
from ansible.module_utils.voices.lora_support_engine import Engine
from ansible.module_utils.voices.source_things import Class

from tests.support.lora_engines import MODELS, make_engine

# Each architecture is one way of writing; the class bears its name and lies in odd.py or where PLACES says.
ODD = """
    import copy
    from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar
    import torch.nn as nn
    import vllm.model_executor.models.plain
    import vllm.model_executor.models.plain as plain_module
    from vllm.platforms import current_platform
    from . import plain
    from .interfaces import SupportsLoRA, SupportsPP
    from .plain import PlainForCausalLM as Renamed
    from ..shared.maps import GATE, SHARED
    from .starred import *

    T = TypeVar("T")
    EXTRA = {"extra": ["a", "b"]}
    SUM = dict(GATE, **EXTRA)
    SUM["later"] = ["x"]
    SUM.update({"last": ["y", *SUM["later"]]})
    is_rocm = current_platform.is_rocm()

    class ByAlias(Renamed): ...
    class ByModule(plain.PlainForCausalLM): ...
    class ByDottedModule(vllm.model_executor.models.plain.PlainForCausalLM): ...
    class ByModuleAlias(plain_module.PlainForCausalLM): ...
    class ByStar(StarredBase):
        packed_modules_mapping = STARRED
    class Deaf(nn.Module): ...

    try:
        from vllm.not_there import Fast as Chosen
    except ImportError:
        Chosen = Renamed
    class ByFallback(Chosen): ...
    try:
        from .plain import PlainForCausalLM as Second
    except ImportError:
        Second = Deaf
    class ByTry(Second): ...

    if TYPE_CHECKING:
        Seen = Deaf
    else:
        Seen = Renamed
    class ByTypeChecking(Seen): ...

    if current_platform.is_rocm() or current_platform.is_xpu():
        Device = Deaf
    elif not current_platform.is_cpu() and current_platform.is_cuda_alike():
        Device = Renamed
    elif current_platform.device_type == "tpu":
        Device = Deaf
    else:
        class Device(nn.Module, SupportsLoRA):
            packed_modules_mapping = {"cpu": ["only"]}
    class ByPlatform(Device):
        if is_rocm:
            is_3d_moe_weight = True
        else:
            embedding_modules = {"not": "rocm"}

    class Outer:
        INNER = {"in": ["ner"]}
        class Inner(nn.Module, SupportsLoRA):
            packed_modules_mapping = {"inner": ["q"]}
    class ByNested(Outer.Inner):
        embedding_modules = Outer.INNER

    class Generics(nn.Module, Generic[T]): ...
    class GenericLora(Generics[T], SupportsLoRA, Generic[T]): ...
    class ByGeneric(GenericLora[int], SupportsPP): ...
    class LoraProtocol(SupportsLoRA, Protocol): ...
    class ByProtocol(nn.Module, LoraProtocol): ...

    class Left(nn.Module):
        packed_modules_mapping = {"left": ["l"]}
    class Right(nn.Module, SupportsLoRA):
        packed_modules_mapping = {"right": ["r"]}
        embedding_modules = {"right": "r"}
    class Top(Left, Right): ...
    class ByDiamond(Top, Right): ...

    def adapter(cls):
        from .interfaces import SupportsPP as Local
        if hasattr(cls, "adapted"):
            return cls
        class Adapted(inner_adapter(cls), Local):
            adapted = True
        Adapted.__name__ = cls.__name__
        return Adapted
    def inner_adapter(cls):
        '''Returns a class of its own.'''
        class Innermost(cls):
            embedding_modules = {"adapted": "x"}
        return Innermost
    Made = adapter(Renamed)
    class ByFunction(Made): ...
    class ByCall(adapter(Right)): ...
    def decorated(*args, **kwargs):
        return lambda cls: cls
    @decorated("something",
               more=1)
    @decorated()
    class ByDecorator(Renamed): ...

    class Values(nn.Module, SupportsLoRA):
        packed_modules_mapping: ClassVar[dict[str, list[str]]] = {**Renamed.packed_modules_mapping, **SUM} | SHARED
        embedding_modules = {k: v[0] for k, v in SUM.items() if k != "last" and not k.startswith("ex")}
        is_3d_moe_weight = len_is_unknown = bool = True
    class ValuesOfBase(Values):
        packed_modules_mapping = Values.packed_modules_mapping.copy()
        packed_modules_mapping |= {"more": ["m"]}
        packed_modules_mapping["most"] = ["n"] + ["o"]
        embedding_modules = copy.deepcopy(Values.embedding_modules)
        embedding_modules.update(late="z")
    class ValuesOfModule(Renamed):
        packed_modules_mapping = plain.PlainForCausalLM.packed_modules_mapping
    class ValuesInherited(ValuesOfBase): ...
    class ValuesSetLater(nn.Module, SupportsLoRA):
        packed_modules_mapping = {"first": ["f"]}
    ValuesSetLater.packed_modules_mapping = dict(ValuesSetLater.packed_modules_mapping, later=["l"])
    ValuesSetLater.is_3d_moe_weight = True
    class ValuesChangedLater(nn.Module, SupportsLoRA):
        packed_modules_mapping = {"first": ["f"]}
    ValuesChangedLater.packed_modules_mapping["second"] = ["s"]
    class ValuesEmptied(Renamed):
        packed_modules_mapping = {}
        embedding_modules = []

    class SaysNo(nn.Module, SupportsLoRA):
        supports_lora = False
    class SaysYesAlone(nn.Module):
        supports_lora = True
        packed_modules_mapping = {}
        embedding_modules = {}
    class HasAll(nn.Module):
        supports_lora = True
        is_3d_moe_weight = False
        packed_modules_mapping = {"all": ["of"]}
        embedding_modules = {}
        lora_manager = None
"""
FILES = {
    "torch/__init__.py": "",
    "torch/nn.py": "class Module: ...",
    f"{MODELS}/odd.py": ODD,
    f"{MODELS}/starred.py": """
        from .interfaces import SupportsLoRA
        STARRED = {"star": ["red"]}
        _hidden = 1
        class StarredBase(SupportsLoRA): ...
    """,
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/shared/__init__.py": "",
    "vllm/model_executor/shared/maps.py": """
        from .deeper import *
        SHARED = {"shared": ["s", "h"]} if GATE else {}
    """,
    "vllm/model_executor/shared/deeper.py": "GATE = {'gate_up_proj': [f'{name}_proj' for name in ('gate', 'up')]}",
    "vllm/platforms.py": """
        import os
        NAME = os.environ["PLATFORM"]
        class current_platform:
            device_type = "cuda" if NAME == "rocm" else NAME
            is_rocm = staticmethod(lambda: NAME == "rocm")
            is_cuda = staticmethod(lambda: NAME == "cuda")
            is_tpu = staticmethod(lambda: NAME == "tpu")
            is_xpu = staticmethod(lambda: NAME == "xpu")
            is_cpu = staticmethod(lambda: NAME == "cpu")
            is_cuda_alike = staticmethod(lambda: NAME in ("cuda", "rocm"))
    """,
    "vllm/models/__init__.py": "",
    # The three ways in which a package picks a platform's class when it is first asked for it.
    "vllm/models/lazy/__init__.py": """
        from vllm.platforms import current_platform
        __all__ = ["LazyOne", "LazyTwo"]
        def __getattr__(name: str):
            if name == "LazyTwo":
                if current_platform.is_rocm():
                    from .amd import two as amd_two
                    return amd_two.LazyTwo
                from .nvidia import two as nvidia_two
                return nvidia_two.LazyTwo
            if name in __all__:
                from .nvidia import one
                return getattr(one, name)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    """,
    "vllm/models/lazy/nvidia/__init__.py": "",
    "vllm/models/lazy/nvidia/one.py": """
        from vllm.model_executor.models.plain import PlainForCausalLM
        class LazyOne(PlainForCausalLM): ...
    """,
    "vllm/models/lazy/nvidia/two.py": "from .one import LazyOne\nclass LazyTwo(LazyOne): ...",
    "vllm/models/lazy/amd/__init__.py": "",
    "vllm/models/lazy/amd/two.py": "class LazyTwo: ...",
    "vllm/models/table/__init__.py": """
        def __getattr__(name):
            if name in {"LazyThree"}:
                from vllm.platforms import current_platform
                if current_platform.is_xpu() or current_platform.is_tpu():
                    raise NotImplementedError("not here")
                if current_platform.is_rocm():
                    from ..lazy.amd.two import LazyTwo
                else:
                    from ..lazy.nvidia.two import LazyTwo
                return {"LazyThree": LazyTwo}[name]
            if name not in globals():
                raise AttributeError(name)
            return globals()[name]
    """,
}
PLACES = {
    "LazyOne": ("vllm.models.lazy", "LazyOne"),
    "LazyTwo": ("vllm.models.lazy", "LazyTwo"),
    "LazyThree": ("vllm.models.table", "LazyThree"),
}
PLATFORMS = ("cuda", "rocm", "cpu", "tpu")
# What the engine asks at its start, of a model made without __init__.
ASK = """
import importlib, inspect, json
from vllm.model_executor.models.registry import _VLLM_MODELS
from vllm.model_executor.models.interfaces import SupportsLoRA
answers = {}
for name, (module, cls) in _VLLM_MODELS.items():
    module = module if module.startswith("vllm.") else "vllm.model_executor.models." + module
    try:
        cls = getattr(importlib.import_module(module), cls)
    except Exception as error:
        answers[name] = {"error": repr(error)}
        continue
    answers[name] = {"supported": isinstance(cls.__new__(cls), SupportsLoRA), "line": inspect.getsourcelines(cls)[1],
                     **{key: getattr(cls, key, None) for key in %r}}
print(json.dumps(answers))
"""


def odd_engine(root: Path) -> Path:
    names = [line.split("(")[0].split()[1].rstrip(":") for line in ODD.splitlines() if line.startswith("    class ")]
    places = {name: ("odd", name) for name in names} | PLACES
    return make_engine(root, {**FILES, f"{MODELS}/registry.py": f"_VLLM_MODELS = {places!r}"})


def asked(root: Path, platform: str) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-c", ASK % (DECLARED,)],
        env={"PYTHONPATH": str(root), "PLATFORM": platform, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return dict(json.loads(run.stdout))


def read(engine: Engine, name: str) -> dict[str, Any]:
    cls = engine.model_class(name)
    if not isinstance(cls, Class):
        return {"error": cls}
    verdict = Verdict(name, "")
    declares(engine, cls, verdict)
    assert verdict.verdict != UNKNOWN, verdict.reason
    assert verdict.unreadable == []
    return {"supported": verdict.supported, "line": cls.line, **verdict.declared}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_odd_class_is_read_as_python_makes_it(tmp_path: Path, platform: str) -> None:
    root = odd_engine(tmp_path)
    truth = asked(root, platform)
    engine = Engine(DirectorySource(root), platform)
    found = {name: read(engine, name) for name in engine.models}
    assert found.keys() == truth.keys()
    for name, answer in truth.items():
        if "error" in answer:
            assert (platform, name, "error" in found[name]) == ("tpu", "LazyThree", True)
        else:
            assert (name, found[name]) == (name, answer)


def test_the_odd_classes_are_not_all_alike(tmp_path: Path) -> None:
    truth = asked(odd_engine(tmp_path), "cuda")
    assert {answer["supported"] for answer in truth.values()} == {True, False}
    assert len({json.dumps(answer["packed_modules_mapping"]) for answer in truth.values()}) > 10
    assert len(truth) > 35
    assert truth["HasAll"]["supported"], "a runtime-checkable protocol"
    assert truth["SaysNo"]["supported"]
    assert not truth["SaysYesAlone"]["supported"]


UNTOLD = {
    "made at run time": "packed_modules_mapping = make_it()",
    "read from the environment": "packed_modules_mapping = {k: [k] for k in os.environ}",
    "under a condition": "packed_modules_mapping = {}\n    if os.environ: packed_modules_mapping = {'a': ['b']}",
    "changed under a condition": "packed_modules_mapping = {}\n    if os.environ: packed_modules_mapping['a'] = []",
    "in a loop": "packed_modules_mapping = {}\n    for packed_modules_mapping in ({}, {}): pass",
    "a method": "@property\n    def packed_modules_mapping(self): return {}",
    "an index that is not there": "packed_modules_mapping = {'a': 1}['b']",
}


@pytest.mark.parametrize("how", UNTOLD)
def test_what_the_text_does_not_tell_is_said_and_not_guessed(tmp_path: Path, how: str) -> None:
    text = (
        f"import os\nfrom .interfaces import SupportsLoRA\nclass UntoldForCausalLM(SupportsLoRA):\n    {UNTOLD[how]}\n"
    )
    registry = "_VLLM_MODELS = {'UntoldForCausalLM': ('untold', 'UntoldForCausalLM')}"
    root = make_engine(tmp_path, {f"{MODELS}/untold.py": text, f"{MODELS}/registry.py": registry})
    engine = Engine(DirectorySource(root))
    cls = engine.model_class("UntoldForCausalLM")
    assert isinstance(cls, Class)
    verdict = Verdict("UntoldForCausalLM", "")
    declares(engine, cls, verdict)
    assert verdict.supported
    assert len(verdict.unreadable) == 1
    assert verdict.unreadable[0].startswith("packed_modules: ")
    assert f"{MODELS}/untold.py:" in verdict.unreadable[0]


BASES = {
    "a function of the run": "make_base()",
    "a choice of the run": "(A if os.environ else B)",
    "missing": "NotThere",
    "missing in the source": "Missing",
    "itself": "UntoldForCausalLM",
}


@pytest.mark.parametrize("how", BASES)
def test_a_base_that_cannot_be_followed_leaves_the_verdict_open(tmp_path: Path, how: str) -> None:
    text = f"import os\nfrom .none import Missing\nclass UntoldForCausalLM({BASES[how]}): ...\n"
    registry = "_VLLM_MODELS = {'UntoldForCausalLM': ('untold', 'UntoldForCausalLM')}"
    root = make_engine(tmp_path, {f"{MODELS}/untold.py": text, f"{MODELS}/registry.py": registry})
    engine = Engine(DirectorySource(root))
    cls = engine.model_class("UntoldForCausalLM")
    assert isinstance(cls, Class)
    verdict = Verdict("UntoldForCausalLM", "")
    declares(engine, cls, verdict)
    assert not verdict.supported
    if how != "itself":  # no such class can be: Python refuses the statement
        assert verdict.verdict == UNKNOWN
        assert verdict.unreadable
