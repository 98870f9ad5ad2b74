"""How many voices an engine keeps at hand: vLLM's max-loras and max-cpu-loras. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .plan import VoicesError


def slots(voices: int, max_loras: int | None, max_cpu_loras: int | None, present: Mapping[str, Any]) -> tuple[int, int]:
    """(max-loras, max-cpu-loras) for ``voices`` present voices.

    Unset, the value of the ``present`` flags is kept while it is large enough, so that a voice more does not restart
    the engine; else it is the voices and one, for a rename or an update. vLLM wants max-cpu-loras >= max-loras.
    Raises VoicesError when a set value is too small.
    """
    advice = f"set it to {voices + 1} (the voices and one for a rename or an update), or leave it unset"
    if max_loras is not None and max_loras < max(voices, 1):
        raise VoicesError(f"max_loras is {max_loras}, but {voices} voices are present: {advice}")
    if max_loras is None:
        max_loras = _kept(present.get("max-loras"), least=max(voices, 1)) or voices + 1
    if max_cpu_loras is not None and max_cpu_loras < max_loras:
        raise VoicesError(
            f"max_cpu_loras is {max_cpu_loras}, but max_loras is {max_loras} and vLLM wants at least as many: "
            f"set max_cpu_loras to {max_loras}, or leave it unset"
        )
    return max_loras, max_cpu_loras or _kept(present.get("max-cpu-loras"), least=max_loras) or max_loras


def _kept(value: Any, least: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None
