"""Engine flags as people and files may see them: secrets masked, and one digest over the rest. Pure.

``engine_file`` (which writes the flags) and ``supervised_service`` (which notes the flags that were healthy) compare
digests made here, so both must come from the same two functions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

SECRET_FLAGS = ("api-key",)
"""Flags (kebab-case) whose value is a secret."""

_MASKED = re.compile(r"sha256:[0-9a-f]{12}")


def mask_flags(flags: Mapping[str, Any], secret_keys: Collection[str] = SECRET_FLAGS) -> dict[str, Any]:
    """A copy of ``flags`` in which the value of each secret flag is ``sha256:<12 hex>`` of its text.

    A list is masked element by element; None stays None. Masking twice equals masking once: a text that already has
    the masked form is shorter than the shortest key that is accepted, so it cannot be a secret.
    """
    return {key: _masked(value) if key in secret_keys else value for key, value in flags.items()}


def masked_secret(text: str) -> str:
    """How a secret is shown: ``sha256:<12 hex>``. A text that has this form already is left as it is."""
    return text if _MASKED.fullmatch(text) else f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _masked(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    return masked_secret(str(value))


def counted_flags(config: Mapping[str, Any], ignore: Iterable[str]) -> dict[str, Any]:
    """A configuration without the ignored keys, masked: what is compared and digested."""
    ignored = set(ignore)
    return mask_flags({str(key): value for key, value in config.items() if str(key) not in ignored})


def flags_sha256(flags: Mapping[str, Any]) -> str:
    """The hex sha256 of ``flags`` as canonical JSON: the order of keys does not count, the order of a list does.

    The caller masks secrets and drops what does not count (``lora-modules``) before.
    """
    return hashlib.sha256(json.dumps(dict(flags), sort_keys=True).encode()).hexdigest()
