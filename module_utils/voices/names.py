"""The rules for names, in one place. Pure."""

from __future__ import annotations

import re

BASE_MODEL = "voices-base"
VOICE_RULE = "lv-<author>: lower-case letters, digits and single hyphens, at most 63 characters"
SEAT_RULE = "lower-case letters, digits and single hyphens, starting with a letter, at most 32 characters"

_VOICE = re.compile(r"lv(-[a-z0-9]+)+")
_SEAT = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

#: Prefixes that voices once had, and what stands in their place.
RETIRED_PREFIXES = {"baby": "lv"}


def voice_name_error(name: object) -> str | None:
    """Why ``name`` is no voice name, or None when it is one."""
    if name == BASE_MODEL:
        return f"voice {name!r} is named like the base model; a voice is {VOICE_RULE}"
    if renamed := retired_name(name):
        prefix, new = renamed
        return f"voice {name!r} has the retired prefix {prefix!r}: name it {new} (a voice is {VOICE_RULE})"
    if not isinstance(name, str) or len(name) > 63 or not _VOICE.fullmatch(name):
        return f"voice {name!r} is outside the naming rule; a voice is {VOICE_RULE}"
    return None


def retired_name(name: object) -> tuple[str, str] | None:
    """(retired prefix, name of today) of an old voice name, None for any other: ``babyausten`` is ``lv-austen``.

    An old name whose rest makes no voice name is none either: nothing good can be proposed for it.
    """
    if not isinstance(name, str):
        return None
    for prefix, today in RETIRED_PREFIXES.items():
        if name.lower().startswith(prefix):
            rest = re.sub(r"[-_. ]+", "-", name[len(prefix) :].lower()).strip("-")
            new = f"{today}-{rest}"
            if len(new) <= 63 and _VOICE.fullmatch(new):
                return prefix, new
    return None


def seat_name_error(name: object) -> str | None:
    """Why ``name`` is no seat name, or None when it is one."""
    if not isinstance(name, str) or len(name) > 32 or not _SEAT.fullmatch(name):
        return f"seat {name!r} is outside the naming rule; a seat is {SEAT_RULE}"
    return None
