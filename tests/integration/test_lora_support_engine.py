"""What is read from the installed engine's source, beside the engine's own answers at run time, for all of it.

The engine is asked in a process of its own, without starting it: about 20 s on two cores, and 15 s for the tests.
Its answers are kept under var/cache as long as neither it nor what asks it changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.engine_source import directory_source
from ansible.module_utils.voices.lora_support import judge
from ansible.module_utils.voices.lora_support_backend import way
from ansible.module_utils.voices.lora_support_engine import Engine
from ansible.module_utils.voices.lora_support_flags import Options
from ansible.module_utils.voices.source_tree import collection_paused

from tests.support.lora_answers import VENV, answers_of, carrier, equal_to_runtime
from tests.support.run_module import run_module

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 3.0


@pytest.fixture(scope="module", autouse=True)
def no_collection() -> Iterator[None]:
    """The trees of all models stay to the end: looking through them for garbage takes seconds each time."""
    with collection_paused():
        yield


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    return answers_of(VENV)


@pytest.fixture(scope="module")
def engine(truth: dict[str, Any]) -> Engine:
    return Engine(directory_source(VENV), truth["platform"])


def test_every_architecture_is_answered_as_the_engine_answers(engine: Engine, truth: dict[str, Any]) -> None:
    assert equal_to_runtime(engine, truth) > 380


def test_all_of_them_take_less_than_three_seconds() -> None:
    """The processor's time, so that what else this machine does is not counted."""
    took = []
    for _ in range(2):
        began = time.process_time()
        anew = Engine(directory_source(VENV), "cpu")
        for name in anew.models:
            judge(anew, carrier(name))
        took.append(time.process_time() - began)
    print(f"{len(anew.models)} architectures in {', '.join(f'{one:.2f} s' for one in took)}")
    assert min(took) < SECONDS


def test_the_fallback_is_the_engines_own(engine: Engine, truth: dict[str, Any]) -> None:
    asked = dict(sorted(truth["fallbacks"].items())[::3])  # of 281, as each takes a file of Transformers to read
    found = {}
    for name, answer in asked.items():
        served = way(engine, carrier(name, answer["model_type"]))
        found[name] = served.name if served.backend == "transformers" else ""
    assert found == {name: answer["class"] for name, answer in asked.items()}
    assert len(set(found.values())) > 2, "some are served by one class, some by another, some by none"


def test_the_servers_options_are_the_parsers(engine: Engine, truth: dict[str, Any]) -> None:
    options = Options(engine)
    read = options.known | options.negative
    asked = {flag[2:] for flag in truth["flags"] if flag.startswith("--")} - {"help"}
    assert read == asked


def test_the_module_on_the_local_seats_carrier() -> None:
    result = run_module(
        "vllm_lora_support",
        {
            "python": str(VENV / "bin/python"),
            "carrier": str(min((REPOSITORY / "var/carriers").iterdir())),
            "flags": ["kv-cache-memory-bytes", "lora-modules", "max-lora-rank"],
        },
    )
    assert not result.get("failed"), result.get("msg")
    assert (result["supported"], result["verdict"], result["class"]) == (True, "yes", "Qwen3ForCausalLM")
    assert result["engine_version"] == "0.32.0"


@pytest.mark.parametrize("extra", [["kv-cache-memory"], ["max-lora-rnk"]])
def test_the_module_reports_a_flag_that_is_not_this_engines(extra: list[str]) -> None:
    carrier_directory = min((REPOSITORY / "var/carriers").iterdir())
    given = {"python": str(VENV / "bin/python"), "carrier": str(carrier_directory), "flags": extra}
    assert extra[0] in run_module("vllm_lora_support", given)["msg"]


@pytest.mark.parametrize("architecture", ["JambaForCausalLM", "DbrxForCausalLM"])
def test_a_mixture_of_experts_is_refused_or_taken_as_the_engine_says(
    truth: dict[str, Any], tmp_path: Path, architecture: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], "num_experts": 16}))
    given = {"python": str(VENV / "bin/python"), "carrier": str(tmp_path)}
    result = run_module("vllm_lora_support", given)
    assert bool(result.get("failed")) is not truth["architectures"][architecture]["supports_lora"]
