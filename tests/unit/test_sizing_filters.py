"""The filters give what the functions give, and an error that a template can show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible.module_utils.voices.sizing import size_seat

from tests.gpu.carrier import config

PATH = Path(__file__).parent.parent.parent / "filter_plugins" / "voices_sizing.py"
FLAGS = {"max-model-len": 8192, "kv-cache-memory-bytes": 1_610_612_736}


@pytest.fixture(scope="module")
def filters() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("voices_sizing_filters", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.FilterModule().filters()
    return found


def test_a_seat(filters: dict[str, Any]) -> None:
    card = {"engine_version": "0.26.0", "cuda_total_bytes": 150_109_880_320, "card_name": "NVIDIA H200"}
    assert filters["voices_seat_size"](config("qwen3-4b"), FLAGS, **card) == (
        size_seat(config("qwen3-4b"), FLAGS, **card).as_dict()
    )


def test_a_seat_on_the_cpu(filters: dict[str, Any]) -> None:
    assert filters["voices_cpu_seat_size"](config("qwen3-4b"), FLAGS)["kv_tokens"] == 10_880


def test_adapters_and_costs(filters: dict[str, Any]) -> None:
    assert filters["voices_adapter_bytes"](config("qwen3-4b"), 32) == 132_120_576
    assert filters["voices_adapter_bytes"](config("qwen3-4b"), 32, targets=["q_proj"], dtype_bytes=4) == 30_670_848
    assert filters["voices_adapters_cost_bytes"](100, 10, 3) == 130
    assert filters["voices_merged_cost_bytes"](100, 3) == 300
    assert filters["voices_requested_bytes"](97_249 * 2**20, 0.11) == 11_217_026_417


def test_what_cannot_be_sized_is_a_filter_s_error(filters: dict[str, Any]) -> None:
    with pytest.raises(AnsibleFilterError, match="cannot size this: architectures = None"):
        filters["voices_seat_size"]({}, FLAGS, engine_version="0.26.0")
    with pytest.raises(AnsibleFilterError, match="cannot size this: target module 'x'"):
        filters["voices_adapter_bytes"](config("qwen3-4b"), 32, targets=["x"])
