"""playbooks/plan.yml with the real module on hosts whose driver's library is the double: what it shows and writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench.plan_scale import judged, verdicts
from tests.support.nvml.nvml_double import MIB, build, environment, scenario, write
from tests.support.plan_fleet import host_python, write_fleet
from tests.support.play import REPOSITORY, Play, run_play
from tests.unit.test_placement_facts import QWEN3_4B

SEAT_PID, PLAYBOOK = 5_000_001, "playbooks/plan.yml"
FLEET = yaml.safe_load((REPOSITORY / "inventory/fleet/host_vars/fv-ml1.yml").read_text())


class Hosts:
    """An inventory below ``root``; each host sees its own scenario. ``said`` is the plan's text, ``data`` its JSON."""

    def __init__(self, root: Path) -> None:
        self.root, self.hosts = root, {}
        self.carrier = root / "carrier"
        self.carrier.mkdir()
        (self.carrier / "config.json").write_text(json.dumps(QWEN3_4B))

    def add(self, name: str, cards: dict[str, Any], **variables: Any) -> None:
        """A host on this machine whose NVML answers with ``cards``."""
        path = write(self.root / f"{name}.json", cards)
        self.add_plain(name, str(host_python(self.root / f"{name}-python", environment(build(), path))), **variables)

    def add_plain(self, name: str, python: str, **variables: Any) -> None:
        """A host on this machine with an interpreter of its own."""
        self.hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": python,
            "ansible_remote_tmp": str(self.root / "tmp"),
            "host_tools_manage": False,
            "voices_seat_root": str(self.root / "made" / name),
            "voices_seat_runtime": "supervisor",
            "voices_seat_generate_api_key": True,
            "voices_seats": {"qwen3-4b": self.seat()},
            **variables,
        }

    def seat(self, **changes: Any) -> dict[str, Any]:
        """The reference seat, with few sequences and small batches, as it fits beside its tenants."""
        return {
            "carrier": str(self.carrier),
            "gpu": "0",
            "port": 8027,
            "dtype": "bfloat16",
            "max_model_len": 8192,
            "kv_cache_mib": 1536,
            "gpu_memory_utilization": 0.11,
            "max_lora_rank": 32,
            "max_loras": 4,
            "engine_flags": {"max-num-seqs": 32, "max-num-batched-tokens": 2048},
            "voices": {"lv-yarros": {"source": "lv-yarros"}, "lv-bronte": {"source": "lv-bronte"}},
            **changes,
        }

    def plan(
        self, *, limit: str = "all", check: bool = False, to_file: bool = True
    ) -> tuple[Play, str, dict[str, Any]]:
        """The play, its text, and its JSON."""
        inventory = self.root / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": {"voices_hosts": {"hosts": self.hosts}}}}))
        written = self.root / "plan.json"
        written.unlink(missing_ok=True)
        extra = {"voices_plan_json": str(written)} if to_file else None
        play = run_play(inventory, playbook=PLAYBOOK, limit=limit, check=check, extra=extra)
        shown = [task["msg"] for task in play.tasks if task["task"].endswith("Show the plan")]
        assert len(shown) == 1, play.output
        return play, shown[0], json.loads(written.read_text()) if written.exists() else {}


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    """No host yet."""
    return Hosts(tmp_path)


@pytest.fixture
def engine(hosts: Hosts) -> Iterator[int]:
    """The pid of a process that looks like the seat's engine on fv-ml1."""
    file = f"{hosts.root}/made/fv-ml1/seats/qwen3-4b/engine/engine.yaml"
    program = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, "--config", file]) as process:
        yield process.pid
        process.kill()


def seats_of(data: dict[str, Any], host: str) -> dict[str, dict[str, Any]]:
    (found,) = (one for one in data["hosts"] if one["host"] == host)
    return {seat["seat"]: seat for seat in found["seats"]}


def files_below(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if "tmp" not in path.relative_to(directory).parts}


def reference(hosts: Hosts, engine: int) -> None:
    seats = {"qwen3-4b": hosts.seat(), "second": hosts.seat(gpu="", device="gpu", port=8028)}
    cards = scenario("reference_host", {SEAT_PID: engine})
    hosts.add("fv-ml1", cards, voices_seats=seats, voices_seat_cards=FLEET["voices_seat_cards"])


def test_the_reference_host_has_room_for_its_seat_and_for_no_other(hosts: Hosts, engine: int) -> None:
    reference(hosts, engine)
    play, text, data = hosts.plan()
    assert play.rc == 0, play.output
    found = seats_of(data, "fv-ml1")
    assert (found["qwen3-4b"]["verdict"], found["qwen3-4b"]["running"]) == ("fits", True)
    assert found["qwen3-4b"]["request_bytes"] // MIB == 10_697
    assert found["second"]["verdict"] == "no_room"
    assert [miss["card"] for miss in found["second"]["misses"]] == [1, 2, 0, 3]
    assert [card["tenants_peak_bytes"] // MIB for card in data["hosts"][0]["cards"]] == [85_352, 0, 0, 0]
    assert "held for flash-next, which needs 95,232" in text
    assert "NO ROOM" in text
    shown = [line for line in play.output.splitlines() if line.strip() in {one.strip() for one in text.splitlines()}]
    assert len(shown) >= len(text.splitlines()) - 1
    assert max(map(len, shown)) <= 100


def test_check_mode_shows_and_writes_the_same_and_nothing_is_made(hosts: Hosts, engine: int) -> None:
    reference(hosts, engine)
    real, text, data = hosts.plan()
    before = files_below(hosts.root)
    check, text_in_check, data_in_check = hosts.plan(check=True)
    without = hosts.plan(to_file=False)
    # Host memory is the machine's own, and moves.
    for one in (data, data_in_check):
        one["hosts"][0].pop("memory")
    assert data_in_check == data
    assert without_memory(text_in_check) == without_memory(text) == without_memory(without[1])
    assert without[2] == {}
    assert files_below(hosts.root) == before - {hosts.root / "plan.json"}
    assert not (hosts.root / "made").exists()
    assert [play.changed for play in (real, check)] == [["voices_seat : Write the plan"]] * 2
    assert without[0].changed == []


def without_memory(text: str) -> list[str]:
    return [line for line in text.splitlines() if "host memory" not in line]


def test_a_host_that_cannot_be_read_is_a_row_and_the_others_are_planned(hosts: Hosts, tmp_path: Path) -> None:
    hosts.add("a-good", scenario("h200_empty"))
    hosts.add_plain("b-gone", sys.executable, ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1)
    hosts.add_plain("c-bare", str(tmp_path / "no/python"))
    hosts.add("d-driver", scenario("driver_not_loaded"), voices_seats={"on-cpu": hosts.seat(gpu="")})
    hosts.add("e-wrong", scenario("h200_empty"), voices_seat_cards={"7": {}})
    hosts.add("f-refused", scenario("h200_empty"), voices_seat_cards={"0": {"reserve": 1}}, voices_seat_rot="/x")
    hosts.add("g-carrier", scenario("h200_empty"), voices_seats={"lost": hosts.seat(carrier="/nowhere/at/all")})
    play, text, data = hosts.plan()
    assert play.rc == 0, play.output
    said = {host["host"]: host["problem"] for host in data["hosts"]}
    assert list(said) == ["a-good", "b-gone", "c-bare", "d-driver", "e-wrong", "f-refused", "g-carrier"]
    assert said["a-good"] == said["g-carrier"] == ""
    assert said["b-gone"].startswith("unreachable: ")
    assert "no/python" in said["c-bare"]
    assert "NVML does not start" in said["d-driver"]
    assert "card 7, which this host does not have" in said["e-wrong"]
    assert all(word in said["f-refused"] for word in ("refused", "voices_seat_rot", "'reserve'"))
    assert seats_of(data, "a-good")["qwen3-4b"]["verdict"] == "fits"
    assert seats_of(data, "d-driver")["on-cpu"]["verdict"] in ("fits", "refused")
    assert seats_of(data, "g-carrier")["lost"]["verdict"] == "unknown"
    assert "carrier /nowhere/at/all does not exist" in seats_of(data, "g-carrier")["lost"]["message"]
    assert data["summary"]["hosts_unread"] == 5
    assert "the cards of 5 hosts could not be read" in text


def test_cards_that_say_nothing_are_rows(hosts: Hosts) -> None:
    for name in ("mig", "unified_memory", "no_permission", "lost_card"):
        hosts.add(name.replace("_", "-"), scenario(name))
    _play, _text, data = hosts.plan()
    problems = {host["host"]: [card["problem"] for card in host["cards"]] for host in data["hosts"]}
    assert all(any(found) for name, found in problems.items() if name != "no-permission"), problems
    for host in data["hosts"]:
        for seat in host["seats"]:
            if host["cards"][0]["problem"]:
                assert (seat["verdict"], seat["message"]) == ("unknown", host["cards"][0]["problem"])


def test_a_run_without_a_limit_is_refused(hosts: Hosts) -> None:
    hosts.add("a-good", scenario("h200_empty"))
    inventory = hosts.root / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"children": {"voices_hosts": {"hosts": hosts.hosts}}}}))
    play = run_play(inventory, playbook=PLAYBOOK, limit="")
    assert play.rc != 0
    assert "No --limit was given" in play.output
    assert not any(task["module"] == "gpu_headroom" for task in play.tasks)


def test_simulated_facts_give_the_plan_that_the_module_gives(tmp_path: Path) -> None:
    plans = []
    for facts in (True, False):
        written = tmp_path / f"{facts}.json"
        inventory = write_fleet(tmp_path / str(facts), 2, facts=facts)
        play = run_play(inventory, playbook=PLAYBOOK, limit="all", extra={"voices_plan_json": str(written)})
        assert play.rc == 0, play.output
        assert any(task["module"] == "gpu_headroom" for task in play.tasks) is not facts
        plans.append(json.loads(written.read_text()))
    for host in [*plans[0]["hosts"], *plans[1]["hosts"]]:
        host.pop("memory")  # the machine's own, which moves
    assert plans[0] == plans[1]


def test_the_time_grows_linearly_with_the_hosts() -> None:
    _rows, wrong = judged((4, 16, 50), facts=True)
    assert wrong == []


def test_a_time_that_grows_with_the_square_is_found() -> None:
    rows = [{"hosts": hosts, "seconds": 1.0, "cpu_seconds": 2 + 0.01 * hosts**2} for hosts in (4, 16, 50)]
    assert len(verdicts(rows, 20)) == 1
    straight = [{**row, "cpu_seconds": 2 + 0.5 * row["hosts"]} for row in rows]
    assert verdicts(straight, 20) == []
    assert len(verdicts(straight, 0.5)) == 1
