"""Tests on a real Docker engine. Where there is none, they are skipped and say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from tests.support.docker_project import DOCKER_HOST, PREFIX, Project, make_image, no_docker, projects


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
    """voices-test:one and voices-test:two."""
    for tag in ("one", "two"):
        make_image(api, tag, label=f"voices.test={tag}")
    yield
    for image in api.images(name=PREFIX):
        for tag in image["RepoTags"] or ():
            try:
                api.remove_image(tag, force=True)
            except docker.errors.ImageNotFound:
                continue


@pytest.fixture
def project(api: Any, images: None, tmp_path: Path) -> Iterator[Project]:
    """A project that nothing was done for yet."""
    yield from projects(api, tmp_path)


@pytest.fixture
def running(project: Project) -> Project:
    """A project that runs and is healthy."""
    project.run()
    return project
