"""What is read from the installed engine's source, beside the engine's own answers at run time, for all of it.

The engine is asked in a process of its own, without starting it: about 25 s on two cores. Its answers are kept under
var/cache as long as neither it nor what asks it changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.engine_source import directory_source
from ansible.module_utils.voices.lora_support import UNKNOWN, judge
from ansible.module_utils.voices.lora_support_backend import way
from ansible.module_utils.voices.lora_support_carrier import Carrier, carrier_from
from ansible.module_utils.voices.lora_support_engine import Engine
from ansible.module_utils.voices.lora_support_flags import Options
from ansible.module_utils.voices.source_tree import collection_paused

from tests.support.run_module import run_module

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / "var/venv/engine-cpu"
SCRIPT = REPOSITORY / "tests/support/lora_runtime_answers.py"
SECONDS = 3.0


def installed() -> str:
    """A digest that changes with any file of vLLM's models, with any other package, and with the script."""
    (site,) = VENV.glob("lib/python3*/site-packages")
    digest = hashlib.sha256(SCRIPT.read_bytes())
    for file in sorted((site / "vllm").rglob("*.py")):
        digest.update(file.read_bytes())
    digest.update("\n".join(sorted(one.name for one in site.glob("*.dist-info"))).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    kept = REPOSITORY / f"var/cache/lora-answers/{installed()[:24]}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [VENV / "bin/python", "-m", "tests.support.lora_runtime_answers", "--stand-ins", part],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            timeout=300,
        )
        part.rename(kept)
    return dict(json.loads(kept.read_text()))


@pytest.fixture(scope="module")
def engine(truth: dict[str, Any]) -> Engine:
    return Engine(directory_source(VENV), truth["platform"])


def carrier(name: str, model_type: str = "") -> Carrier:
    return carrier_from({"architectures": [name], "model_type": model_type}, "config.json")


def test_every_architecture_is_answered_as_the_engine_answers(engine: Engine, truth: dict[str, Any]) -> None:
    answers = truth["architectures"]
    assert set(engine.models) == set(answers)
    differ = {}
    for name, answer in answers.items():
        found = judge(engine, carrier(name))
        assert found.verdict != UNKNOWN, found.reason
        read = {"supports_lora": found.supported, "line": found.line, **found.declared}
        asked = {key: answer.get(key) for key in read}
        if "error" not in answer and read != asked:
            differ[name] = {key: (read[key], asked[key]) for key in read if read[key] != asked[key]}
    assert differ == {}
    imported = [answer for answer in answers.values() if "error" not in answer]
    print(f"{len(imported)} of {len(answers)} classes import, and are equal")
    assert len(imported) > 380
    assert {answer["supports_lora"] for answer in imported} == {True, False}


def test_all_of_them_take_less_than_three_seconds() -> None:
    """The processor's time, so that what else this machine does is not counted."""
    took = []
    for _ in range(2):
        began = time.process_time()
        with collection_paused():
            anew = Engine(directory_source(VENV), "cpu")
            for name in anew.models:
                judge(anew, carrier(name))
        took.append(time.process_time() - began)
    print(f"{len(anew.models)} architectures in {', '.join(f'{one:.2f} s' for one in took)}")
    assert min(took) < SECONDS


def test_the_fallback_is_the_engines_own(engine: Engine, truth: dict[str, Any]) -> None:
    asked = dict(sorted(truth["fallbacks"].items())[::3])  # of 281, as each takes a file of Transformers to read
    found = {}
    with collection_paused():
        for name, answer in asked.items():
            served = way(engine, carrier(name, answer["model_type"]))
            found[name] = served.name if served.backend == "transformers" else ""
    assert found == {name: answer["class"] for name, answer in asked.items()}
    assert len(set(found.values())) > 2, "some are served by one class, some by another, some by none"


def test_the_servers_options_are_the_parsers(engine: Engine, truth: dict[str, Any]) -> None:
    options = Options(engine)
    asked = {flag[2:] for flag in truth["flags"] if flag.startswith("--")} - {"help"}
    assert options.known | options.negative == asked


def test_the_module_on_the_local_seats_carrier() -> None:
    result = run_module(
        "vllm_lora_support",
        {
            "python": str(VENV / "bin/python"),
            "carrier": str(next((REPOSITORY / "var/carriers").iterdir())),
            "flags": ["kv-cache-memory-bytes", "lora-modules", "max-lora-rank"],
        },
    )
    assert not result.get("failed"), result.get("msg")
    assert (result["supported"], result["verdict"], result["class"]) == (True, "yes", "Qwen3ForCausalLM")
    assert result["engine_version"] == "0.32.0"


@pytest.mark.parametrize("extra", [["kv-cache-memory"], ["max-lora-rnk"]])
def test_the_module_reports_a_flag_that_is_not_this_engines(extra: list[str]) -> None:
    carrier_directory = next((REPOSITORY / "var/carriers").iterdir())
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
