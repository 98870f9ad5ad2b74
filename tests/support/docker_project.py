"""A small Compose project on a real Docker engine, looked at from outside: by the docker SDK, not by the product."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import yaml

from tests.support.observe import free_port, tree
from tests.support.run_module import run_module

DOCKER_HOST = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
# Two test runs on one host do not meet: names and images carry the run's own prefix.
PREFIX = f"voices-test-{os.getpid()}"
IMAGE_LABELS = {"voices.test.run": PREFIX}
SECRET = "hf_a-token-that-no-one-may-see"
# Ends at once on SIGTERM, as a shell that waits in the foreground would not.
SERVE = "trap 'exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done"


def no_docker() -> str:
    """Why these tests cannot run here; empty when they can."""
    try:
        docker.APIClient(base_url=DOCKER_HOST, version="auto", timeout=10).close()
    except docker.errors.DockerException as error:
        return f"no Docker engine at {DOCKER_HOST}: {error}"
    command = compose_command()
    try:
        done = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return f"no Compose: {' '.join(command)}: {error.strerror}"
    return f"no Compose: {' '.join(command)}: {done.stderr.splitlines()[:1]}" if done.returncode else ""


def compose_command() -> list[str]:
    """VOICES_TEST_COMPOSE (a command, split at spaces), or ``docker compose``."""
    return os.environ.get("VOICES_TEST_COMPOSE", "docker compose").split()


def events_about(api: Any, texts: Collection[str], since: float, until: float) -> list[dict[str, Any]]:
    """The engine's events between two times in which one of ``texts`` (names, ids) stands."""
    found = api.events(since=f"{since:.9f}", until=f"{until:.9f}", decode=True)
    return [event for event in found if any(text in json.dumps(event) for text in texts)]


def root_archive() -> bytes:
    """A file system with this host's sh and sleep and their libraries, as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        seen: set[str] = set()
        for name in ("sh", "sleep"):
            program = os.path.realpath(shutil.which(name) or "")
            linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
            for path in re.findall(r"(/\S+)", linked):
                if path not in seen and os.path.isfile(path):
                    seen.add(path)
                    archive.add(path, arcname=path.lstrip("/"))
            archive.add(program, arcname=f"bin/{name}")
        directory = tarfile.TarInfo("tmp")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(directory)
    return buffer.getvalue()


def make_image(api: Any, tag: str, **defaults: Any) -> str:
    """The image ``<PREFIX>:<tag>`` from ``root_archive``; returns its id. ``defaults``: Dockerfile instructions."""
    changes = [
        "ENV PATH=/bin",
        f"LABEL voices.test={tag} voices.test.run={PREFIX}",
        *(f"{key.upper()} {value}" for key, value in defaults.items()),
    ]
    api.import_image_from_data(root_archive(), repository=PREFIX, tag=tag, changes=changes)
    return str(api.inspect_image(f"{PREFIX}:{tag}")["Id"])


def remove_images(api: Any) -> None:
    """Remove every image that the tests made or pulled, those that have lost their name too."""
    for image in api.images(all=True, filters={"label": f"voices.test.run={PREFIX}"}):
        with contextlib.suppress(docker.errors.ImageNotFound):
            api.remove_image(image["Id"], force=True)


class Project:
    """One project with one service ``engine``; ``definition`` is what its compose.yaml is written from."""

    def __init__(self, api: Any, root: Path) -> None:
        self.api = api
        self.root = root
        self.name = f"{PREFIX}-{uuid.uuid4().hex[:8]}"
        self.directory = root / "compose"
        self.data = root / "data"
        self.data.mkdir()
        self.port = free_port()
        self.definition: dict[str, Any] = {
            "services": {
                "engine": {
                    "image": f"{PREFIX}:one",
                    "command": ["sh", "-c", SERVE.replace("$", "$$")],
                    "environment": {"THREADS": "1", "OLD": "yes", "HF_TOKEN": SECRET},
                    "labels": {"voices.flags": "aaa"},
                    "ports": [f"127.0.0.1:{self.port}:8000"],
                    "user": "1000:1000",
                    "read_only": True,
                    "cap_drop": ["ALL"],
                    "security_opt": ["no-new-privileges:true"],
                    "tmpfs": ["/scratch:mode=1777"],
                    "shm_size": "128m",
                    "volumes": [self.mount(self.data)],
                    "healthcheck": {
                        "test": ["CMD", "sh", "-c", "echo looked; test -d /tmp"],
                        "interval": "300ms",
                        "timeout": "5s",
                        "retries": 3,
                    },
                    "restart": "unless-stopped",
                    "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
                }
            }
        }

    @staticmethod
    def mount(path: Path, target: str = "/data") -> dict[str, Any]:
        """A read-only mount as the product's own template writes it."""
        return {
            "type": "bind",
            "source": str(path),
            "target": target,
            "read_only": True,
            "bind": {"create_host_path": False},
        }

    @property
    def service(self) -> dict[str, Any]:
        """The definition of ``engine``, to be changed in place."""
        return self.definition["services"]["engine"]

    @property
    def content(self) -> str:
        """The compose.yaml that the definition makes."""
        return yaml.safe_dump(self.definition, sort_keys=False)

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """The module's parameters."""
        given = {
            "project": self.name,
            "directory": str(self.directory),
            "content": self.content,
            "docker_host": DOCKER_HOST,
            "compose": compose_command(),
            "wait_timeout_s": 30,
            "stop_seconds": 3,
            "pull": "never",
            **changes,
        }
        return {key: value for key, value in given.items() if value is not None}

    def run(self, *, check: bool = False, **changes: Any) -> dict[str, Any]:
        """The module's result, which must not be a failure."""
        result = run_module("compose_project", self.arguments(**changes), check=check)
        assert not result.get("failed"), result["msg"]
        return result

    def fail(self, *, check: bool = False, **changes: Any) -> dict[str, Any]:
        """The module's result, which must be a failure."""
        result = run_module("compose_project", self.arguments(**changes), check=check)
        assert result.get("failed"), result
        return result

    # ---------------------------------------------------------------------------------------------- from outside

    def containers(self) -> list[dict[str, Any]]:
        """All its containers as the engine describes them, by name."""
        label = f"com.docker.compose.project={self.name}"
        found = self.api.containers(all=True, filters={"label": label})
        return sorted((self.api.inspect_container(one["Id"]) for one in found), key=lambda one: str(one["Name"]))

    def one(self) -> dict[str, Any]:
        """Its only container."""
        (found,) = self.containers()
        return found

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Compose itself, for what a person would do."""
        return subprocess.run(
            [*compose_command(), "-p", self.name, "--project-directory", str(self.directory), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "DOCKER_HOST": DOCKER_HOST},
            timeout=60,
        )

    def state(self) -> tuple[Any, ...]:
        """All that a check must leave alone: containers with their starts, networks, files with their inodes."""
        containers = [
            (one["Id"], one["Name"], one["State"]["StartedAt"], one["State"]["Status"]) for one in self.containers()
        ]
        networks = sorted(one["Id"] for one in self.api.networks(names=[self.name]))
        images = sorted((tuple(one["RepoTags"] or ()), one["Id"]) for one in self.api.images(name=PREFIX))
        return containers, networks, images, tree(self.root)

    def events(self, since: float, until: float) -> list[str]:
        """What the engine did between two times to anything of this project, or to the tests' images."""
        own = [self.name, f"{PREFIX}:", *(one["Id"] for one in self.containers())]
        return [f"{event['Type']} {event['Action']}" for event in events_about(self.api, own, since, until)]

    def destroy(self) -> None:
        """Take away all that carries the project's name."""
        volumes = set()
        for one in self.containers():
            volumes |= {mount["Name"] for mount in one["Mounts"] if mount["Type"] == "volume"}
            self.api.remove_container(one["Id"], force=True, v=True)
        for name in volumes:
            with contextlib.suppress(docker.errors.NotFound):
                self.api.remove_volume(name)
        for one in self.api.networks(filters={"label": f"com.docker.compose.project={self.name}"}):
            self.api.remove_network(one["Id"])


def until(condition: Any, seconds: float, what: str) -> Any:
    """The first true value of ``condition``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def projects(api: Any, root: Path) -> Iterator[Project]:
    """One project, taken away afterwards."""
    project = Project(api, root)
    try:
        yield project
    finally:
        project.destroy()
