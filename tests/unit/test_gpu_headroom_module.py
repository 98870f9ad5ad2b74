"""The module gpu_headroom with the real pynvml and a stand-in for the driver's library, in and out of this process."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.carrier import SHAPES
from tests.support.nvml import nvml_double
from tests.support.nvml.nvml_double import MIB
from tests.support.run_module import run_module
from tests.unit.test_cards import running

REPOSITORY = Path(__file__).resolve().parents[2]
SEAT, TENANTS = 5_000_001, (5_000_011, 5_000_012, 5_000_013)
#: The reference card's tenants, without a rule, as its inventory has them.
CARDS = {
    "0": {
        "tenants": {
            "cyberprev": {"peak_mib": 47_100},
            "gen-small": {"peak_mib": 36_900},
            "parakeet": {"peak_mib": 1_352},
        }
    }
}
HOLD = {"3": {"hold": {"name": "flash-next", "needs_mib": 95_232}}}


class Host:
    """A host of which NVML says what ``scene`` holds, with the reference seat."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scenario = root / "scenario.json"
        self.environ = nvml_double.environment(nvml_double.build(), self.scenario)
        self.carrier = root / "carrier"
        self.carrier.mkdir()
        (self.carrier / "config.json").write_text(json.dumps(SHAPES["qwen3-4b"]))
        self.engine_file = root / "seats/qwen3-4b/engine/engine.yaml"
        self.seats: dict[str, dict[str, Any]] = {"qwen3-4b": self.seat(utilization=0.11)}

    def seat(self, *, utilization: float = 0.11, **changes: Any) -> dict[str, Any]:
        """The reference seat as the plan describes one: two slots, few sequences, small batches."""
        flags = {
            "model": str(self.carrier),
            "enable-lora": True,
            "max-lora-rank": 32,
            "dtype": "bfloat16",
            "max-model-len": 8192,
            "kv-cache-memory-bytes": 1536 * MIB,
            "gpu-memory-utilization": utilization,
            "max-num-seqs": 32,
            "max-num-batched-tokens": 2048,
        }
        return {
            "device": "gpu",
            "gpu": "0",
            "state": "present",
            "runtime": "compose",
            "flags": flags,
            "environment": {},
            "engine_file": str(self.engine_file),
            "service_dir": str(self.root / "service"),
            "carrier": str(self.carrier),
            "project": "voices-qwen3-4b",
            "image": "vllm/vllm-openai:v0.26.0",
            "voices": 2,
            "max_loras": 2,
            "max_cpu_loras": 2,
            **changes,
        }

    def says(self, data: str | Mapping[str, Any], pids: Mapping[int, int] | None = None) -> Host:
        """NVML of this host says this from now on."""
        nvml_double.write(self.scenario, nvml_double.scenario(data, pids) if isinstance(data, str) else data)
        return self

    def ask(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        """The module's result, from this process."""
        with nvml_double.in_this_process(self.scenario):
            return checked(run_module("gpu_headroom", self.arguments(options), check=check))

    def ask_a_process(self, environ: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
        """The module's result, from a process that Ansible would have started."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.module_process", "gpu_headroom"],
            input=json.dumps(self.arguments(options)),
            env={**os.environ, **(environ or self.environ)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == "", done.stderr
        return checked(json.loads(done.stdout))

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The module's, without a Docker."""
        return {"seats": self.seats, "docker_host": f"unix://{self.root}/no-docker.sock", **options}


def checked(result: dict[str, Any]) -> dict[str, Any]:
    """What holds of every result."""
    assert not result.get("changed"), "it reads only"
    assert "exception" not in result or "ImportError" in result["exception"]
    return result


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def warnings(result: Mapping[str, Any]) -> str:
    return json.dumps(result.get("warnings", []))


# The reference deployment.


def test_the_reference_seat_fits_before_it_is_there_and_while_it_is(host: Host) -> None:
    before = host.says("reference_before").ask(seat="qwen3-4b", cards=CARDS)
    assert (before["fits"], before["resident"], before["changed"], before["actions"]) == (True, False, False, [])
    assert round(before["verdict"]["request_bytes"] / MIB) == 10_697
    assert round(before["verdict"]["resident_bytes"] / MIB) == 10_715
    with running("--config", str(host.engine_file)) as pid:
        there = host.says("reference_with_seat", {SEAT: pid}).ask(seat="qwen3-4b", cards=CARDS)
    assert (there["fits"], there["resident"]) == (True, True)
    for key in ("left_now_bytes", "left_at_peaks_bytes"):
        assert there["verdict"][key] == before["verdict"][key]
    assert there["residency"]["measured_bytes"] == 10_740 * MIB
    assert there["residency"]["difference_bytes"] == 0
    (mine,) = (one for one in there["cards"][0]["processes"] if one["seat"])
    assert (mine["pid"], mine["seat"], mine["used_bytes"]) == (pid, "qwen3-4b", 10_740 * MIB)


def test_the_refused_bring_up_fails_with_the_numbers_the_rule_and_the_engines_words(host: Host) -> None:
    host.seats["qwen3-4b"] = host.seat(utilization=0.12)
    failed = host.says("reference_before").ask(seat="qwen3-4b", cards=CARDS)
    assert failed["failed"] is True
    assert failed["msg"] == failed["message"]
    assert (
        "its engine asks for 11,670 MiB and would find 11,428 free of 97,249 (11,897 free, less 469 for its CUDA "
        "context): 242 MiB are missing. It would say: Free memory on device cuda:0 (11.16/94.97 GiB) on startup is "
        "less than desired GPU memory utilization (0.12, 11.4 GiB)." in failed["msg"]
    )
    reported = host.ask(seat="qwen3-4b", cards=CARDS, enforce=False)
    assert (reported.get("failed"), reported["fits"]) == (None, False)
    assert reported["message"] == failed["msg"]


def test_while_the_refused_engine_still_holds_its_context_the_verdict_is_the_same(host: Host) -> None:
    host.seats["qwen3-4b"] = host.seat(utilization=0.12)
    with running("--config", str(host.engine_file)) as pid:
        held = host.says("reference_refused", {SEAT: pid}).ask(seat="qwen3-4b", cards=CARDS, enforce=False)
    assert (held["fits"], held["verdict"]["left_now_bytes"] // MIB) == (False, -242)


def test_no_room_on_any_of_the_four_cards(host: Host) -> None:
    host.seats["second"] = host.seat(engine_file="/second/engine.yaml", project="voices-second")
    with running("--config", str(host.engine_file)) as pid:
        failed = host.says("reference_host", {SEAT: pid}).ask(seat="second", cards=CARDS | HOLD)
    assert failed["failed"] is True
    assert "The host's other cards: card 1 has 5,700 MiB free" in failed["msg"]
    assert "card 2 has 2,400 MiB free" in failed["msg"]
    assert "card 3 is held for flash-next" in failed["msg"]


def test_a_held_card_is_refused_by_the_name_of_its_hold(host: Host) -> None:
    host.seats["qwen3-4b"] = host.seat(gpu="3")
    failed = host.says("reference_host").ask(seat="qwen3-4b", cards=CARDS | HOLD)
    assert "card 3: it is held for flash-next, which needs 95,232 MiB." in failed["msg"]
    assert host.ask(seat="qwen3-4b", cards=CARDS)["fits"] is True


def test_check_mode_says_the_same(host: Host) -> None:
    host.says("reference_host")
    results = [host.ask(check=check, seat="qwen3-4b", cards=CARDS | HOLD, enforce=False) for check in (True, False)]
    for result in results:
        result["memory"] = result["invocation"] = None
    assert results[0] == results[1]


def test_a_seat_is_placed_by_the_cards_uuid(host: Host) -> None:
    uuid = nvml_double.scenario("reference_host")["cards"][1]["uuid"]
    host.seats["qwen3-4b"] = host.seat(gpu=uuid)
    result = host.says("reference_host").ask(seat="qwen3-4b", enforce=False)
    assert (result["verdict"]["card"], result["fits"]) == (1, False)


def test_a_card_is_nvmls_and_not_cudas_first(host: Host) -> None:
    result = host.says("other_order").ask(seat="qwen3-4b", enforce=False)
    assert result["cards"][0]["name"] == "NVIDIA T4"
    assert result["verdict"]["card"] == 0
    assert result["verdict"]["request_bytes"] <= 0.11 * (15_360 - 450) * MIB + 1


def test_a_process_of_its_own_says_the_same(host: Host) -> None:
    host.says("reference_host")
    results = [ask(seat="qwen3-4b", cards=CARDS | HOLD, enforce=False) for ask in (host.ask, host.ask_a_process)]
    for result in results:
        result["memory"] = result["invocation"] = None
    assert results[0] == results[1]


# Whose the processes are.


def test_tenants_are_found_by_their_command_and_one_above_its_peak_is_a_warning(host: Host) -> None:
    cards = {"0": {"tenants": {"gen": {"peak_mib": 40_000, "command": "--served-model-name gen"}}}}
    with running("serve", "--served-model-name", "gen", "--api-key", "sk-verysecret") as pid:
        # ``running`` gives the child's pid, whose command line is another: its parent's is the tenant's.
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        result = host.says("reference_before", {TENANTS[0]: parent}).ask(seat="qwen3-4b", cards=cards, enforce=False)
    tenant = next(one for one in result["cards"][0]["processes"] if one["pid"] == parent)
    assert "--served-model-name gen" in tenant["command"]
    assert "verysecret" not in json.dumps(result)
    assert "tenant gen holds 47,100 MiB of card 0, more than its declared peak of 40,000 MiB" in warnings(result)


def test_what_a_seat_holds_far_from_what_was_foretold_is_a_warning_with_both_numbers(host: Host) -> None:
    scene = nvml_double.scenario("reference_with_seat")
    card = scene["cards"][0]
    with running("--config", str(host.engine_file)) as pid:
        card["processes"][3] = {"pid": pid, "used_bytes": 11_600 * MIB}
        card["used_bytes"] += 860 * MIB
        result = host.says(scene).ask(seat="qwen3-4b", cards=CARDS, enforce=False)
    assert result["residency"]["difference_bytes"] > 150 * MIB
    assert "seat qwen3-4b holds 11,600 MiB of card 0, and 10,715 were predicted" in warnings(result)


def test_a_process_of_this_machine_is_found_by_its_command_line(host: Host) -> None:
    """The double's own way to show a seat that a play starts: it holds memory once it runs."""
    scene = nvml_double.scenario("reference_before")
    scene["cards"][0]["processes"].append({"running": f"--config {host.engine_file}", "used_bytes": 10_740 * MIB})
    before = host.says(scene).ask(seat="qwen3-4b", cards=CARDS)
    with running("--config", str(host.engine_file)):
        after = host.ask(seat="qwen3-4b", cards=CARDS)
    assert [result["cards"][0]["used_bytes"] // MIB for result in (before, after)] == [85_352, 96_092]
    assert [result["resident"] for result in (before, after)] == [False, True]


# What cannot be told is a verdict too: a failure with its reason, or a report when nothing is enforced.


@pytest.mark.parametrize(
    ("scene", "gpu", "said"),
    [
        ("driver_not_loaded", "0", "the NVIDIA kernel module is not loaded"),
        ("mig", "0", "card 0 is split by MIG"),
        ("mig", "2", "card 2 is split by MIG"),
        ("unified_memory", "0", "no memory of its own that NVML tells of"),
        ("no_permission", "2", "run it as root"),
        ("lost_card", "1", "GPU is lost"),
        ("lost_while_read", "0", "GPU is lost"),
        ("reference_before", "5", "names gpu 5, which is no card of this host; its cards are 0"),
    ],
)
def test_a_card_that_says_nothing_is_refused_and_reported(host: Host, scene: str, gpu: str, said: str) -> None:
    host.seats["qwen3-4b"] = host.seat(gpu=gpu)
    failed = host.says(scene).ask(seat="qwen3-4b")
    assert failed["failed"] is True
    assert said in failed["msg"]
    reported = host.ask(seat="qwen3-4b", enforce=False)
    assert (reported["fits"], reported.get("failed")) == (False, None)
    assert said in reported["message"]
    assert "failed" not in host.ask()


@pytest.mark.parametrize(
    "said", ["no NVIDIA driver here (libnvidia-ml.so.1 is not found)", "Failed to import the required Python library"]
)
def test_without_a_driver_or_its_python_library_gpu_seats_are_refused_and_cpu_seats_are_not(
    host: Host, tmp_path: Path, said: str
) -> None:
    directory = tmp_path / "nothing"
    directory.mkdir()
    environ = nvml_double.without_driver(directory)
    if "import" in said:
        (directory / "pynvml.py").write_text("raise ImportError('not here')\n")
        environ["PYTHONPATH"] = str(directory)
    host.seats["on-cpu"] = host.seat(device="cpu", gpu="", engine_file="/cpu/engine.yaml", environment={}, image="")
    failed = host.ask_a_process(environ, seat="qwen3-4b")
    assert failed["failed"] is True
    assert said in failed["msg"]
    whole = host.ask_a_process(environ)
    assert (whole["cards"], said in whole["problem"]) == ([], True)
    on_cpu = host.ask_a_process(environ, seat="on-cpu", enforce=False)
    assert on_cpu["verdict"]["verdict"] in ("fits", "refused")
    assert "host memory" in on_cpu["message"]


def test_a_running_seat_of_which_nvml_does_not_tell_what_it_holds_is_resident(host: Host) -> None:
    with running("--config", str(host.engine_file)) as pid:
        result = host.says("no_permission", {SEAT: pid}).ask(seat="qwen3-4b", cards=CARDS, enforce=False)
    assert (result["resident"], result["residency"], result["fits"]) == (True, {}, False)


def test_a_process_that_vanishes_between_two_reads_is_no_error(host: Host) -> None:
    result = host.says("vanishing").ask(seat="qwen3-4b", enforce=False)
    assert [len(card["processes"]) for card in result["cards"]] == [1, 9]
    assert result["verdict"]["verdict"] in ("fits", "refused")


def test_an_old_driver_is_said_to_be_one(host: Host) -> None:
    result = host.says("old_driver").ask(seat="qwen3-4b", enforce=False)
    assert "before R510" in result["cards"][0]["notes"][0]


# The inventory against the host.


def test_a_declared_card_that_the_host_lacks_is_refused(host: Host) -> None:
    failed = host.says("reference_before").ask(cards=HOLD)
    assert "voices_seat_cards names card 3, which this host does not have" in failed["msg"]
    wrong = host.ask(cards={"0": {"reserve_mib": -1}})
    assert "reserve_mib -1 is outside" in wrong["msg"]


def test_a_card_that_fell_off_the_bus_may_be_the_one_that_is_declared_by_its_uuid(host: Host) -> None:
    uuid = "GPU-0c5d2ab1-7e30-4b6f-9c1e-444455556601"
    assert "failed" not in host.says("lost_card").ask(cards={uuid: {"reserve_mib": 5}})
    assert "which this host does not have" in host.says("reference_before").ask(cards={uuid: {"reserve_mib": 5}})["msg"]
    assert "which this host does not have" in host.says("lost_card").ask(cards={"7": {}})["msg"]


def test_a_seat_that_is_not_declared_is_refused(host: Host) -> None:
    failed = host.says("reference_before").ask(seat="third")
    assert failed["msg"] == "seat 'third' is none of the host's seats qwen3-4b"


def test_a_carrier_that_cannot_be_read_or_sized_is_a_verdict(host: Host) -> None:
    host.says("reference_before")
    (host.carrier / "config.json").write_text("{")
    assert "cannot size this" in host.ask(seat="qwen3-4b")["msg"]
    (host.carrier / "config.json").unlink()
    assert "holds no config.json: correct the path" in host.ask(seat="qwen3-4b")["msg"]
    (host.carrier / "config.json").write_text(
        json.dumps({"architectures": ["MambaForCausalLM"], "model_type": "mamba"})
    )
    assert "cannot size this" in host.ask(seat="qwen3-4b")["msg"]


# Hostile answers of a driver.


@pytest.mark.parametrize(
    "change",
    [
        {"used_bytes": 2**63},
        {"total_bytes": 0},
        {"total_bytes": 2**64 - 1},
        {"uuid": "", "name": "\x1b[2J\u202e"},
        {"name": "\u00ff\u00fe"},
        {"processes": [{"pid": 0, "used_bytes": 2**64 - 2}, {"pid": 2**32 - 1, "used_bytes": 2**63}]},
        {"errors": {"nvmlDeviceGetUUID": 999, "nvmlDeviceGetComputeRunningProcesses_v3": 25}},
    ],
)
def test_whatever_a_card_says_the_module_has_a_verdict(host: Host, change: dict[str, Any]) -> None:
    scene = copy.deepcopy(nvml_double.scenario("reference_before"))
    scene["cards"][0] |= change
    result = host.says(scene).ask(seat="qwen3-4b", enforce=False)
    assert "failed" not in result, result.get("msg")
    assert result["message"].isprintable()
    assert isinstance(result["fits"], bool)
