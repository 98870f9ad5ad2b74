"""Small engines' sources, made of what the real ones do: for tests that read such sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

MODELS = "vllm/model_executor/models"
INTERFACES = """
    from typing import ClassVar, Literal, Protocol, runtime_checkable
    @runtime_checkable
    class SupportsLoRA(Protocol):
        supports_lora: ClassVar[Literal[True]] = True
        is_3d_moe_weight: ClassVar[bool] = False
        embedding_modules: ClassVar[dict[str, str]] = {}
        packed_modules_mapping: dict[str, list[str]] = {}
        lora_manager: "object | None"
    class SupportsPP(Protocol):
        supports_pp: ClassVar[Literal[True]] = True
"""
CONFIG = """
    _SUFFIX_TO_DEFAULTS: list = [
        ("ForCausalLM", ("generate", "none")),
        ("ForSequenceClassification", ("pooling", "classify")),
        ("Model", ("pooling", "embed")),
    ]
    class ModelConfig:
        dtype: str = "auto"
        enforce_eager: bool = False
        def _get_transformers_backend_cls(self) -> str:
            cls = "Transformers"
            cls += "MultiModal" if self.hf_config is not self.hf_text_config else ""
            cls += "MoE" if self.is_moe else ""
            if self.task == "embed":
                cls += "EmbeddingModel"
            elif self.task == "classify":
                cls += "ForSequenceClassification"
            else:
                cls += "ForCausalLM"
            return cls
        def other(self):
            pass
"""
REGISTRY = """
    _TEXT_GENERATION_MODELS = {
        "PlainForCausalLM": ("plain", "PlainForCausalLM"),
        "OtherForCausalLM": ("plain", "PlainForCausalLM"),
        "DeafForCausalLM": ("deaf", "DeafForCausalLM"),
        "NewForCausalLM": ("vllm.models.new", "NewForCausalLM"),
    }
    _EMBEDDING_MODELS = {
        **{k: (mod, arch) for k, (mod, arch) in _TEXT_GENERATION_MODELS.items() if arch == "PlainForCausalLM"},
        "GoneModel": ("gone", "GoneModel"),
    }
    _TRANSFORMERS_BACKEND_MODELS = {
        "TransformersForCausalLM": ("transformers", "TransformersForCausalLM"),
        "TransformersMoEForCausalLM": ("transformers", "TransformersMoEForCausalLM"),
    }
    _VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_EMBEDDING_MODELS, **_TRANSFORMERS_BACKEND_MODELS}
    _PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": "0.9.2"}
"""
ARGUMENTS = """
    import argparse
    from vllm.config.model import ModelConfig
    class EngineArgs:
        def add_cli_args(parser):
            model_kwargs = get_kwargs(ModelConfig)
            group = parser.add_argument_group(title="Model")
            group.add_argument("--dtype", **model_kwargs["dtype"])
            group.add_argument("--enforce-eager", **{**model_kwargs["enforce_eager"], "default": None})
            group.add_argument("--kv-cache-memory-bytes", "-kv", type=int)
            group.add_argument("--enable-lora", action=argparse.BooleanOptionalAction)
            for name, kind in [("--guided-decoding-backend", str)]:
                group.add_argument(name, type=kind)
"""
SERVER = """
    from typing import ClassVar
    class BaseFrontendArgs:
        lora_modules: list[str] | None = None
        kind: ClassVar[str] = "server"
    class FrontendArgs(BaseFrontendArgs):
        api_key: list[str] | None = None
        enable_log_deltas: bool = True
        optional_text: bool | str | None = None
"""
ENGINE: Mapping[str, str] = {
    "vllm/__init__.py": "",
    "vllm/_version.py": "__version__ = version = '0.32.0'",
    "vllm/config/__init__.py": "",
    "vllm/config/model.py": CONFIG,
    "vllm/engine/arg_utils.py": ARGUMENTS,
    "vllm/entrypoints/openai/cli_args.py": SERVER,
    "vllm/lora/utils.py": "",
    "vllm/model_executor/utils.py": "def get_packed_modules_mapping(model): ...",
    f"{MODELS}/__init__.py": "",
    f"{MODELS}/registry.py": REGISTRY,
    f"{MODELS}/interfaces.py": INTERFACES,
    f"{MODELS}/plain.py": """
        import torch.nn as nn
        from .interfaces import SupportsLoRA, SupportsPP
        class PlainForCausalLM(nn.Module, SupportsLoRA, SupportsPP):
            packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
            embedding_modules = {"embed_tokens": "input_embeddings"}
    """,
    f"{MODELS}/deaf.py": """
        import torch.nn as nn
        class DeafForCausalLM(nn.Module):
            supports_lora = True
    """,
    f"{MODELS}/transformers/__init__.py": """
        from ..interfaces import SupportsLoRA
        class Base(SupportsLoRA):
            embedding_modules = ["embed_tokens"]
            def __init__(self):
                self.packed_modules_mapping = {}
        class TransformersForCausalLM(Base): ...
        class TransformersMoEForCausalLM(Base): ...
    """,
    "vllm/models/new/__init__.py": "from .model import NewForCausalLM",
    "vllm/models/new/model.py": """
        from vllm.model_executor.models.plain import PlainForCausalLM
        class NewForCausalLM(PlainForCausalLM):
            packed_modules_mapping = PlainForCausalLM.packed_modules_mapping | {"gate_up_proj": ["gate", "up"]}
            is_3d_moe_weight = True
    """,
}


def make_engine(root: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    """Write ENGINE with ``changes`` (path to text, None for no such file) below ``root``; returns ``root``."""
    for path, text in {**ENGINE, **(changes or {})}.items():
        if text is not None:
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text))
    return root


def registry(**models: str) -> str:
    """A registry.py with these architectures, each given as ``module.Class``."""
    places = {name: tuple(place.rsplit(".", 1)) for name, place in models.items()}
    return f"_VLLM_MODELS = {places!r}\n"


def make_carrier(directory: Path, *architectures: str, **config: Any) -> Path:
    """A carrier's directory with a config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    given = {"architectures": list(architectures)} if architectures else {}
    (directory / "config.json").write_text(json.dumps({**given, **config}))
    return directory
