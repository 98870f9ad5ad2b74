"""Filters for the cards of the fleet: what is declared of them, and which seat fits where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ansible.module_utils

# Ansible adds the project's module_utils for modules only; a filter that shares their functions finds it here.
_MODULE_UTILS = str(Path(__file__).resolve().parent.parent / "module_utils")
if _MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_MODULE_UTILS)

from ansible.module_utils.voices.cards_spec import parse_cards  # noqa: E402 - after the path above
from ansible.module_utils.voices.options import plain  # noqa: E402
from ansible.module_utils.voices.placement_facts import placed  # noqa: E402
from ansible.module_utils.voices.placement_facts import wishes as wishes_of  # noqa: E402
from ansible.module_utils.voices.placement_report import document, unread_host  # noqa: E402
from ansible.module_utils.voices.placement_table import render  # noqa: E402
from ansible.module_utils.voices.seat import describe  # noqa: E402
from ansible.module_utils.voices.spec import normalise  # noqa: E402


def voices_card_errors(cards: Any) -> list[str]:
    """Every reason why ``voices_seat_cards`` is refused; an empty list when it is valid."""
    return parse_cards(cards)[1]


def voices_plan_wishes(seats: Any, **defaults: Any) -> dict[str, dict[str, Any]]:
    """What ``gpu_headroom`` is asked about the host's seats; those that are refused are left out.

    ``defaults`` are the host's: runtime, root, adapters_dir, engine_python, generate_api_key.
    """
    return _wishes(seats, **defaults)[0]


def voices_plan_host(
    looked: Mapping[str, Any], host: str, seats: Any, cards: Any, errors: Sequence[str] = (), **defaults: Any
) -> dict[str, Any]:
    """One host of the plan, from what the module found there; ``errors`` are what is wrong besides seats and cards."""
    wishes, refused = _wishes(seats, **defaults)
    cards = plain(cards)
    if wrong := [*errors, *refused, *parse_cards(cards)[1]]:
        return unread_host(host, f"the inventory is refused: {'; '.join(wrong)}")
    return placed(host, plain(looked), wishes, cards)


def _wishes(
    seats: Any, runtime: str, root: str, adapters_dir: str, engine_python: str, generate_api_key: bool = False
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    normal, errors = normalise(seats, runtime=runtime, generate_api_key=generate_api_key)
    described = {
        name: describe(name, seat, root=root, adapters_dir=adapters_dir, engine_python=engine_python)
        for name, seat in normal.items()
    }
    return wishes_of(described), errors


def voices_plan_text(plans: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> str:
    """The plan of ``hosts`` for people. A host without one has failed before it was read."""
    return render(document(_whole(plans, hosts)))


def voices_plan_json(plans: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> str:
    """The same as JSON."""
    return json.dumps(document(_whole(plans, hosts)), indent=1, sort_keys=True) + "\n"


def _whole(plans: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> list[Mapping[str, Any]]:
    return [
        plan or unread_host(host, "a step before this one failed; its message stands above")
        for host, plan in zip(hosts, plans, strict=True)
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """Filter names and functions."""
        return {
            "voices_card_errors": voices_card_errors,
            "voices_plan_wishes": voices_plan_wishes,
            "voices_plan_host": voices_plan_host,
            "voices_plan_text": voices_plan_text,
            "voices_plan_json": voices_plan_json,
        }
