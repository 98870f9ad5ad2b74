"""The rules for names, in one place. Pure."""

from __future__ import annotations

import re

BASE_MODEL = "voices-base"
VOICE_RULE = "lv-<author>: lower-case letters, digits and single hyphens, at most 63 characters"
SEAT_RULE = "lower-case letters, digits and single hyphens, starting with a letter, at most 32 characters"

_VOICE = re.compile(r"lv(-[a-z0-9]+)+")
_SEAT = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def voice_name_error(name: object) -> str | None:
    """Why ``name`` is no voice name, or None when it is one."""
    if name == BASE_MODEL:
        return f"voice {name!r} is named like the base model; a voice is {VOICE_RULE}"
    if not isinstance(name, str) or len(name) > 63 or not _VOICE.fullmatch(name):
        return f"voice {name!r} is outside the naming rule; a voice is {VOICE_RULE}"
    return None


def seat_name_error(name: object) -> str | None:
    """Why ``name`` is no seat name, or None when it is one."""
    if not isinstance(name, str) or len(name) > 32 or not _SEAT.fullmatch(name):
        return f"seat {name!r} is outside the naming rule; a seat is {SEAT_RULE}"
    return None
