"""An engine's own answers about LoRA, asked once for each state of it, and what is read from its source beside them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.voices.lora_support import UNKNOWN, judge
from ansible.module_utils.voices.lora_support_carrier import Carrier, carrier_from
from ansible.module_utils.voices.lora_support_engine import Engine

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / "var/venv/engine-cpu"
SCRIPT = REPOSITORY / "tests/support/lora_runtime_answers.py"


def answers_of(source: Path, version: str = "") -> dict[str, Any]:
    """The answers of the vLLM in ``source``: VENV itself, or a directory of another ``version`` imported in VENV.

    They are kept under var/cache by a digest of every file of it, of the environment's packages, and of what asks.
    """
    (site,) = VENV.glob("lib/python3*/site-packages")
    digest = hashlib.sha256(SCRIPT.read_bytes())
    for file in sorted(((source if version else site) / "vllm").rglob("*.py")):
        digest.update(file.read_bytes())
    digest.update("\n".join(sorted(one.name for one in site.glob("*.dist-info"))).encode())
    kept = REPOSITORY / f"var/cache/lora-answers/{digest.hexdigest()[:24]}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        path = [str(_as_cpu_build(source, version)), str(source)] if version else []
        done = subprocess.run(
            [VENV / "bin/python", "-m", "tests.support.lora_runtime_answers", "--stand-ins", part],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": ":".join(path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        part.rename(kept)
    return dict(json.loads(kept.read_text()))


def _as_cpu_build(source: Path, version: str) -> Path:
    """A directory that says that ``version`` is built for the CPU: without a platform it makes no parser."""
    directory = source / "as-cpu-build"
    distribution = directory / f"vllm-{version}+cpu.dist-info"
    distribution.mkdir(parents=True, exist_ok=True)
    (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return directory


def carrier(name: str, model_type: str = "") -> Carrier:
    """A carrier of which only its architecture and model type are known."""
    return carrier_from({"architectures": [name], "model_type": model_type}, "config.json")


def equal_to_runtime(engine: Engine, truth: dict[str, Any]) -> int:
    """How many classes import; each of them is read as the engine says, and each other one gets an answer."""
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
    print(f"vLLM {truth['version']}: {len(imported)} of {len(answers)} classes import, and are equal")
    assert {answer["supports_lora"] for answer in imported} == {True, False}
    return len(imported)
