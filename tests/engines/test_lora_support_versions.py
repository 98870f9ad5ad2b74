"""Other versions of vLLM: what is read from their source beside their own answers, imported without compiled parts.

`make engines` fetches them and runs this, and nothing else does. A version takes about 25 s the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.engine_source import directory_source, engine_version
from ansible.module_utils.voices.lora_support_engine import Engine
from ansible.module_utils.voices.lora_support_flags import Options, unknown_flags
from ansible.module_utils.voices.source_tree import collection_paused

from tests.support.lora_answers import REPOSITORY, answers_of, equal_to_runtime

VERSIONS = {"0.11.0": 190, "0.21.0": 330}


@pytest.fixture(scope="module", autouse=True)
def no_collection() -> Iterator[None]:
    """The trees of all models stay to the end: looking through them for garbage takes seconds each time."""
    with collection_paused():
        yield


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    assert source(request.param).is_dir(), f"vLLM {request.param} is not there: make engines fetches it"
    return str(request.param)


@pytest.fixture(scope="module")
def truth(version: str) -> dict[str, Any]:
    return answers_of(source(version), version)


@pytest.fixture(scope="module")
def engine(version: str, truth: dict[str, Any]) -> Engine:
    return Engine(directory_source(source(version)), truth["platform"])


def source(version: str) -> Path:
    return REPOSITORY / "var/cache/engines" / version


def test_every_architecture_is_answered_as_that_version_answers(
    version: str, engine: Engine, truth: dict[str, Any]
) -> None:
    assert engine_version(engine.tree.source) == truth["version"] == version
    assert equal_to_runtime(engine, truth) > VERSIONS[version]


def test_the_servers_options_are_that_versions(engine: Engine, truth: dict[str, Any]) -> None:
    options = Options(engine)
    read = options.known | options.negative
    assert read == {flag[2:] for flag in truth["flags"] if flag.startswith("--")} - {"help"}


def test_the_registries_differ(engine: Engine, version: str) -> None:
    """Else one version would prove no more than another."""
    other = Engine(directory_source(source(next(one for one in VERSIONS if one != version))), "cpu")
    assert len(set(engine.models) ^ set(other.models)) > 100
    assert engine.moe_rule[0] != other.moe_rule[0]


def test_a_flag_of_another_version_is_noticed(engine: Engine, version: str) -> None:
    found = {one.flag: one.why for one in unknown_flags(Options(engine), ["guided-decoding-backend", "max-lora-rank"])}
    assert found == ({} if version == "0.11.0" else {"guided-decoding-backend": "unknown"})
