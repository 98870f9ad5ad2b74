"""Tests on a real Docker engine. Where there is none, they are skipped and say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.support.container_seat import ContainerSeat, container_seats, no_container_seat
from tests.support.docker_project import DOCKER_HOST, Project, make_image, no_docker, projects, remove_images


@pytest.fixture(scope="session")
def api() -> Iterator[Any]:
    """The engine."""
    reason = no_docker()
    if reason:
        pytest.skip(reason)
    client = docker.APIClient(base_url=DOCKER_HOST, version="auto", timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def images(api: Any) -> Iterator[None]:
    """Two images, tags ``one`` and ``two``, and in the end none that a test made or pulled."""
    for tag in ("one", "two"):
        make_image(api, tag)
    yield
    remove_images(api)


@pytest.fixture
def project(api: Any, images: None, tmp_path: Path) -> Iterator[Project]:
    """A project that nothing was done for yet."""
    yield from projects(api, tmp_path)


@pytest.fixture
def running(project: Project) -> Project:
    """A project that runs and is healthy."""
    project.run()
    return project


@pytest.fixture(scope="module")
def seat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerSeat]:
    """A seat in a container, up: one for each test file, named by it, with the file's VOICES."""
    if reason := no_container_seat():
        pytest.skip(reason)
    name = request.module.__name__.rpartition("_")[2]
    api = request.getfixturevalue("api")
    yield from container_seats(tmp_path_factory.mktemp(name), name, api, request.module.VOICES)
