"""What an adapter's tensor names say, by the rules of vLLM 0.32.0 (lora/utils.py, parse_fine_tuned_lora_name). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .adapter_findings import Finding, found, shown

PREFIX = "base_model.model."
_LONGEST_NAME = 512
_LEFT_OUT = (".embed_tokens", ".lm_head")  # copies of these under base_layer are skipped, others refused
_LORA = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
_EMBEDDING = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<part>[AB])")
_NAMED = re.compile(r"(?P<module>.+)\.lora_(embedding_)?[AB]\.(?P<adapter>[^.]+)(\.weight)?")
_WHOLE = re.compile(r"(?P<module>.*\b(embed_tokens|lm_head|wte|word_embeddings))(?P<base>\.base_layer)?\.weight")
#: What training frameworks put around modules, and what takes it off.
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module.")


@dataclass(frozen=True)
class Part:
    """One tensor of a LoRA pair: ``module`` without PEFT's prefix, ``part`` A or B, of an embedding or a linear."""

    tensor: str
    module: str
    part: str
    embedding: bool
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    """A whole embedding's weight in the adapter. ``copy``: under ``base_layer``, where PEFT puts the base's own."""

    tensor: str
    module: str
    copy: bool
    shape: tuple[int, ...]


def read_name(tensor: str, dtype: str, shape: tuple[int, ...]) -> Part | Whole | Finding:
    """What the tensor is; a Finding for what is no part of a plain LoRA."""
    if len(tensor) > _LONGEST_NAME:
        return found("tensor-name", f"a name of {len(tensor)} characters, no module's", tensor)
    # As vLLM does it: where it stands in front, it is taken out everywhere.
    name = tensor.replace(PREFIX, "") if tensor.startswith(PREFIX) else tensor
    for pattern, embedding in ((_LORA, False), (_EMBEDDING, True)):
        if match := pattern.fullmatch(name):
            return Part(tensor, match["module"], match["part"], embedding, dtype, shape)
    if "modules_to_save" in name:
        return found("modules-to-save", f"a whole module of shape {list(shape)}", tensor)
    if "trainable_tokens" in name or "token_adapter" in name:
        return found("trainable-tokens", f"trained rows of the embedding, shape {list(shape)}", tensor)
    if "lora_magnitude_vector" in name or name.endswith((".lora_M", ".weight_m_wdecomp.weight")):
        return found("dora", "a magnitude vector", tensor)
    if match := _WHOLE.fullmatch(name):
        left_out = bool(match["base"]) and match["module"].endswith(_LEFT_OUT)
        return Whole(tensor, match["module"], left_out, shape)
    if name.endswith(".bias"):
        return found("bias", f"a trained bias of {shape[0] if shape else 1} values", tensor)
    if match := _NAMED.fullmatch(name):
        return found(
            "adapter-name",
            f"the name carries the adapter's name '{shown(match['adapter'], 40)}' (as in .lora_A.default.weight); "
            "vLLM answers 500",
            tensor,
        )
    hint = ""
    if "lora_down" in name or "lora_up" in name:
        hint = ": lora_down and lora_up are another format's names (kohya)"
    elif "lora_E" in name or "ranknum" in name:
        hint = ": AdaLoRA's tensors"
    return found("tensor-name", f"neither <module>.lora_A.weight nor lora_B, nor an embedding's{hint}", tensor)


def unwrapped(module: str) -> str:
    """The module's name without what frameworks put around it, and without PEFT's prefix standing twice."""
    for wrapper in (PREFIX, *WRAPPERS):
        module = module.replace(wrapper, "")
    return module
