"""What a host has of a carrier and of an engine file: its config, its tensors' bytes, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.carrier_client import (
    image_version,
    look_at_seat,
    slots_in_force,
    tensor_bytes,
    weight_files,
)


def safetensors(path: Path, size: int, header: bytes = b'{"__metadata__":{}}') -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * size)


def look(root: Path, **seat: Any) -> dict[str, Any]:
    return look_at_seat({"carrier": str(root), "engine_file": str(root / "engine.yaml"), **seat})


def test_a_carrier_with_its_tensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    safetensors(tmp_path / "model.safetensors", 1234)
    (tmp_path / "engine.yaml").write_text("max-loras: 5\nmax-cpu-loras: 6\napi-key: sk-verysecret\n")
    assert look(tmp_path, image="vllm/vllm-openai:v0.26.0") == {
        "engine_version": "0.26.0",
        "config": {"hidden_size": 8},
        "tensor_bytes": 1234,
        "flags_in_force": {"max-loras": 5, "max-cpu-loras": 6},
    }


def test_without_weights_their_bytes_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = look(tmp_path)
    assert (found["tensor_bytes"], found["engine_version"], found["flags_in_force"]) == (None, "", {})


def test_the_index_names_the_weights_and_a_second_copy_does_not_count(tmp_path: Path) -> None:
    for number in (1, 2):
        safetensors(tmp_path / f"model-0000{number}-of-00002.safetensors", 100 * number)
    safetensors(tmp_path / "consolidated.safetensors", 300)
    assert tensor_bytes(tmp_path) == 600
    names = {f"layer.{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert tensor_bytes(tmp_path) == 300
    assert [path.name for path in weight_files(tmp_path)] == sorted(names.values())


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, " holds no config.json: correct the path, or bring its mount back"),
        ({"config.json": "{"}, "config.json is no JSON"),
        ({"config.json": "[" * 100_000}, "config.json is no JSON"),
        ({"config.json": "[1]"}, "config.json holds a list, not a dict"),
        ({"config.json": " " * 5_000_000}, "config.json is larger than"),
        ({"config.json": "{}", "a.safetensors": "short"}, "a.safetensors is no safetensors file"),
        ({"config.json": "{}", "a.safetensors": "x" * 100}, "a.safetensors is no safetensors file"),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, "has no weight_map"),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "../b.safetensors"}}'},
            "names ../b.safetensors, which is not there",
        ),
    ],
)
def test_a_carrier_that_cannot_be_read_says_which_file_and_why(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = look(tmp_path)
    assert said in found["carrier_problem"]
    assert str(tmp_path) in found["carrier_problem"]


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.26.0", "0.26.0"),
        ("registry:5000/vllm/vllm-openai:0.26.0-cu130@sha256:00", "0.26.0"),
        ("vllm/vllm-openai@sha256:00", ""),
        ("registry:5000/vllm", ""),
        ("vllm:nightly", ""),
        ("", ""),
    ],
)
def test_the_engines_version_is_the_images_tag(image: str, version: str) -> None:
    assert image_version(image) == version


@pytest.mark.parametrize("text", ["", "[]", "a: [", "max-loras: true\nmax-cpu-loras: many\n", "\0", "max-loras: 1.5"])
def test_an_engine_file_that_says_nothing_of_slots(tmp_path: Path, text: str) -> None:
    (tmp_path / "engine.yaml").write_text(text)
    assert slots_in_force(tmp_path / "engine.yaml") == {}
