"""The seat's key: which one is fine, and how it is shown and handed on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .flags import mask_flags, masked_secret
from .plan import Action

MIN_KEY_LENGTH = 24
TO_BE_GENERATED = "(to be generated)"
"""Stands for a key that the plan asks for and that only the real run makes."""

# A key that begins with a dash reads as an option when vLLM turns engine.yaml into arguments.
_KEY = re.compile(r"[!-,./-~][!-~]*")


def mask(flags: Mapping[str, Any]) -> dict[str, Any]:
    """``flags`` with the key as ``sha256:<12 hex>``; a key that is yet to be made stays readable as such."""
    masked = mask_flags(flags)
    if flags.get("api-key") == TO_BE_GENERATED:
        masked["api-key"] = TO_BE_GENERATED
    return masked


def auth_header(key: str) -> str:
    """The text of auth.header, for ``curl -H @file``."""
    return f"Authorization: Bearer {key}\n"


def key_error(key: str, where: str) -> str | None:
    """Why ``key`` (from ``where``) is refused, without showing it; None when it is fine."""
    if len(key) < MIN_KEY_LENGTH:
        return (
            f"{where} has {len(key)} characters, and a key has at least {MIN_KEY_LENGTH} (a digest of it is shown in "
            "diffs): take a longer one, or leave it out and set generate_api_key"
        )
    if not _KEY.fullmatch(key):
        return (
            f"{where} must be printable ASCII without spaces and not begin with a dash (vLLM reads it as an argument)"
        )
    return None


def key_actions(key: str | None, present: str | None, present_header: str | None) -> list[Action]:
    """What to do to the key file and to auth.header; nothing without a key, whose files are then not ours."""
    if not key:
        return []
    actions = []
    if key == TO_BE_GENERATED:
        actions.append(Action("create", "api key", after=TO_BE_GENERATED))
    elif present is None:
        actions.append(Action("create", "api key", after=masked_secret(key)))
    elif present != key:
        actions.append(Action("write", "api key", before=masked_secret(present), after=masked_secret(key)))
    if present_header is None:
        actions.append(Action("create", "auth header"))
    elif present_header != auth_header(key):
        actions.append(Action("write", "auth header", why="another key"))
    return actions
