"""The Docker engine, asked and told through the Docker SDK. Needs the package ``docker``."""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import docker
import docker.errors
import requests.exceptions

from . import processes
from .compose import Remote
from .compose_checks import Answers, Questions
from .compose_config import Port
from .compose_state import LABEL, Actual, Container, Image, parse_container, parse_image, parse_neighbour
from .listeners import listeners
from .masking import shown_argv
from .plan import VoicesError

TIMEOUT_S = 60
POLL_S = 0.2
_LOG_LINES = 400
_SHOWN_COMMAND = 200

ERRORS = (docker.errors.DockerException, requests.exceptions.RequestException)
"""What a failing engine raises; ``explain`` makes a text of it."""


def explain(error: Exception) -> str:
    """An engine's error in one line."""
    text = error.explanation if isinstance(error, docker.errors.APIError) and error.explanation else error
    line = " ".join(str(text).split())
    # The SDK lets the errors of its HTTP library through: the engine was there, and is not any more.
    gone = isinstance(error, requests.exceptions.RequestException) and not isinstance(error, docker.errors.APIError)
    return f"nothing any more ({line}); see whether it runs, and run this again" if gone else line


def check_socket(docker_host: str) -> None:
    """Raise VoicesError unless an engine's socket is there and this user may talk to it."""
    if not docker_host.startswith("unix:///"):
        raise VoicesError(
            f"docker_host {docker_host!r}: a unix:///path is needed, because ports, mounts and files are looked at here"
        )
    path = docker_host.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(TIMEOUT_S)
            probe.connect(path)
    except FileNotFoundError:
        raise VoicesError(
            f"no Docker socket at {path}: install and start Docker there (docker_host_manage: true has this play do "
            "it), or set docker_host. Nothing was changed"
        ) from None
    except PermissionError:
        raise VoicesError(_not_permitted(path)) from None
    except OSError as error:
        raise VoicesError(
            f"nothing answers at the Docker socket {path} ({error.strerror or error}): start Docker. "
            "Nothing was changed"
        ) from None


def _not_permitted(path: str) -> str:
    user = processes.user_name(os.geteuid())
    try:
        gid = os.stat(path).st_gid
        group = grp.getgrgid(gid).gr_name
    except OSError:  # the directory hides it
        group = ""
    except KeyError:
        group = f"gid {gid}"
    join = f"let it join group {group} (usermod -aG {group} {user}, then log in again), or " if group else ""
    return f"user {user} may not use the Docker socket {path}: {join}run this play with become. Nothing was changed"


class Engine:
    """One engine. Methods raise ``ERRORS``."""

    def __init__(self, docker_host: str) -> None:
        check_socket(docker_host)
        self.api = docker.APIClient(base_url=docker_host, version="auto", timeout=TIMEOUT_S)

    def close(self) -> None:
        """Give the connections back."""
        self.api.close()

    # -------------------------------------------------------------------------------------------------------- read

    def read(self, project: str, images: Iterable[str] = (), networks: Iterable[str] = ()) -> Actual:
        """The project's containers and networks, its neighbours, and the images and networks of these names."""
        ours, neighbours = [], []
        for summary in self.api.containers(all=True):
            if (summary.get("Labels") or {}).get(f"{LABEL}project") == project:
                ours.append(summary["Id"])
            else:
                neighbours.append(parse_neighbour(summary))
        known: dict[str, Image | None] = {}
        found = (self.container(one, known) for one in ours)
        containers = sorted((c for c in found if c), key=lambda c: (c.service, c.name))
        local = {ref: image for ref in sorted(set(images)) if (image := self.image(ref))}
        return Actual(tuple(containers), tuple(neighbours), local, self._networks(project, networks))

    def container(self, container_id: str, images: dict[str, Image | None] | None = None) -> Container | None:
        """A container with its image, or None when it is gone. ``images`` remembers them by id."""
        try:
            found = parse_container(self.api.inspect_container(container_id))
        except docker.errors.NotFound:
            return None
        images = {} if images is None else images
        image_id = found.image_ids[0] if found.image_ids else ""
        if image_id and image_id not in images:
            images[image_id] = self.image(image_id)
        return replace(found, image=images.get(image_id))

    def image(self, reference: str) -> Image | None:
        """A local image, or None."""
        try:
            return parse_image(self.api.inspect_image(reference))  # type: ignore[no-untyped-call]
        except (docker.errors.NotFound, docker.errors.NullResource):
            return None

    def _networks(self, project: str, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        wanted = set(names)
        ids = {
            entry["Id"]
            for entry in self.api.networks()
            if entry["Name"] in wanted or (entry.get("Labels") or {}).get(f"{LABEL}project") == project
        }
        # Only the description of one network says which containers use it.
        found = [self.api.inspect_network(one) for one in sorted(ids)]
        return {entry["Name"]: entry for entry in found}

    def look_up(self, image: str) -> Remote:
        """What the image's registry says, asked by the engine; nothing is pulled."""
        try:
            answer = self.api.inspect_distribution(image)  # type: ignore[no-untyped-call]
        except ERRORS as error:
            return Remote(error=explain(error))
        return Remote(digest=answer["Descriptor"]["digest"])

    def answer(self, asked: Questions) -> Answers:
        """What the host and the engine say to the questions."""
        info = self.api.info() if asked.devices else {}
        discovered = info.get("DiscoveredDevices")
        return Answers(
            holders={port: holder for port in asked.ports if (holder := _holder(port))},
            missing=frozenset(path for path in asked.paths if not os.path.exists(path)),
            runtimes=frozenset(info.get("Runtimes") or {}),
            cdi=None if discovered is None else tuple(entry.get("ID", "") for entry in discovered),
            volumes=frozenset(entry["Name"] for entry in self.api.volumes()["Volumes"] or [])
            if asked.volumes
            else frozenset(),
        )

    def log(self, container_id: str) -> str:
        """The end of a container's log, or nothing where its log driver keeps none."""
        try:
            return str(self.api.logs(container_id, tail=_LOG_LINES).decode(errors="replace"))
        except ERRORS:
            return ""

    # ------------------------------------------------------------------------------------------------------- change

    def stop(self, container_id: str, seconds: int) -> None:
        """Stop a container: SIGTERM, after ``seconds`` SIGKILL. One that is gone is stopped."""
        try:
            if self.api.inspect_container(container_id)["State"]["Status"] == "paused":
                self.api.unpause(container_id)
            self.api.stop(container_id, timeout=seconds)
        except docker.errors.NotFound:
            pass

    def remove(self, container_id: str, *, with_anonymous_volumes: bool = False) -> None:
        """Remove a stopped container, or one that does not stop. One that is gone is removed."""
        with contextlib.suppress(docker.errors.NotFound):
            self.api.remove_container(container_id, force=True, v=with_anonymous_volumes)

    def remove_network(self, name: str) -> None:
        """Remove a network. One that is gone is removed."""
        with contextlib.suppress(docker.errors.NotFound):
            self.api.remove_network(name)

    def wait_healthy(self, container_ids: Collection[str], limit_s: float) -> list[Container]:
        """Wait until all are healthy (running, where there is no health check), or one has ended for good.

        Returns those that are not healthy after ``limit_s`` seconds, as they are then.
        """
        return wait_until_healthy(self.container, container_ids, limit_s)


def wait_until_healthy(
    read: Callable[[str], Container | None], container_ids: Collection[str], limit_s: float, poll_s: float = POLL_S
) -> list[Container]:
    """The waiting of ``Engine.wait_healthy`` over any reader."""
    deadline = time.monotonic() + limit_s
    while True:
        found = [container for one in container_ids if (container := read(one))]
        late = [container for container in found if not container.healthy]
        ended = any(container.state in ("exited", "dead") for container in late)
        if not late or ended or time.monotonic() >= deadline:
            return late
        time.sleep(poll_s)


def _holder(port: Port) -> str:
    """The process that listens on a TCP port, for a person; empty when none does."""
    if port.protocol != "tcp":
        return ""
    found = listeners(port.port, "" if port.address in ("0.0.0.0", "::") else port.address)  # noqa: S104
    if not found:
        return ""
    one = found[0]
    who = processes.user_name(one.uid)
    if not one.pids:
        return f"a process of user {who}"
    command = shown_argv(processes.command_line(one.pids[0]) or [])[:_SHOWN_COMMAND]
    return f"pid {one.pids[0]} (user {who}): {command or 'its command line is not readable'}"
