"""From the inventory and what ``gpu_headroom`` read on a host to the placement of its seats. Pure.

``wishes`` is what the module is asked about, ``placed`` takes its answer. Sizing happens here and not on the host,
because what a seat asks for depends on the card, and a seat without one is tried on every card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from .cards import Card
from .cards_spec import parse_cards
from .engine_slots import slots
from .placement import plan_host
from .placement_report import host_dict, unread_host
from .placement_rows import Host, Need, Seat
from .sizing import CannotSize, size_seat
from .sizing_cpu import size_cpu_seat

#: What a seat's description (``seat.describe``) tells the module.
ASKED = ("device", "gpu", "state", "flags", "environment", "engine_file", "max_loras", "max_cpu_loras")


def wishes(described: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The module's ``seats``, from each seat's description."""
    return {
        name: {
            **{key: seat[key] for key in ASKED},
            "carrier": seat["flags"]["model"],
            "image": seat["compose"].get("image", ""),
            "project": seat["compose"].get("project", ""),
            "voices": len(seat["present"]),
        }
        for name, seat in described.items()
    }


def placed(host: str, looked: Mapping[str, Any], seats: Mapping[str, Mapping[str, Any]], cards: Any) -> dict[str, Any]:
    """One host of the plan's document. ``looked`` is the module's result, also one that failed or never came."""
    if "cards" not in looked:
        why = str(looked.get("msg") or looked.get("module_stderr") or "the module said nothing").strip()
        return unread_host(host, f"unreachable: {why}" if looked.get("unreachable") else why)
    declarations, errors = parse_cards(cards)
    if errors:
        return unread_host(host, "; ".join(errors))
    found = Host(
        name=host,
        cards=tuple(Card.from_dict(card) for card in looked["cards"]),
        declarations=declarations,
        memory=Card.from_dict(looked["memory"]) if looked.get("memory") else None,
        problem=looked.get("problem") or "",
    )
    return host_dict(plan_host(found, [_seat(name, seat, looked) for name, seat in seats.items()]))


def _seat(name: str, seat: Mapping[str, Any], looked: Mapping[str, Any]) -> Seat:
    known = looked.get("seats", {}).get(name, {})
    return Seat(
        name=name,
        device=seat["device"],
        gpu=seat["gpu"],
        state=seat["state"],
        need=_needs(seat, known),
    )


def _needs(seat: Mapping[str, Any], known: Mapping[str, Any]) -> Callable[[Card], Need]:
    """What the seat takes on a card; cards of one kind are asked about once."""

    @cache
    def sized(total_bytes: int, card_name: str) -> Need:
        if known.get("carrier_problem") or not known.get("config"):
            raise CannotSize(known.get("carrier_problem") or "its carrier was not read")
        flags = _flags(seat, known)
        if seat["device"] == "cpu":
            on_host = size_cpu_seat(known["config"], flags, seat["environment"])
            return Need(on_host.resident_bytes, details=on_host.as_dict())
        size = size_seat(
            known["config"],
            flags,
            engine_version=known.get("engine_version") or "",
            cuda_total_bytes=total_bytes,
            card_name=card_name,
            tensor_bytes=known.get("tensor_bytes"),
            environment=seat["environment"],
        )
        return Need(
            resident_bytes=size.resident_bytes,
            request_bytes=size.request_bytes or 0,
            context_bytes=size.context_bytes,
            loaded_bytes=size.loaded_bytes,
            details=size.as_dict(),
        )

    return lambda card: sized(card.cuda_total_bytes, card.name)


def _flags(seat: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The flags with the adapter slots that the engine would have: those in force stay while they suffice."""
    at_once, at_hand = slots(
        seat["voices"], seat["max_loras"], seat["max_cpu_loras"], known.get("flags_in_force") or {}
    )
    return {**seat["flags"], "max-loras": at_once, "max-cpu-loras": at_hand}
