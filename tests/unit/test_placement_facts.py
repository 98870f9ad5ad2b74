"""From a module's answer to a host's plan: sizes come from the carrier and the card, what is missing is a row."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.voices.cards import Card, CardProcess
from ansible.module_utils.voices.cards_spec import MIB
from ansible.module_utils.voices.placement_facts import placed, wishes
from ansible.module_utils.voices.seat import describe
from ansible.module_utils.voices.spec import normalise

from tests.unit.test_placement import ASKED_MIB, a_card, memory

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
}


def asked(**changes: Any) -> dict[str, dict[str, Any]]:
    """The wishes of one seat, as the inventory of the reference host has it."""
    seat: dict[str, Any] = {
        "carrier": "/models/Qwen3-4B-Instruct",
        "runtime": "compose",
        "image": "vllm/vllm-openai:v0.26.0",
        "gpu": "0",
        "port": 8027,
        "dtype": "bfloat16",
        "max_model_len": 8192,
        "kv_cache_mib": 1536,
        "gpu_memory_utilization": 0.11,
        "max_lora_rank": 32,
        "voices": {"lv-yarros": {"source": "lv-yarros"}, "lv-bronte": {"source": "lv-bronte"}},
    }
    normal, errors = normalise({"qwen3-4b": seat | changes}, runtime="compose")
    assert errors == []
    paths = {"root": "/r", "adapters_dir": "/a", "engine_python": "/e/python"}
    return wishes({name: describe(name, seat, **paths) for name, seat in normal.items()})


def looked(*cards: Card, memory: Card | None = None, **seat: Any) -> dict[str, Any]:
    """The module's answer."""
    known = {"config": QWEN3_4B, "tensor_bytes": None, "engine_version": "0.26.0", "flags_in_force": {}, **seat}
    return {
        "cards": [card.as_dict() for card in cards],
        "memory": memory.as_dict() if memory else None,
        "problem": "",
        "seats": {"qwen3-4b": known},
    }


def the_seat(host: dict[str, Any]) -> dict[str, Any]:
    (seat,) = host["seats"]
    return seat


def test_the_wishes_name_what_the_module_reads_and_hold_no_key() -> None:
    wish = asked(api_key="k" * 32)["qwen3-4b"]
    assert "k" * 32 not in str(wish)
    assert wish["carrier"] == "/models/Qwen3-4B-Instruct"
    assert wish["engine_file"] == "/r/seats/qwen3-4b/engine/engine.yaml"
    assert (wish["device"], wish["gpu"], wish["state"], wish["voices"]) == ("gpu", "0", "present", 2)
    assert (wish["image"], wish["project"]) == ("vllm/vllm-openai:v0.26.0", "voices-qwen3-4b")


def test_a_seat_is_sized_for_the_card_it_is_judged_on() -> None:
    seat = the_seat(placed("h", looked(a_card(0)), asked(), {}))
    assert seat["request_bytes"] // MIB == ASKED_MIB
    assert seat["size"]["kv_tokens"] == 10_912
    assert seat["size"]["kv_bytes_a_token"] == 147_456
    assert (seat["verdict"], seat["card"]) == ("fits", 0)
    smaller = the_seat(placed("h", looked(a_card(0, total_mib=49_140)), asked(), {}))
    assert smaller["request_bytes"] < seat["request_bytes"]


def test_the_slots_are_those_in_force_while_they_suffice() -> None:
    assert the_seat(placed("h", looked(a_card(0)), asked(), {}))["size"]["lora_slots"] == 3
    kept = looked(a_card(0), flags_in_force={"max-loras": 8, "max-cpu-loras": 8})
    more = the_seat(placed("h", kept, asked(), {}))
    assert more["size"]["lora_slots"] == 8
    assert more["resident_bytes"] > the_seat(placed("h", looked(a_card(0)), asked(), {}))["resident_bytes"]
    assert the_seat(placed("h", kept, asked(max_loras=4), {}))["size"]["lora_slots"] == 4


def test_a_process_of_the_seat_is_given_back_to_it_and_a_neighbours_is_not() -> None:
    full = [CardProcess(1, 80_000 * MIB, "other"), CardProcess(2, 15_000 * MIB, "VLLM::Worker", seat="qwen3-4b")]
    seat = the_seat(placed("h", looked(a_card(0, *full)), asked(), {}))
    assert (seat["verdict"], seat["running"]) == ("fits", True)
    full[1] = CardProcess(2, 15_000 * MIB, "VLLM::Worker", seat="another")
    seat = the_seat(placed("h", looked(a_card(0, *full)), asked(), {}))
    assert (seat["verdict"], seat["running"]) == ("refused", False)


def test_declared_cards_count_and_wrong_ones_are_said() -> None:
    held = {"0": {"hold": {"name": "flash-next"}}}
    assert "held for flash-next" in the_seat(placed("h", looked(a_card(0)), asked(), held))["message"]
    wrong = placed("h", looked(a_card(0)), asked(), {"0": {"reserve_mib": -1}, "x": {}})
    assert wrong["cards"] == []
    assert "reserve_mib -1" in wrong["problem"]
    assert "'x'" in wrong["problem"]


def test_a_carrier_that_cannot_be_read_is_a_row_that_says_why() -> None:
    missing = looked(a_card(0), config=None, carrier_problem="/models/x/config.json: No such file or directory")
    host = placed("h", missing, asked(), {})
    assert the_seat(host)["verdict"] == "unknown"
    assert the_seat(host)["message"] == "cannot size this: /models/x/config.json: No such file or directory"
    assert host["cards"][0]["room_at_peaks_bytes"] == a_card(0).cuda_total_bytes


def test_a_carrier_that_cannot_be_sized_says_which_key() -> None:
    strange = looked(a_card(0), config={**QWEN3_4B, "architectures": ["MambaForCausalLM"], "model_type": "mamba"})
    assert the_seat(placed("h", strange, asked(), {}))["message"].startswith("cannot size this: ")


def test_slots_that_do_not_cover_the_voices_are_a_row_too() -> None:
    wish = asked()
    wish["qwen3-4b"]["max_loras"] = 1
    seat = the_seat(placed("h", looked(a_card(0)), wish, {}))
    assert (seat["verdict"], "max_loras is 1" in seat["message"]) == ("unknown", True)


def test_a_seat_on_the_cpu_is_judged_on_host_memory() -> None:
    on_cpu = asked(gpu=None, device="cpu")
    fits = the_seat(placed("h", looked(memory=memory(40_000)), on_cpu, {}))
    assert (fits["verdict"], fits["card"], fits["request_bytes"], fits["context_bytes"]) == ("fits", None, 0, 0)
    assert fits["resident_bytes"] > (7_672 + 1_534) * MIB
    assert the_seat(placed("h", looked(memory=memory(9_000)), on_cpu, {}))["verdict"] == "refused"


def test_a_host_that_did_not_answer_is_a_row_that_says_why() -> None:
    lost = {"unreachable": True, "msg": "Failed to connect to the host via ssh: No route to host", "changed": False}
    assert placed("h", lost, asked(), {}) == {
        "host": "h",
        "problem": "unreachable: Failed to connect to the host via ssh: No route to host",
        "cards": [],
        "memory": None,
        "seats": [],
    }
    assert placed("h", {"failed": False, "msg": "Failed to import pynvml"}, asked(), {})["problem"] == (
        "Failed to import pynvml"
    )
    assert placed("h", {"module_stderr": "python3: not found\n"}, asked(), {})["problem"] == "python3: not found"
    assert placed("h", {}, asked(), {})["problem"] == "the module said nothing"
