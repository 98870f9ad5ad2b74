"""One real engine for all integration tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.live_engine import LiveEngine, running_engine


@pytest.fixture(scope="session")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    """The engine itself; tests take ``engine``, which hands it over without adapters."""
    with running_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: LiveEngine) -> Iterator[LiveEngine]:
    """The running engine with no adapter live and none in engine.yaml, before and after."""
    shared_engine.reset()
    yield shared_engine
    shared_engine.reset()
