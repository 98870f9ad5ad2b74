"""What a run asks of the adapter store, checked, and the names of its entries. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .names import seat_name_error, voice_name_error
from .plan import VoicesError

SHORT = 12  # hex digits of the digest in an entry's name
_PIN = re.compile(r"[0-9a-f]{12,64}")
_ENTRY = re.compile(r"(?P<voice>.+)@[0-9a-f]{12}")


@dataclass(frozen=True)
class Voice:
    """One wanted voice; ``pin`` is the digest the inventory insists on (12 to 64 hex digits) or empty."""

    name: str
    source: str
    pin: str = ""


@dataclass(frozen=True)
class Desired:
    """What a run asks of the store. ``max_lora_rank`` 0 leaves ranks unchecked, ``keep`` 0 prunes nothing.

    ``in_use`` are paths that must stay and ``pinned`` names of such entries. ``seat`` is whom the run is for;
    ``serves`` are the paths of all that it serves, None when that is not known.
    """

    voices: tuple[Voice, ...] = ()
    absent: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    max_lora_rank: int = 0
    keep: int = 0
    prune: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    seat: str = ""
    serves: tuple[str, ...] | None = None


def entry_name(voice: str, digest: str) -> str:
    """The entry of ``voice`` for a digest or a pin of it."""
    return f"{voice}@{digest[:SHORT]}"


def voice_of(entry: str) -> str | None:
    """The voice that an entry's name begins with, or None for a name that is no entry's."""
    found = _ENTRY.fullmatch(entry)
    return found["voice"] if found and voice_name_error(found["voice"]) is None else None


def desired_from(
    voices: Mapping[str, Any],
    absent: Sequence[str] = (),
    in_use: Sequence[str] = (),
    max_lora_rank: int = 0,
    **history: Any,
) -> Desired:
    """Check a module's parameters. Raises VoicesError naming everything that is wrong with them.

    ``history`` are keep, prune, pinned, seat and serves.
    """
    wrong: list[str] = []
    wanted: list[Voice] = []
    for name in sorted(voices, key=str):
        problems, voice = _voice(name, voices[name])
        wrong += problems
        if voice is not None:
            wanted.append(voice)
    for name in absent:
        wrong += [problem] if (problem := voice_name_error(name)) else []
        if name in voices:
            wrong.append(f"voice {name!r} is both in voices and in absent: keep it in one of them")
    if max_lora_rank < 0:
        wrong.append(f"max_lora_rank is {max_lora_rank}: set a rank, or 0 for no check")
    wrong += _history_errors(history)
    refuse(wrong)
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in history.items()}
    return Desired(tuple(wanted), tuple(sorted(set(absent))), tuple(in_use), max_lora_rank, **given)


def _history_errors(history: Mapping[str, Any]) -> list[str]:
    keep, seat = history.get("keep", 0), history.get("seat", "")
    wrong = [problem for name in history.get("prune", ()) if (problem := voice_name_error(name))]
    if keep < 0:
        wrong.append(f"keep is {keep}: set how many entries of a voice stay, 1 or more; 0 prunes nothing")
    if seat and (problem := seat_name_error(seat)):
        wrong.append(problem)
    if (keep or history.get("serves") is not None) and not seat:
        wrong.append("keep and serves need seat: the order of use is known by seat")
    wrong += [
        f"pinned names {name!r:.80}, which is no entry: give voice@digest"
        for name in history.get("pinned", ())
        if voice_of(str(name)) is None
    ]
    return wrong


def _voice(name: Any, options: Any) -> tuple[list[str], Voice | None]:
    wrong = [problem] if (problem := voice_name_error(name)) else []
    if not isinstance(options, Mapping):
        return [*wrong, f"voice {name!r} is {options!r:.80}, not a map with source and, optionally, digest"], None
    wrong += [
        f"voice {name!r} has the unknown key {key!r}; the keys are source and digest"
        for key in sorted(set(options) - {"source", "digest"}, key=str)
    ]
    source, pin = options.get("source"), options.get("digest")
    if not isinstance(source, str) or not os.path.isabs(source) or "\0" in source:
        wrong.append(f"voice {name!r} has the source {source!r:.200}; a source is an absolute path")
    # An unquoted pin of digits only is a number to YAML, and may have lost its leading zeros.
    if pin not in (None, "") and not (isinstance(pin, str) and _PIN.fullmatch(pin)):
        wrong.append(f"voice {name!r} has the digest {pin!r:.80}; a pin is 12 to 64 lower-case hex digits, in quotes")
    return wrong, None if wrong else Voice(str(name), str(source), pin or "")


def refuse(wrong: Sequence[str]) -> None:
    """Raise one VoicesError of all that is ``wrong``, if anything is."""
    if len(wrong) == 1:
        raise VoicesError(wrong[0])
    if wrong:
        raise VoicesError(f"{len(wrong)} errors, nothing was changed:\n" + "\n".join(f"- {line}" for line in wrong))
