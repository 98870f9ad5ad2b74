#!/usr/bin/python
"""Ansible module: what a host's cards hold, and whether a seat fits beside their tenants."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

YAML_ERROR = NVML_ERROR = None
try:
    import yaml  # noqa: F401 - carrier_client needs it
except ImportError:
    YAML_ERROR = traceback.format_exc()
try:
    import pynvml  # noqa: F401 - nvml_client needs it
except ImportError:
    NVML_ERROR = traceback.format_exc()

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.voices.cards import Card
from ansible.module_utils.voices.cards_spec import CardDeclaration, key_errors, parse_cards
from ansible.module_utils.voices.container_names import container_names
from ansible.module_utils.voices.gpu_processes import SeatMarks, with_owners
from ansible.module_utils.voices.host_memory import read_memory
from ansible.module_utils.voices.module_main import errors_reported, require
from ansible.module_utils.voices.placement_facts import placed
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.residency import Residency, compare, measured_bytes

if YAML_ERROR is None:
    from ansible.module_utils.voices.carrier_client import look_at_seat
if NVML_ERROR is None:
    from ansible.module_utils.voices.nvml_client import read_cards

DOCUMENTATION = r"""
---
module: gpu_headroom
short_description: What a host's cards hold, and whether a seat fits beside their tenants
version_added: "0.1.0"
description:
  - Reads every card of the host through NVML, whose its processes are, and the carriers of the host's seats. With
    O(seat) it says whether that seat fits on its card now, and when every declared tenant is at its peak.
  - The engine asks for its share of the card's total and refuses to start when less is free. It looks after its own
    CUDA context is open, so that context counts. What the seat holds now is not counted against its own replacement.
  - A seat whose engine runs on the CPU gets the same verdict on host memory.
  - It changes nothing. A card of which NVML says nothing (split by MIG, memory shared with the host, lost, no right to
    ask) is a verdict too, with the reason.
options:
  seats:
    description:
      - The host's seats by name, as the filter C(voices_plan_wishes) describes them.
    type: dict
    required: true
  cards:
    description: What is declared of the cards, the role's C(voices_seat_cards).
    type: dict
    default: {}
  seat:
    description: The seat that the verdict is about. Left out, cards and seats are only looked at.
    type: str
  enforce:
    description: Fail when O(seat) does not fit. V(false) reports it.
    type: bool
    default: true
  docker_host:
    description: Where Docker is asked for the names of containers. No answer means that their ids are shown.
    type: str
    default: unix:///var/run/docker.sock
attributes:
  check_mode:
    description: It reads only, so that both modes are the same.
    support: full
  diff_mode:
    description: There is never a difference to show.
    support: full
  idempotent:
    description: It changes nothing.
    support: full
notes:
  - Run it as root to see whose the processes are. What cannot be read counts as used, by nobody.
author: the voices seat maintainers
"""

EXAMPLES = r"""
- name: Refuse a seat that does not fit
  gpu_headroom:
    seat: qwen3-4b
    seats: "{{ voices_seats | voices_plan_wishes('compose', '/var/lib/voices', '/models', '/usr/bin/python3') }}"
    cards:
      "0": {reserve_mib: 256, tenants: {speech: {peak_mib: 4096, container: speech}}}
"""

RETURN = r"""
cards:
  description: Every card, in bytes, with its processes. A card with a C(problem) says why nothing can be told of it.
  returned: success
  type: list
  elements: dict
memory:
  description: Host memory in the form of a card, with the processes of the seats.
  returned: success
  type: dict
problem:
  description: Why there are no cards, such as a missing driver or nvidia-ml-py. Empty when NVML answers.
  returned: success
  type: str
seats:
  description: For each seat, its carrier's config and bytes of tensors, or why not, and the engine's version.
  returned: success
  type: dict
fits:
  description: Whether O(seat) may start.
  returned: with seat
  type: bool
resident:
  description: Whether O(seat) runs there now.
  returned: with seat
  type: bool
verdict:
  description: The seat's row of the plan, with its size, see docs/operations/plan.md.
  returned: with seat
  type: dict
residency:
  description: What the seat holds now against what was predicted. Empty while it does not run, or NVML does not say.
  returned: with seat
  type: dict
  contains:
    measured_bytes: {description: What it holds., type: int}
    predicted_bytes: {description: What it should hold after its start., type: int}
    loaded_bytes: {description: The most that it should hold with traffic., type: int}
    difference_bytes: {description: By how much it is outside the two., type: int}
message:
  description: The verdict in words.
  returned: with seat
  type: str
  sample: >-
    Seat qwen3-4b fits on card 0: it takes 10,735 MiB, up to 11,210; 731 MiB are left now and 687 at the tenants' peaks.
actions:
  description: Always empty, as it only looks.
  returned: success
  type: list
  elements: dict
  sample: []
"""

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "seats": {"type": "dict", "required": True},
    "cards": {"type": "dict", "default": {}},
    "seat": {"type": "str"},
    "enforce": {"type": "bool", "default": True},
    "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
}


def look(params: dict[str, Any]) -> dict[str, Any]:
    """Everything that a plan of this host needs, as plain data."""
    seats = params["seats"]
    marks = [SeatMarks(name, str(seat["engine_file"]), str(seat.get("project") or "")) for name, seat in seats.items()]
    # A host without nvidia-ml-py may well serve seats on its CPU.
    cards, problem = ((), missing_required_lib("nvidia-ml-py")) if NVML_ERROR else read_cards()
    declared, errors = parse_cards(params["cards"])
    if errors or (not problem and (errors := keys_refused(declared, cards))):
        raise VoicesError("; ".join(errors))
    names = container_names(params["docker_host"]) if any(card.processes for card in cards) else {}
    on_cpu = [mark for mark in marks if seats[mark.name]["device"] == "cpu"]
    return {
        "cards": [with_owners(card, marks, names).as_dict() for card in cards],
        "memory": read_memory(on_cpu).as_dict(),
        "problem": problem,
        "seats": {name: look_at_seat(seat) for name, seat in seats.items() if seat["state"] == "present"},
    }


def keys_refused(declared: Mapping[str, CardDeclaration], cards: Sequence[Card]) -> list[str]:
    """Declared cards that the host lacks. Of a card that fell off the bus nobody can say that it is not the one."""
    whole = all(card.uuid for card in cards)
    return key_errors([key for key in declared if whole or key.isdigit()], {card.index: card.uuid for card in cards})


def judge_seat(params: dict[str, Any], looked: dict[str, Any]) -> dict[str, Any]:
    """The verdict on the one seat, by the same plan that playbooks/plan.yml shows."""
    name = params["seat"]
    if name not in params["seats"]:
        raise VoicesError(f"seat {name!r} is none of the host's seats {', '.join(sorted(params['seats'])) or '(none)'}")
    wanted = {**params["seats"], name: {**params["seats"][name], "state": "present"}}
    looked = {**looked, "seats": {**looked["seats"], name: look_at_seat(wanted[name])}}
    (row,) = (one for one in placed("this host", looked, wanted, params["cards"])["seats"] if one["seat"] == name)
    held = measured_bytes(name, row, looked)
    residency = compare(held, row) if held else None
    return {
        "fits": row["verdict"] == "fits",
        "resident": row["running"],
        "verdict": row,
        "residency": residency.as_dict() if isinstance(residency, Residency) else {},
        "message": row["message"],
        "warnings_found": [*row.get("warnings", []), *([residency.warning] if residency and residency.warning else [])],
    }


def main() -> None:
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    require(module, "PyYAML", YAML_ERROR)
    result: dict[str, Any] = {"changed": False, "actions": []}
    with errors_reported(module):
        result |= look(module.params)
        if module.params["seat"]:
            result |= judge_seat(module.params, result)
    for warning in result.pop("warnings_found", []):
        module.warn(warning)
    if module.params["seat"] and module.params["enforce"] and not result["fits"]:
        module.fail_json(msg=result["message"], **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
