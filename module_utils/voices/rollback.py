"""What ``voice_rollback.yml`` asks of the inventory, and what it may not carry along. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .names import voice_name_error
from .plan import Action
from .spec import normalise


def seats_with(seats: Mapping[str, Any], voice: str) -> list[str]:
    """The seats whose inventory knows the voice, sorted; ``seats`` are normalised."""
    return sorted(name for name, seat in seats.items() if voice in seat["voices"])


def rollback_seat(seats: Any, *, voice: str, seat: str, runtime: str) -> str:
    """The seat that is meant: the named one, or the only one that has the voice; empty where that is not clear."""
    if seat:
        return seat
    found = seats_with(normalise(seats, runtime=runtime, generate_api_key=True)[0], voice)
    return found[0] if len(found) == 1 else ""


def rollback_errors(seats: Any, *, voice: str, seat: str, runtime: str) -> list[str]:
    """Why the rollback of ``voice`` is refused; empty when it may go on. ``seat`` may be empty."""
    normal, errors = normalise(seats, runtime=runtime, generate_api_key=True)
    if errors:
        return errors
    if error := voice_name_error(voice):
        return [f"{error}; name it with -e voice=lv-x"]
    known = seats_with(normal, voice)
    if seat and seat not in normal:
        return [f"seat {seat!r} is none of this host's: {', '.join(sorted(normal)) or 'it has none'}"]
    if not seat and len(known) > 1:
        return [f"{voice} stands in the inventory of the seats {', '.join(known)}: choose one with -e seat=NAME"]
    if not known or (seat and seat not in known):
        where = f"seat {seat}" if seat else "any seat of this host"
        return [
            f"{voice} does not stand in the inventory of {where}. If it is served all the same it is on trial, and a "
            "trial is not rolled back: try another adapter with voice_try.yml, or put the voice into the inventory"
        ]
    chosen = seat or known[0]
    state = normal[chosen]["voices"][voice]["state"]
    if state != "present":
        return [f"{voice} is {state} on seat {chosen}: set state: present and run site.yml, then it can be rolled back"]
    if normal[chosen]["state"] != "present":
        return [f"seat {chosen} is {normal[chosen]['state']}: there is nothing live to roll back"]
    return []


def pinned(seats: Any, *, seat: str, voice: str, digest: str) -> dict[str, Any]:
    """The seats with this one pin set: what the inventory says once it has been edited."""
    voices = {**seats[seat]["voices"], voice: {**seats[seat]["voices"][voice], "digest": digest}}
    return {**seats, seat: {**seats[seat], "voices": voices}}


def others(actions: Iterable[Mapping[str, Any]], voice: str) -> list[str]:
    """The lines of those ``actions`` that are done to anything else than the voice and its entries."""
    return [
        Action(**action).line()
        for action in actions
        if action["what"] != voice and not str(action["what"]).startswith(f"{voice}@")
    ]
