"""From a seat of the inventory to what starts it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.seat import base_url, describe
from ansible.module_utils.voices.spec import normalise


def described(**changes: Any) -> dict[str, Any]:
    seat = {
        "carrier": "/carriers/tiny",
        "port": 8027,
        "kv_cache_mib": 1536,
        "engine_flags": {"max_num_seqs": 8},
        "environment": {"OMP_NUM_THREADS": 2},
        "voices": {
            "lv-homer": {"source": "/nfs/homer", "digest": "0123456789ab"},
            "lv-austen": {"source": "austen-v1"},
            "lv-poe": {"state": "retired"},
            "lv-bronte": {"state": "absent"},
        },
    }
    seat.update(changes)
    normal, errors = normalise({"tiny": seat}, runtime="supervisor")
    assert errors == []
    return describe("tiny", normal["tiny"], root="/r", adapters_dir="/a", engine_python="/v/bin/python")


def test_flags_are_kebab_case_and_only_what_is_set() -> None:
    assert described()["flags"] == {
        "model": "/carriers/tiny",
        "served-model-name": "voices-base",
        "host": "127.0.0.1",
        "port": 8027,
        "enable-lora": True,
        "max-lora-rank": 16,
        "kv-cache-memory-bytes": 1_610_612_736,
        "max-num-seqs": 8,
    }


def test_the_key_stands_in_nothing_that_tasks_pass_around() -> None:
    assert "s3cret" not in repr(described(api_key="s3cret" * 6))


def test_voices_by_state_and_their_sources() -> None:
    seat = described()
    assert seat["present"] == ["lv-austen", "lv-homer"]
    assert seat["gone"] == ["lv-bronte", "lv-poe"]
    assert seat["absent"] == ["lv-bronte"]
    assert seat["sources"] == {
        "lv-austen": {"source": "/a/austen-v1"},
        "lv-homer": {"source": "/nfs/homer", "digest": "0123456789ab"},
    }


def test_every_path_carries_the_seats_name_and_lies_below_the_root() -> None:
    seat = described()
    for key in ("engine_file", "service_dir", "api_key_file", "lease", "cache_dir"):
        assert seat[key].startswith("/r/")
        assert "tiny" in seat[key]


def test_the_environment_allows_hot_loading_and_finds_the_guard() -> None:
    seat = described()
    assert seat["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert seat["environment"]["PYTHONPATH"] == seat["engine_dir"]
    assert seat["environment"]["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" in seat["adopt_environment"]


def test_a_bare_engine_sees_its_card_alone_and_a_change_of_card_is_a_change_of_the_launch() -> None:
    seat = described(gpu="2")
    assert (seat["device"], seat["gpu"]) == ("gpu", "2")
    chosen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2"}
    assert chosen.items() <= seat["environment"].items()
    assert chosen.keys() <= set(seat["adopt_environment"])
    for other in (described(), described(runtime="compose", image="vllm:v1", gpu="2")):
        assert not chosen.keys() & other["environment"].keys()
        assert not chosen.keys() & set(other["adopt_environment"])
    assert described()["device"] == "cpu"


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8027"),
        ("0.0.0.0", "http://127.0.0.1:8027"),  # noqa: S104 - how it is reached
        ("::1", "http://[::1]:8027"),
        ("10.0.0.5", "http://10.0.0.5:8027"),
    ],
)
def test_where_the_host_reaches_its_seat(bind: str, url: str) -> None:
    assert base_url({"bind": bind, "port": 8027}) == url


def test_a_container_sees_the_same_paths_and_publishes_on_the_seats_address_alone() -> None:
    seat = described(runtime="compose", image="vllm:v1", gpu="0")
    assert seat["flags"]["host"] == "0.0.0.0"  # noqa: S104 - inside the container
    assert seat["bind"] == "127.0.0.1"
    compose = seat["compose"]
    assert compose["project"] == "voices-tiny"
    assert [mount["path"] for mount in compose["mounts"] if not mount["read_only"]] == [seat["cache_dir"]]
    assert {seat["engine_dir"], seat["store"], "/carriers/tiny"} <= {mount["path"] for mount in compose["mounts"]}
    assert compose["entrypoint"] + compose["command"] == [
        "python3", "-m", "vllm.entrypoints.openai.api_server", "--config", seat["engine_file"],
    ]  # fmt: skip
    assert seat["owner"] == "10027:10027"


def test_both_runtimes_start_with_the_same_engine_flags_but_for_the_address() -> None:
    supervisor, compose = described(), described(runtime="compose", image="vllm:v1")
    assert {**supervisor["flags"], "host": ""} == {**compose["flags"], "host": ""}
