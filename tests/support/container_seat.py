"""A seat in a container for a test: real vLLM on the machine's Docker engine, brought up by the product's site.yml."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors

from tests.support import observe
from tests.support.docker_project import events_about, no_docker
from tests.support.local_seat import ENGINE_PYTHON, LocalSeat
from tests.support.play import REPOSITORY

BASE_IMAGE = "voices-engine-cpu:test"


def no_container_seat() -> str:
    """Why such a seat cannot run here; empty when it can."""
    return no_docker() or ("" if os.geteuid() == 0 else "an engine under another user takes root")


class ContainerSeat(LocalSeat):
    """One seat in a container; looked at from outside, by the docker SDK and not by the product."""

    def __init__(self, root: Path, name: str, api: Any) -> None:
        super().__init__(root, name)
        self.api = api
        self.project = f"voices-{name}"
        self.compose_file = self.directory / "compose/compose.yaml"
        # Tags of its own: a test may point them at other images, and what others use stays.
        self.repository = f"voices-engine-{name}"
        self.host_vars = {
            "voices_seat_runtime": "compose",
            "voices_seat_pull": "never",
            "voices_seat_container_python": ENGINE_PYTHON,
            "voices_seat_container_mounts": [str(Path(ENGINE_PYTHON).parents[1])],
        }
        # Room for every voice of a test: slots that have to grow would recreate the container.
        self.options = {"image": self.tagged("one"), "max_loras": 4}

    def tagged(self, tag: str) -> str:
        """The base image under another name, which is returned."""
        self.api.tag(BASE_IMAGE, self.repository, tag)
        return f"{self.repository}:{tag}"

    def rebuild(self, image: str) -> str:
        """Another image under the name ``image``, as after a build; returns its id."""
        made = self.api.create_container(image, command=["true"])["Id"]
        try:
            name, _, tag = image.partition(":")
            self.api.commit(made, repository=name, tag=tag, changes=[f"LABEL voices.test.build={made[:12]}"])
        finally:
            self.api.remove_container(made)
        return str(self.api.inspect_image(image)["Id"])

    # ---------------------------------------------------------------------------------------------- from outside

    def containers(self) -> list[dict[str, Any]]:
        """All containers of the seat's project."""
        label = f"com.docker.compose.project={self.project}"
        return [
            self.api.inspect_container(one["Id"]) for one in self.api.containers(all=True, filters={"label": label})
        ]

    def container_id(self) -> str:
        """The id of its only container; empty when there is none."""
        found = self.containers()
        assert len(found) < 2, [one["Name"] for one in found]
        return str(found[0]["Id"]) if found else ""

    def runs(self) -> bool:
        """Whether its container runs."""
        return any(one["State"]["Status"] == "running" for one in self.containers())

    def state(self) -> tuple[Any, ...]:
        """All that a check must leave alone: containers with their starts, networks, images, files, live voices."""
        containers = [
            (one["Id"], one["Name"], one["State"]["StartedAt"], one["State"]["Status"]) for one in self.containers()
        ]
        networks = sorted(one["Id"] for one in self.api.networks(names=[self.project]))
        images = sorted((tuple(sorted(one["RepoTags"] or ())), one["Id"]) for one in self.api.images())
        live = self.live() if self.runs() else {}
        return containers, networks, images, observe.tree(self.made), live

    def events(self, since: float, until: float) -> list[str]:
        """What the engine did between two times to anything of this seat, its own health checks left out."""
        own = [self.project, self.repository]
        checks = set()
        for one in self.containers():
            own.append(one["Id"])
            checks.add(" ".join(one["Config"]["Healthcheck"]["Test"][1:]))
        found = []
        for event in events_about(self.api, own, since, until):
            what, _, command = event["Action"].partition(": ")
            # The end of an exec does not say which it was; each has a beginning, which does.
            own_check = what in ("exec_create", "exec_start") and command in checks
            if not own_check and what not in ("exec_die", "health_status"):
                found.append(f"{event['Type']} {event['Action']}")
        return found

    def remove(self) -> None:
        """Take away all that it made on the engine."""
        for one in self.containers():
            self.api.remove_container(one["Id"], force=True, v=True)
        for one in self.api.networks(names=[f"{self.project}_default"]):
            self.api.remove_network(one["Id"])
        for image in self.api.images(name=self.repository):
            for tag in image["RepoTags"] or [image["Id"]]:
                if tag.startswith((self.repository, "sha256:")):
                    with contextlib.suppress(docker.errors.ImageNotFound):
                        self.api.remove_image(tag, force=True)


def container_seats(root: Path, name: str, api: Any, voices: tuple[str, ...]) -> Iterator[ContainerSeat]:
    """One seat that is up and serves ``voices``, taken away by the product and then looked at."""
    build = [str(REPOSITORY / "molecule/compose/base_image.sh"), BASE_IMAGE, str(REPOSITORY / "var/cache")]
    subprocess.run(build, check=True, timeout=300)
    seat = ContainerSeat(root, name, api)
    for directory in (root, *root.parents):  # the container's user looks for the carrier here
        if directory.stat().st_uid == os.geteuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o055)
    for voice in voices:
        seat.add_voice(voice)
    try:
        first = seat.run()
        assert first.rc == 0, first.output
        yield seat
        gone = seat.run(voices_seat_state="absent")
        assert gone.rc == 0, gone.output
        assert seat.containers() == []
    finally:
        seat.remove()
