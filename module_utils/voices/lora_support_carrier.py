"""What of a carrier's config.json decides which of an engine's classes serves it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .plan import VoicesError

# Where a multimodal config keeps that of its language model, as Transformers and vLLM look for it.
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class Carrier:
    """``text``: the config of the language model, the whole config where there is none inside it."""

    architectures: tuple[str, ...]
    text_architectures: tuple[str, ...]
    model_type: str
    multimodal: bool
    custom_code: tuple[str, ...]
    version: str
    text: Mapping[str, Any]

    def experts(self, keys: tuple[str, ...]) -> int:
        """How many experts there are, by the first of ``keys`` that the config has."""
        found = next((self.text[key] for key in keys if self.text.get(key) is not None), 0)
        if isinstance(found, list):
            found = max((one for one in found if isinstance(one, int)), default=0)
        if isinstance(found, int) and found > 0:
            return int(found)
        blocks = self.text.get("block_configs")
        blocks = [one for one in blocks if isinstance(one, Mapping)] if isinstance(blocks, list) else []
        counts = [one.get("n_routed_experts", 0) for one in blocks if one.get("block_type") == "moe"]
        return max((one for one in counts if isinstance(one, int)), default=0)

    def facts(self) -> dict[str, Any]:
        """All of it that an answer can depend on, as plain data."""
        experts = {key: value for key, value in self.text.items() if "expert" in key or key == "block_configs"}
        return {
            "architectures": list(self.architectures),
            "text_architectures": list(self.text_architectures),
            "model_type": self.model_type,
            "multimodal": self.multimodal,
            "custom_code": list(self.custom_code),
            "version": self.version,
            "experts": experts,
        }


def carrier_from(config: Mapping[str, Any], where: str) -> Carrier:
    """What ``config``, the content of a config.json at ``where``, says. Raises VoicesError without architectures."""
    inner: Mapping[str, Any] = {}
    for key in _TEXT_KEYS:
        found = config.get(key)
        if isinstance(found, Mapping):
            deeper = found.get("text_config")
            inner = deeper if isinstance(deeper, Mapping) else found
            break
    text_architectures = _names(inner.get("architectures"), where)
    architectures = _names(config.get("architectures"), where) or text_architectures
    if not architectures:
        raise VoicesError(
            f"{where} names no architectures, so the engine would not know how to serve it either: is this the "
            "directory of a whole model, and not of an adapter?"
        )
    custom = config.get("auto_map")
    return Carrier(
        architectures=architectures,
        text_architectures=text_architectures,
        model_type=config["model_type"] if isinstance(config.get("model_type"), str) else "",
        multimodal=bool(inner),
        custom_code=tuple(sorted(map(str, custom))) if isinstance(custom, Mapping) else (),
        version=str(config["version"]) if isinstance(config.get("version"), int | float | str) else "",
        text=inner or config,
    )


def _names(found: Any, where: str) -> tuple[str, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(one, str) and one.isidentifier() for one in found):
        raise VoicesError(f"{where}: architectures is {found!r:.100}, not a list of class names")
    return tuple(found)
