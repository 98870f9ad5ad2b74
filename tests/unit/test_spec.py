"""The inventory's rules: everything wrong is named at once, everything right becomes typed seats."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.voices.spec import MANAGED_FLAGS, normalise, trial_errors, variable_errors
from hypothesis import given
from hypothesis import strategies as st


def seats(**changes: Any) -> dict[str, Any]:
    seat: dict[str, Any] = {
        "carrier": "/carriers/tiny",
        "port": 8027,
        "voices": {"lv-austen": {"source": "lv-austen-v1"}},
    }
    seat.update(changes)
    return {"tiny": seat}


def errors(given: Any, **options: Any) -> list[str]:
    return normalise(given, runtime="supervisor", **options)[1]


def test_a_valid_seat_gets_types_and_defaults() -> None:
    normal, found = normalise(seats(port="8027", max_lora_rank="32"), runtime="supervisor")
    assert found == []
    seat = normal["tiny"]
    assert (seat["port"], seat["max_lora_rank"], seat["bind"]) == (8027, 32, "127.0.0.1")
    assert (seat["state"], seat["runtime"], seat["max_loras"]) == ("present", "supervisor", None)
    assert seat["voices"]["lv-austen"] == {
        "source": "lv-austen-v1",
        "state": "present",
        "digest": None,
        "verdict": None,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prot": 8027}, ["unknown option 'prot'", "'port'"]),
        ({"port": None}, ["port"]),
        ({"port": 0}, ["port 0", "65535"]),
        ({"port": "http"}, ["port", "http"]),
        ({"carrier": None}, ["carrier"]),
        ({"max_lora_rank": 24}, ["max_lora_rank", "24", "32"]),
        ({"max_model_len": 0}, ["max_model_len 0"]),
        ({"max_loras": -1}, ["max_loras -1"]),
        ({"gpu_memory_utilization": 1.5}, ["gpu_memory_utilization 1.5"]),
        ({"state": "running"}, ["state", "running"]),
        ({"runtime": "podman"}, ["runtime", "podman"]),
        ({"runtime": "compose"}, ["image ''", "not pinned"]),
        ({"runtime": "compose", "image": "vllm/vllm-openai"}, ["'vllm/vllm-openai'", "not pinned"]),
        ({"runtime": "compose", "image": "host:5000/vllm"}, ["not pinned"]),
        ({"runtime": "compose", "image": "vllm:latest"}, ["'vllm:latest'", "not latest"]),
        ({"runtime": "compose", "image": "vllm:v1", "service_user": "0:0"}, ["service_user 0:0 is root"]),
        ({"runtime": "compose", "image": "vllm:v1", "service_user": "voices"}, ["'voices'", "uid:gid"]),
        ({"runtime": "compose", "image": "vllm:v1", "environment": {"HF_TOKEN": "x"}}, ["HF_TOKEN", "docker inspect"]),
        ({"voices": {"lv-a": {"source": "x", "verdict": "a\nb"}}}, ["verdict has several lines"]),
        ({"bind": "localhost"}, ["bind 'localhost'"]),
        ({"bind": "0.0.0.0"}, ["bind 0.0.0.0", "api_key"]),  # noqa: S104 - the refusal under test
        ({"bind": "::"}, ["bind ::", "api_key"]),
        ({"engine_flags": {"max_loras": 9}}, ["engine_flags may not set max_loras"]),
        ({"engine_flags": {"hos": "0.0.0.0"}}, ["may not set hos", "bind"]),  # noqa: S104 - an abbreviation is refused
        ({"engine_flags": {"no-enable-lora": True}}, ["may not set no-enable-lora"]),
        ({"engine_flags": {"MAX-NUM-SEQS": 1}}, ["no flag of vLLM"]),
        (
            {"max_loras": 1, "voices": {"lv-a": {"source": "x"}, "lv-b": {"source": "x"}}},
            ["max_loras is 1", "set it to 3"],
        ),
        ({"max_loras": 3, "max_cpu_loras": 2}, ["max_cpu_loras is 2"]),
        ({"api_key": "short"}, ["api_key has 5 characters"]),
        ({"carrier": "Qwen/Qwen3-4B"}, ["carrier 'Qwen/Qwen3-4B'", "no whole path"]),
        ({"environment": {"A": True}}, ["environment A is a bool"]),
        ({"environment": {"A": None}}, ["environment A is a NoneType"]),
        ({"environment": {"VOICES_SERVICE": "x"}}, ["may not set VOICES_SERVICE"]),
        ({"engine_flags": {"--lora-modules": []}}, ["engine_flags may not set --lora-modules"]),
        ({"engine_flags": {"seed": 1, "s-eed": {"a": 1}}}, ["s-eed is a dict"]),
        ({"engine_flags": {"max-num-seqs": 1, "max_num_seqs": 2}}, ["one flag twice"]),
        ({"environment": {"PYTHONPATH": "/x"}}, ["environment may not set PYTHONPATH"]),
        ({"environment": {"A B": "1"}}, ["'A B' is no name"]),
        ({"device": "tpu"}, ["device", "tpu", "gpu, cpu"]),
        ({"device": "cpu", "gpu": "0"}, ["device is cpu", "gpu is '0'", "take one"]),
        ({"gpu": "first"}, ["gpu 'first'", "index nor a GPU UUID"]),
        ({"gpu": "0,1"}, ["gpu '0,1'", "one card"]),
        ({"gpu": "MIG-6e2d1c3a-0000-0000-0000-000000000000"}, ["MIG-6e2d", "no MIG device"]),
        ({"gpu": "0", "engine_flags": {"tensor_parallel_size": 2}}, ["tensor-parallel-size is 2", "one card"]),
        ({"device": "gpu", "engine_flags": {"--pipeline-parallel-size": "4"}}, ["pipeline-parallel-size is 4"]),
        ({"gpu": "1", "environment": {"CUDA_VISIBLE_DEVICES": "2"}}, ["CUDA_VISIBLE_DEVICES", "another card"]),
        ({"voices": ["lv-austen"]}, ["voices"]),
        ({"voices": {"lv-austen": None}}, ["lv-austen", "dict"]),
        ({"voices": {"lv-austen": {}}}, ["lv-austen", "no source"]),
        ({"voices": {"lv-austen": {"sourse": "x"}}}, ["unknown option 'sourse'", "'source'"]),
        ({"voices": {"lv-austen": {"source": "../x"}}}, ["leaves the adapter directory"]),
        ({"voices": {"lv-austen": {"source": "x", "digest": "abc"}}}, ["digest 'abc'"]),
        ({"voices": {"lv-austen": {"source": "x", "state": "gone"}}}, ["state", "gone"]),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], words: list[str]) -> None:
    found = errors(seats(**changes))
    assert len(found) == 1, found
    assert found[0].startswith("seat tiny")
    for word in words:
        assert word in found[0]


@pytest.mark.parametrize(
    "name", ["voices-base", "austen", "lv-", "lv-Austen", "lv-a_b", "lv-a/b", "lv-a b", "lv--a", "lv-a-", "lv-é", 7, ""]
)
def test_voice_names_outside_the_rule(name: object) -> None:
    found = errors(seats(voices={name: {"source": "x"}}))
    assert len(found) == 1
    assert repr(name) in found[0]
    assert "lv-<author>" in found[0]


@pytest.mark.parametrize("name", ["Tiny", "a/b", "..", "", "-a", "a" * 33, 5])
def test_seat_names_outside_the_rule(name: object) -> None:
    found = errors({name: seats()["tiny"]})
    assert len(found) == 1
    assert repr(name) in found[0]


def test_every_fault_of_every_seat_is_reported_at_once() -> None:
    found = errors({"a": seats(port=0)["tiny"], "b": seats(bind="x", voices={"x": {}})["tiny"], "c": 3})
    assert len(found) == 4


def test_every_fault_of_one_seat_is_reported_at_once() -> None:
    found = errors(seats(max_lora_rank=4, dtpye="x", port=0, voices={"lv-a": {"source": "x", "state": "presnet"}}))
    assert len(found) == 4, found


def test_a_misspelt_variable_of_the_role_is_named_with_the_nearest() -> None:
    known = ["voices_seats", "voices_seat_engine_python"]
    found = variable_errors(["voices_seats", "voices_seat_engine_pyhton"], known)
    assert found == ["unknown variable voices_seat_engine_pyhton; did you mean 'voices_seat_engine_python'?"]


@pytest.mark.parametrize(
    ("changes", "device", "gpu"),
    [
        ({}, "cpu", None),
        ({"gpu": ""}, "cpu", None),
        ({"gpu": 0}, "gpu", "0"),
        ({"gpu": "3", "device": "gpu"}, "gpu", "3"),
        ({"device": "gpu"}, "gpu", None),
        ({"device": "gpu", "gpu": ""}, "gpu", None),
        ({"device": "cpu", "environment": {"CUDA_VISIBLE_DEVICES": ""}}, "cpu", None),
        ({"device": "cpu", "engine_flags": {"tensor-parallel-size": 2}}, "cpu", None),
        ({"gpu": "0", "engine_flags": {"tensor-parallel-size": 1}}, "gpu", "0"),
        (
            {"gpu": "gpu-0C5D2AB1-1111-2222-3333-444455556666"},
            "gpu",
            "GPU-0c5d2ab1-1111-2222-3333-444455556666",
        ),
    ],
)
def test_where_a_seat_runs(changes: dict[str, Any], device: str, gpu: str | None) -> None:
    normal, found = normalise(seats(**changes), runtime="supervisor")
    assert found == []
    assert (normal["tiny"]["device"], normal["tiny"]["gpu"]) == (device, gpu)


def test_two_seats_on_one_port() -> None:
    both = {"a": seats()["tiny"], "b": seats()["tiny"]}
    assert errors(both) == ["seat b: port 8027 is seat a's; give each seat its own port"]
    both["a"]["state"] = "absent"
    assert errors(both) == []


def test_two_voices_may_share_a_source() -> None:
    assert errors(seats(voices={"lv-a": {"source": "x"}, "lv-b": {"source": "x"}})) == []


def test_beyond_loopback_with_a_key_is_allowed() -> None:
    assert errors(seats(bind="10.0.0.5", api_key="k" * 32)) == []
    assert errors(seats(bind="10.0.0.5"), generate_api_key=True) == []


def test_a_refused_key_is_not_printed() -> None:
    found = errors(seats(api_key=["very-secret-value"], prot=1))
    assert found
    assert "very-secret-value" not in " ".join(found)
    found = errors(seats(api_key={"a": "very-secret-value"}))
    assert "very-secret-value" not in " ".join(found)


def test_a_pinned_voice_needs_no_source() -> None:
    assert errors(seats(voices={"lv-a": {"digest": "0123456789ab"}})) == []


def test_managed_flags_are_written_in_kebab_case() -> None:
    assert all("_" not in flag for flag in MANAGED_FLAGS)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=12,
    )
)
def test_no_input_is_answered_with_a_traceback(given: Any) -> None:
    normalise(given, runtime="supervisor")
    normalise({"tiny": given}, runtime="supervisor")
    normalise(seats(voices=given), runtime="supervisor")
    normalise(seats(voices={"lv-a": given}), runtime="supervisor")
    normalise(seats(engine_flags=given, environment=given), runtime="supervisor")


def trial(**changes: str) -> list[str]:
    given = {"voice": "lv-x", "source": "/d", "state": "present", "seat": "", "runtime": "supervisor"}
    return trial_errors(seats(), **(given | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"voice": ""}, ["naming rule", "-e voice=lv-x"]),
        ({"voice": "voices-base"}, ["named like the base"]),
        ({"source": ""}, ["-e source=/DIR"]),
        ({"source": "rel"}, ["'rel'"]),
        ({"state": "retired"}, ["'retired'"]),
        ({"seat": "big"}, ["'big'", "tiny"]),
        ({"voice": "lv-austen"}, ["lv-austen stands in the inventory of seat tiny as present"]),
    ],
)
def test_each_fault_of_a_trial_is_named(changes: dict[str, str], words: list[str]) -> None:
    found = trial(**changes)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


def test_a_trial_that_may_go_on() -> None:
    assert trial() == []
    assert trial(state="absent", source="", seat="tiny") == []


def test_a_trial_on_a_host_of_several_seats_names_its_seat() -> None:
    several = {"a": seats()["tiny"], "b": seats(port=8028)["tiny"]}
    given = {"voice": "lv-x", "source": "/d", "state": "present", "runtime": "supervisor"}
    assert "voices_seat_only=SEAT" in trial_errors(several, seat="", **given)[0]
    assert trial_errors(several, seat="b", **given) == []


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai:v0.26.0", "host:5000/vllm:v1", "vllm@sha256:" + "a" * 64, "vllm:v1@sha256:" + "a" * 64]
)
def test_a_pinned_image_is_taken(image: str) -> None:
    assert errors(seats(runtime="compose", image=image)) == []
