"""A Compose project as the engine has it: containers by their labels, images, networks, and the files. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .compose_config import Port

LABEL = "com.docker.compose."
RUNNING = ("running", "restarting", "paused")
"""States in which a container has processes, or is about to."""
NETWORK_DEFAULTS = ("bridge", "host", "none")


@dataclass(frozen=True)
class Image:
    """A local image. ``digests``: manifest digests under which registries know it. ``config``: its defaults."""

    id: str
    digests: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Container:
    """One container of the project. ``inspect`` is the engine's own description; ``image`` is what it was made from."""

    id: str
    name: str
    service: str
    hash: str
    state: str
    health: str
    directory: str
    oneoff: bool
    image_ids: tuple[str, ...]
    inspect: Mapping[str, Any]
    image: Image | None = None

    @property
    def running(self) -> bool:
        """Whether its processes run and are not paused."""
        return self.state == "running"

    @property
    def healthy(self) -> bool:
        """Whether it runs and its health check, if it has one, says so."""
        return self.running and self.health in ("", "healthy")

    @property
    def networks(self) -> list[str]:
        """The names of the networks that it is attached to, the engine's own left out."""
        attached = (self.inspect.get("NetworkSettings") or {}).get("Networks") or {}
        return sorted(name for name in attached if name not in NETWORK_DEFAULTS)

    @property
    def published(self) -> set[Port]:
        """The ports that it holds on the host now."""
        bound = (self.inspect.get("NetworkSettings") or {}).get("Ports") or {}
        return {
            Port(entry.get("HostIp", ""), int(entry["HostPort"]), key.partition("/")[2] or "tcp")
            for key, entries in bound.items()
            for entry in entries or []
            if str(entry.get("HostPort", "")).isdigit()
        }


@dataclass(frozen=True)
class Neighbour:
    """Any other container on the host. ``project`` is empty for one that Compose did not make."""

    name: str
    project: str
    published: frozenset[Port] = frozenset()

    def __str__(self) -> str:
        return f"container {self.name} ({f'project {self.project}' if self.project else 'not made by Compose'})"


@dataclass(frozen=True)
class Actual:
    """All that a plan is made from besides the wanted project.

    ``text`` is compose.yaml on disk, ``text_hashes`` its services' hashes (empty when it is equal to the wanted text or
    Compose does not take it), ``written`` the digests of the texts that this module wrote, ``known_healthy`` the digest
    of the text under which a run last saw the project healthy, ``images`` the local images by the names that the
    wanted services use, ``networks`` the project's and the wanted ones by name.
    """

    containers: tuple[Container, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    images: Mapping[str, Image] = field(default_factory=dict)
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: str | None = None
    previous: str | None = None
    text_hashes: Mapping[str, str] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    known_healthy: str = ""
    leftover_files: bool = False


def sha256(text: str) -> str:
    """Hex digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_image(inspect: Mapping[str, Any]) -> Image:
    """An image from the engine's description of it."""
    digests = (text.partition("@")[2] for text in inspect.get("RepoDigests") or [])
    return Image(inspect["Id"], tuple(digests), inspect.get("Config") or {})


def parse_container(inspect: Mapping[str, Any], image: Image | None = None) -> Container:
    """A container from the engine's description of it."""
    labels = (inspect.get("Config") or {}).get("Labels") or {}
    state = inspect.get("State") or {}
    ids = (inspect.get("Image", ""), labels.get(f"{LABEL}image", ""))
    return Container(
        id=inspect["Id"],
        name=inspect["Name"].removeprefix("/"),
        service=labels.get(f"{LABEL}service", ""),
        hash=labels.get(f"{LABEL}config-hash", ""),
        state=state.get("Status", ""),
        health=_health(state),
        directory=labels.get(f"{LABEL}project.working_dir", ""),
        oneoff=labels.get(f"{LABEL}oneoff", "").lower() == "true",
        image_ids=tuple(one for one in ids if one),
        inspect=inspect,
        image=image,
    )


def _health(state: Mapping[str, Any]) -> str:
    status = str((state.get("Health") or {}).get("Status", ""))
    return "" if status == "none" else status


def parse_neighbour(summary: Mapping[str, Any]) -> Neighbour:
    """Another container from its line in the engine's list."""
    ports = {
        Port(entry.get("IP", ""), int(entry["PublicPort"]), entry.get("Type", "tcp"))
        for entry in summary.get("Ports") or []
        if entry.get("PublicPort")
    }
    names = summary.get("Names") or ["/"]
    project = (summary.get("Labels") or {}).get(f"{LABEL}project", "")
    return Neighbour(names[0].removeprefix("/"), project, frozenset(ports))
