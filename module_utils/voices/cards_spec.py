"""What may stand in ``voices_seat_cards``: who else lives on a card, what is kept free, whom it is held for. Pure.

``parse_cards`` never raises for bad input: it returns every error it finds. Sizes are MiB in the inventory and bytes in
the declarations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .options import typed

MIB = 1024 * 1024

#: No card has as much; a larger number is a mistaken unit (bytes, KiB).
MOST_MIB = 1024 * 1024

NAME_RULE = "letters, digits, dots, underscores and hyphens, starting with a letter or digit, at most 64 characters"

_INDEX = re.compile(r"0|[1-9][0-9]{0,2}")
_UUID = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

CARD_SPEC: dict[str, dict[str, Any]] = {
    "reserve_mib": {"type": "int", "default": 0},
    "hold": {"type": "dict"},
    "tenants": {"type": "dict", "default": {}},
}
HOLD_SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "needs_mib": {"type": "int", "default": 0},
}
TENANT_SPEC: dict[str, dict[str, Any]] = {
    "peak_mib": {"type": "int", "required": True},
    "container": {"type": "str", "default": ""},
    "command": {"type": "str", "default": ""},
}


@dataclass(frozen=True)
class Tenant:
    """Another process on the card. ``peak_bytes`` is the most that it may take; 0 is refused by the parser.

    ``container`` (its name) and ``command`` (a part of its command line) find it among the running processes; both may
    be empty, then no process is known to be this tenant.
    """

    name: str
    peak_bytes: int
    container: str = ""
    command: str = ""


@dataclass(frozen=True)
class CardDeclaration:
    """What the inventory says of one card.

    ``reserve_bytes`` stay free by policy; ``hold_name`` is the seat that the card is kept for ("" for none) and
    ``hold_bytes`` what that seat needs (0: not said).
    """

    reserve_bytes: int = 0
    hold_name: str = ""
    hold_bytes: int = 0
    tenants: tuple[Tenant, ...] = field(default=())


NOTHING_DECLARED = CardDeclaration()


def parse_cards(cards: Any) -> tuple[dict[str, CardDeclaration], list[str]]:
    """Declarations by card key (index as text, or UUID as NVML writes it), and every error (none means: valid)."""
    if not isinstance(cards, Mapping):
        return {}, [f"voices_seat_cards is a {type(cards).__name__}; it is a dict of cards by index or GPU UUID"]
    found: dict[str, CardDeclaration] = {}
    errors: list[str] = []
    for given_key, given in cards.items():
        key = card_key(given_key)
        if not key:
            errors.append(
                f"voices_seat_cards, card {given_key!r}: it is neither an index nor a GPU UUID; write it like "
                '"0" or GPU-01234567-89ab-... (nvidia-smi -L lists both)'
            )
            continue
        if key in found:
            errors.append(f"voices_seat_cards, card {key}: it stands twice; put all of it under one key")
            continue
        found[key], wrong = _card(f"voices_seat_cards, card {key}", given)
        errors += wrong
    return found, errors


def card_key(given: object) -> str:
    """A card's index or UUID in the one way of writing it, "" for what is neither. YAML reads an index as a number."""
    if isinstance(given, bool) or not isinstance(given, int | str):
        return ""
    text = str(given).strip()
    if _INDEX.fullmatch(text):
        return text
    lower = text.lower()
    return f"GPU-{lower[4:]}" if _UUID.fullmatch(lower) else ""


def key_errors(keys: Iterable[str], uuids: Mapping[int, str]) -> list[str]:
    """What is wrong with declared keys on the host that has these cards (UUID by index).

    A key that names no card is a mistake that would otherwise drop its hold; one card under two keys would have two
    truths.
    """
    index_of = {uuid: index for index, uuid in uuids.items()}
    cards = ", ".join(f"{index} ({uuid})" for index, uuid in sorted(uuids.items())) or "none"
    errors = []
    first: dict[int, str] = {}
    for key in keys:
        index = index_of.get(key) if key.startswith("GPU-") else int(key)
        if index is None or index not in uuids:
            errors.append(f"voices_seat_cards names card {key}, which this host does not have; its cards are {cards}")
        elif (other := first.setdefault(index, key)) != key:
            errors.append(f"voices_seat_cards names card {index} twice, as {other} and as {key}; put all under one key")
    return errors


def declared_for(declarations: Mapping[str, CardDeclaration], index: int, uuid: str) -> CardDeclaration:
    """What is declared for one card, by either key; nothing declared is a declaration too."""
    return declarations.get(uuid) or declarations.get(str(index)) or NOTHING_DECLARED


def _card(where: str, given: Any) -> tuple[CardDeclaration, list[str]]:
    if not isinstance(given, Mapping):
        return NOTHING_DECLARED, [f"{where} is a {type(given).__name__}; it is a dict of reserve_mib, hold and tenants"]
    card, errors = _options(where, CARD_SPEC, given)
    reserve, wrong = _mib(where, "reserve_mib", card["reserve_mib"], least=0)
    errors += wrong
    hold_name, hold_bytes = "", 0
    if card["hold"] is not None:
        hold_name, hold_bytes, wrong = _hold(where, card["hold"])
        errors += wrong
    tenants = []
    for name, options in card["tenants"].items():
        tenant, wrong = _tenant(where, name, options)
        errors += wrong
        tenants += [tenant] if tenant else []
    errors += _matched_twice(where, tenants)
    return CardDeclaration(reserve, hold_name, hold_bytes, tuple(sorted(tenants, key=lambda one: one.name))), errors


def _hold(where: str, given: Mapping[Any, Any]) -> tuple[str, int, list[str]]:
    hold, errors = _options(f"{where}: hold", HOLD_SPEC, given)
    name = hold["name"]
    if name is not None and not _NAME.fullmatch(name):
        errors.append(f"{where}: hold {name!r} is no name; a name is {NAME_RULE}")
    needs, wrong = _mib(f"{where}: hold {name}", "needs_mib", hold["needs_mib"], least=0)
    return (name or "", needs, errors + wrong)


def _tenant(where: str, name: Any, given: Any) -> tuple[Tenant | None, list[str]]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None, [f"{where}: tenant {name!r} is no name; a name is {NAME_RULE}"]
    where = f"{where}: tenant {name}"
    if not isinstance(given, Mapping):
        return None, [
            f"{where} is a {type(given).__name__}; it is a dict such as {{peak_mib: 4096, container: {name}}}"
        ]
    tenant, errors = _options(where, TENANT_SPEC, given)
    peak, wrong = _mib(where, "peak_mib", tenant["peak_mib"], least=1)
    errors += wrong
    for key in ("container", "command"):
        if not tenant[key].isprintable() or len(tenant[key]) > 256 or tenant[key] != tenant[key].strip():
            errors.append(f"{where}: {key} {tenant[key]!r} is not one line of at most 256 characters without margins")
    return Tenant(name, peak, tenant["container"], tenant["command"]), errors


def _options(where: str, spec: dict[str, dict[str, Any]], given: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Like ``typed``, and without its bridges: a bool is no number, a number is no text."""
    kinds = {"int": (int, str), "str": (str,), "dict": (Mapping,)}
    wrong = {
        key: value
        for key, value in given.items()
        if key in spec
        and value is not None
        and (isinstance(value, bool) or not isinstance(value, kinds[spec[key]["type"]]))
    }
    # What is refused here is given in its default's place, so that it is refused once.
    stand_in: dict[str, Any] = {"int": "1", "str": "x", "dict": {}}
    values, errors = typed(where, spec, {**given, **{key: stand_in[spec[key]["type"]] for key in wrong}})
    for key, value in wrong.items():
        hint = " in MiB" if key.endswith("_mib") else ""
        errors.append(
            f"{where}: {key} is a {type(value).__name__} ({value!r}); it is a {_SAID[spec[key]['type']]}{hint}"
        )
        values[key] = spec[key].get("default")
    return values, errors


_SAID = {"int": "whole number", "str": "text", "dict": "dict"}


def _mib(where: str, key: str, mib: int | None, *, least: int) -> tuple[int, list[str]]:
    """Bytes of a size, and why it is none. None has been refused already."""
    if mib is None:
        return 0, []
    if not least <= mib <= MOST_MIB:
        return 0, [f"{where}: {key} {mib} is outside {least} to {MOST_MIB:,} MiB; write MiB, as nvidia-smi shows them"]
    return mib * MIB, []


def _matched_twice(where: str, tenants: list[Tenant]) -> list[str]:
    """Two tenants with one rule would both claim the same process, and its peak would count once only."""
    first: dict[tuple[str, str], str] = {}
    errors = []
    for tenant in tenants:
        rule = (tenant.container, tenant.command)
        other = first.setdefault(rule, tenant.name) if any(rule) else tenant.name
        if other != tenant.name:
            errors.append(
                f"{where}: tenants {other} and {tenant.name} have the same container and command; say how they differ"
            )
    return errors
