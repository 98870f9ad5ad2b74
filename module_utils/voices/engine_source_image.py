"""An engine's source in a container image, read from a container that is made and never started. Needs ``docker``."""

from __future__ import annotations

import contextlib
import io
import re
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import docker
import docker.errors

from .compose_engine import ERRORS, check_socket, explain
from .engine_source import MOST_BYTES, REGISTRY, inside, too_large
from .plan import VoicesError

LABEL = "voices.source-reading"
"""On each container that is made here, so that one that a kill left behind is known."""
_STALE_S = 900
_TIMEOUT_S = 60
_MOST_LINKS = 5
_OVERHEAD = 64 * 1024
_PREFIXES = ("/usr/local", "/usr", "/opt/venv", "/opt/conda", "/opt/vllm", "/app/.venv", "/vllm/.venv", "/root/.venv")
_CHECKOUTS = ("/vllm-workspace", "/workspace/vllm", "/app/vllm", "/app", "/workspace", "/opt/vllm")
_PYTHONS = ("3.12", "3.13", "3.11", "3.10", "3.14", "3.9")


class ImageSource:
    """The files of one image. Nothing of the image runs: the container is made, read and removed."""

    def __init__(self, api: Any, image: str) -> None:
        self.api = api
        self.image = image
        try:
            self.described = api.inspect_image(image)
        except docker.errors.ImageNotFound:
            raise VoicesError(
                f"image {image} is not on this host, so the engine in it cannot be looked at: pull it first "
                f"(docker pull {image}); the seat's own run pulls it when it makes the container"
            ) from None
        self._container = ""
        self._root: str | None = None

    @property
    def where(self) -> str:
        return f"image {self.image}"

    @property
    def digest(self) -> str:
        """What the image is known by: its id changes with any byte of it."""
        return str(self.described["Id"])

    def read(self, path: str) -> bytes | None:
        return self._file(f"{self.root}/{inside(path)}")

    def listing(self, path: str) -> list[str]:
        """Nothing: Docker has no listing, and an archive of site-packages would be gigabytes."""
        return []

    @property
    def root(self) -> str:
        """The image's directory in which ``vllm/`` lies. Raises VoicesError when it is in none of the usual ones."""
        if self._root is None:
            found = (root for root in self._candidates() if self._stat(f"{root}/{REGISTRY}"))
            self._root = next(found, "")
        if not self._root:
            raise VoicesError(
                f"{self.where} has no {REGISTRY} in any of the usual places (site-packages and dist-packages of "
                f"{', '.join(_PREFIXES)} and of what its PATH names): give the engine's directory instead"
            )
        return self._root

    def _candidates(self) -> Iterator[str]:
        config = self.described.get("Config") or {}
        environment = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
        paths = environment.get("PATH", "").split(":")
        prefixes = [environment.get("VIRTUAL_ENV", ""), *(path[:-4] for path in paths if path.endswith("/bin"))]
        for prefix in dict.fromkeys((*prefixes, *_PREFIXES)):
            if not prefix.startswith("/") or not self._stat(f"{prefix}/lib"):
                continue
            for python in self._pythons(prefix):
                yield f"{prefix}/lib/python{python}/site-packages"
                yield f"{prefix}/lib/python{python}/dist-packages"
        yield "/usr/lib/python3/dist-packages"
        for root in (*environment.get("PYTHONPATH", "").split(":"), str(config.get("WorkingDir") or ""), *_CHECKOUTS):
            if root.startswith("/"):
                yield root.rstrip("/")

    def _pythons(self, prefix: str) -> Iterator[str]:
        """The versions of Python below ``prefix``: that which its ``python3`` links to goes first."""
        linked = re.search(r"python(3\.\d+)$", str((self._stat(f"{prefix}/bin/python3") or {}).get("linkTarget", "")))
        yield from dict.fromkeys([*([linked.group(1)] if linked else []), *_PYTHONS])

    # ------------------------------------------------------------------------------------------------- the container

    def container(self) -> str:
        """The container's id; made on the first call."""
        if not self._container:
            made = self.api.create_container(
                self.image,
                command=["/never-started"],
                entrypoint=["/never-started"],
                labels={LABEL: self.image},
                network_disabled=True,
            )
            self._container = str(made["Id"])
        return self._container

    def close(self) -> None:
        """Remove the container, if one was made, and those that killed runs left."""
        if self._container:
            self._remove(self._container)
            self._container = ""
            for left in self.api.containers(all=True, filters={"label": LABEL, "status": "created"}):
                # A younger one may be another run's, which is reading.
                if time.time() - left.get("Created", time.time()) > _STALE_S:
                    self._remove(str(left["Id"]))

    def _remove(self, container: str) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            self.api.remove_container(container, force=True, v=True)

    def _stat(self, path: str) -> dict[str, Any] | None:
        found = self._archive(path)
        if found is None:
            return None
        chunks, status = found
        chunks.close()
        return status

    def _archive(self, path: str) -> tuple[Any, dict[str, Any]] | None:
        try:
            chunks, status = self.api.get_archive(self.container(), path, chunk_size=_OVERHEAD)
        except docker.errors.NotFound:
            return None
        except docker.errors.APIError as error:
            if error.response is not None and error.response.status_code == 400:  # a part of the path is a file
                return None
            raise
        return chunks, status

    def _file(self, path: str, links: int = 0) -> bytes | None:
        found = self._archive(path)
        if found is None:
            return None
        chunks, status = found
        try:
            mode, size = int(status.get("mode", 0)), int(status.get("size", 0))
            target = str(status.get("linkTarget") or "")
            if target and target != path and links < _MOST_LINKS:
                resolved = target if target.startswith("/") else str(PurePosixPath(path).parent / target)
                return self._file(resolved, links + 1)
            if target or mode & _GO_NOT_REGULAR or stat.S_ISDIR(mode):
                return None
            if size > MOST_BYTES:
                raise too_large(f"{path} of {self.where}", size)
            return _only_file(_limited(chunks, size + _OVERHEAD, path))
        finally:
            chunks.close()


# Docker tells the mode as Go's os.FileMode does: the kind is in the upper bits.
_GO_NOT_REGULAR = (1 << 31) | (1 << 27) | (1 << 26) | (1 << 25) | (1 << 24) | (1 << 21) | (1 << 19)


def _limited(chunks: Any, most: int, path: str) -> bytes:
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > most:
            raise VoicesError(f"{path}: the archive is longer than the file that it should hold")
    return bytes(content)


def _only_file(archive: bytes) -> bytes | None:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for member in opened:
                file = opened.extractfile(member) if member.isreg() else None
                return file.read() if file else None
    except tarfile.TarError as error:
        raise VoicesError(f"Docker's archive of a file cannot be read: {error}") from None
    return None


@contextlib.contextmanager
def image_source(image: str, docker_host: str) -> Iterator[ImageSource]:
    """The source in a local image. Raises VoicesError when it is not there, or Docker does not answer."""
    check_socket(docker_host)
    try:
        api = docker.APIClient(base_url=docker_host, version="auto", timeout=_TIMEOUT_S)
    except ERRORS as error:
        raise VoicesError(f"Docker at {docker_host} answers {explain(error)}") from None
    try:
        source = ImageSource(api, image)
        try:
            yield source
        finally:
            source.close()
    except ERRORS as error:
        raise VoicesError(f"Docker at {docker_host}, asked about image {image}, answers {explain(error)}") from None
    finally:
        api.close()
