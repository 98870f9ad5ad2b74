"""A fleet that is not there: an inventory of hosts on this machine, each with cards of its own.

usage: python -m tests.support.plan_fleet DIRECTORY HOSTS [--facts]

Every host is the real thing up to the driver's library, which is the NVML double: the module runs there in a process of
its own, with its host's interpreter, a script that names the host's scenario. With --facts no module runs: each host
comes with the facts that the module would return (voices_plan_facts), one JSON file a host.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

import tests.conftest  # noqa: F401 - makes the core importable
from tests.support.nvml.nvml_double import MIB, build, environment
from tests.support.tiny_carrier import write_carrier

# isort: split
from ansible.module_utils.voices.cards import Card, CardProcess
from ansible.module_utils.voices.carrier_client import look_at_seat

CARDS = 8
#: No process of this machine: Linux goes to 4,194,304.
FIRST_PID = 5_000_000


def card(host: int, index: int) -> dict[str, Any]:
    """A card of 97,887 MiB, of which tenants hold more and more from card to card and from host to host."""
    sizes = [1_000 * index + 500 * (host % 7) + 1, 8_000 * index + 1_000 * (host % 5) + 1]
    return {
        "uuid": f"GPU-{host:08x}-0000-4000-8000-{index:012x}",
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "total_bytes": 97_887 * MIB,
        "reserved_bytes": 638 * MIB,
        "used_bytes": sum(sizes) * MIB,
        "processes": [
            {"pid": FIRST_PID + 100 * index + number, "used_bytes": size * MIB} for number, size in enumerate(sizes)
        ],
    }


def seats(carrier: Path) -> dict[str, Any]:
    """Two seats with a card, two that are looking for one."""
    common = {
        "carrier": str(carrier),
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "kv_cache_mib": 4096,
        "gpu_memory_utilization": 0.11,
        "voices": {"lv-austen": {"source": "lv-austen"}, "lv-bronte": {"source": "lv-bronte"}},
    }
    places = ({"gpu": "0"}, {"gpu": "7"}, {"device": "gpu"}, {"device": "gpu", "kv_cache_mib": 8192})
    return {f"seat-{number}": {**common, "port": 8100 + number, **place} for number, place in enumerate(places)}


def group_variables(directory: Path, facts: bool) -> dict[str, Any]:
    """What all hosts have in common, as a fleet of one kind of machine has it."""
    file = "lookup('ansible.builtin.file', inventory_dir ~ '/facts/' ~ inventory_hostname ~ '.json')"
    tenants = {"speech": {"peak_mib": 4_000}, "chat": {"peak_mib": 9_000}}
    return {
        "ansible_connection": "local",
        "ansible_remote_tmp": str(directory / "tmp"),
        "host_tools_manage": False,
        "voices_seat_root": str(directory / "root"),
        "voices_seat_runtime": "supervisor",
        "voices_seat_generate_api_key": True,
        "voices_seat_cards": {
            **{str(index): {"reserve_mib": 256, "tenants": tenants} for index in range(CARDS - 2)},
            str(CARDS - 2): {"hold": {"name": "flash-next", "needs_mib": 95_232}},
        },
        "voices_seats": seats(directory / "carrier"),
        **({"voices_plan_facts": f"{{{{ {file} | from_json }}}}"} if facts else {}),
    }


def host_python(path: Path, variables: dict[str, str]) -> Path:
    """An interpreter that runs what it is given under ``variables``, for one host alone."""
    settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items())
    path.write_text(f'#!/bin/sh\n{settings} exec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return path


def interpreter(directory: Path, number: int) -> Path:
    """The interpreter of one host, which sees that host's cards."""
    scenario = directory / f"scenarios/{number}.json"
    scenario.write_text(json.dumps({"driver": "580.159.04", "cards": [card(number, index) for index in range(CARDS)]}))
    return host_python(directory / f"interpreters/{number}", environment(build(), scenario))


def simulated_facts(directory: Path, number: int) -> dict[str, Any]:
    """What the module would return of one host."""
    keys = ("uuid", "name", "total_bytes", "reserved_bytes", "used_bytes")
    cards = []
    for index in range(CARDS):
        given = card(number, index)
        processes = tuple(CardProcess(one["pid"], one["used_bytes"]) for one in given["processes"])
        free = given["total_bytes"] - given["reserved_bytes"] - given["used_bytes"]
        cards.append(Card(index, **{key: given[key] for key in keys}, free_bytes=free, processes=processes).as_dict())
    carrier = str(directory / "carrier")
    known = look_at_seat({"carrier": carrier, "engine_file": f"{carrier}/none", "image": ""})
    names = seats(directory / "carrier")
    return {"cards": cards, "memory": None, "problem": "", "seats": dict.fromkeys(names, known)}


def write_fleet(directory: Path, hosts: int, *, facts: bool = False) -> Path:
    """The inventory file of ``hosts`` hosts, host-000 and on."""
    for name in ("scenarios", "interpreters", "facts"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    write_carrier(directory / "carrier")
    named = {}
    for number in range(hosts):
        name = f"host-{number:03d}"
        named[name] = {"ansible_python_interpreter": str(interpreter(directory, number))}
        if facts:
            (directory / f"facts/{name}.json").write_text(json.dumps(simulated_facts(directory, number)))
    inventory = directory / "hosts.yml"
    group = {"hosts": named, "vars": group_variables(directory, facts)}
    inventory.write_text(yaml.safe_dump({"all": {"children": {"voices_hosts": group}}}))
    return inventory


if __name__ == "__main__":
    print(write_fleet(Path(sys.argv[1]), int(sys.argv[2]), facts="--facts" in sys.argv[3:]))
