"""An image's source is read from a container that never starts and never stays; Docker itself is played here."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from textwrap import dedent
from typing import Any
from unittest.mock import patch

import docker.errors
import pytest
import requests
from ansible.module_utils.voices import engine_source_image
from ansible.module_utils.voices.engine_source import MOST_BYTES
from ansible.module_utils.voices.engine_source_image import LABEL, ImageSource, image_source
from ansible.module_utils.voices.plan import VoicesError

from tests.support.lora_engines import ENGINE, make_carrier
from tests.support.run_module import run_module

SITE = "/usr/local/lib/python3.12/dist-packages"
LINK, DIRECTORY, PIPE = 1 << 27, 1 << 31, 1 << 25


class Chunks:
    """The body of an answer, which must be closed."""

    open = 0

    def __init__(self, content: bytes) -> None:
        self.parts = iter([content[:100], content[100:]])
        Chunks.open += 1

    def __iter__(self) -> Iterator[bytes]:
        return self.parts

    def close(self) -> None:
        Chunks.open -= 1


class PlayedDocker:
    """As much of the SDK as reading an image takes; ``files`` is the image's file system."""

    def __init__(self, files: dict[str, str], environment: list[str] | None = None) -> None:
        self.files = {path: dedent(text).encode() for path, text in files.items()}
        self.links: dict[str, str] = {}
        self.kinds: dict[str, int] = {}
        self.environment = environment or []
        self.made: dict[str, dict[str, Any]] = {}
        self.removed: list[str] = []
        self.calls: list[str] = []
        self.fail_at = ""

    def inspect_image(self, image: str) -> dict[str, Any]:
        if image == "absent:1":
            raise docker.errors.ImageNotFound("no such image")
        return {"Id": "sha256:abc", "Config": {"Env": self.environment, "WorkingDir": "/"}}

    def create_container(self, image: str, **given: Any) -> dict[str, str]:
        self.calls.append("create")
        name = f"made-{len(self.made)}"
        self.made[name] = {"Id": name, "Created": time.time(), **given}
        return {"Id": name}

    def containers(self, *, all: bool, filters: dict[str, str]) -> list[dict[str, Any]]:
        assert (all, filters) == (True, {"label": LABEL, "status": "created"})
        return [one for name, one in self.made.items() if name not in self.removed]

    def remove_container(self, name: str, *, force: bool, v: bool) -> None:
        if name in self.removed:
            raise docker.errors.NotFound("gone")
        self.removed.append(name)

    def get_archive(self, container: str, path: str, chunk_size: int) -> tuple[Chunks, dict[str, Any]]:
        assert container in self.made
        self.calls.append(path)
        if self.fail_at and self.fail_at in path:
            raise requests.exceptions.ConnectionError("reset by peer")
        name = PurePosixPath(path).name
        if path in self.links:
            return Chunks(b""), {"name": name, "size": 0, "mode": LINK, "linkTarget": self.links[path]}
        if path in self.files:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                member = tarfile.TarInfo(name)
                member.size = len(self.files[path])
                archive.addfile(member, io.BytesIO(self.files[path]))
            status = {
                "name": name,
                "size": len(self.files[path]),
                "mode": self.kinds.get(path, 0o644),
                "linkTarget": "",
            }
            return Chunks(buffer.getvalue()), status
        if any(one.startswith(f"{path}/") for one in self.files):
            return Chunks(b""), {"name": name, "size": 4096, "mode": DIRECTORY, "linkTarget": ""}
        raise docker.errors.NotFound("no such file")

    def close(self) -> None:
        self.calls.append("close")


def engine_at(root: str) -> dict[str, str]:
    return {f"{root}/{path}": text for path, text in ENGINE.items()}


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    Chunks.open = 0
    yield
    assert Chunks.open == 0


def module(played: PlayedDocker, tmp_path: Path, **more: Any) -> dict[str, Any]:
    carrier = make_carrier(tmp_path / "carrier", "PlainForCausalLM")
    with (
        patch.object(engine_source_image, "check_socket"),
        patch.object(engine_source_image.docker, "APIClient", lambda **_: played),
    ):
        return run_module("vllm_lora_support", {"image": "vllm:1", "carrier": str(carrier), **more})


def test_the_verdict_from_an_image(tmp_path: Path) -> None:
    played = PlayedDocker(engine_at(SITE), ["PATH=/usr/local/bin:/bin"])
    result = module(played, tmp_path, flags=["dtype"])
    assert (result.get("msg"), result["supported"], result["class"]) == (None, True, "PlainForCausalLM")
    assert "(vllm:1)" in result["message"]
    (made,) = played.made.values()
    assert made["labels"] == {LABEL: "vllm:1"}
    assert made["network_disabled"] is True
    assert "start" not in played.calls
    assert played.removed == ["made-0"]
    assert played.calls[-1] == "close"


@pytest.mark.parametrize(
    ("root", "environment"),
    [
        ("/opt/venv/lib/python3.11/site-packages", []),
        ("/srv/own/lib/python3.13/site-packages", ["VIRTUAL_ENV=/srv/own"]),
        ("/srv/path/lib/python3.12/site-packages", ["PATH=/srv/path/bin:/bin"]),
        ("/vllm-workspace", []),
        ("/somewhere/src", ["PYTHONPATH=/none:/somewhere/src"]),
    ],
)
def test_where_it_is_looked_for(root: str, environment: list[str]) -> None:
    source = ImageSource(PlayedDocker(engine_at(root), environment), "vllm:1")
    assert source.root == root
    assert source.read("vllm/_version.py") == b"__version__ = version = '0.32.0'"
    assert source.read("vllm/none.py") is None
    assert source.listing("") == []
    source.close()


def test_an_image_without_vllm_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    played = PlayedDocker({"/bin/sh": "x"})
    result = module(played, tmp_path)
    assert result["failed"]
    assert "image vllm:1 has no vllm/model_executor/models/registry.py in any of the usual places" in result["msg"]
    assert played.removed == ["made-0"]


def test_an_image_that_is_not_there_is_not_pulled(tmp_path: Path) -> None:
    played = PlayedDocker({})
    result = module(played, tmp_path, image="absent:1")
    assert result["failed"]
    assert "image absent:1 is not on this host" in result["msg"]
    assert "docker pull absent:1" in result["msg"]
    assert played.made == {}


def test_a_failure_in_the_middle_leaves_no_container(tmp_path: Path) -> None:
    played = PlayedDocker(engine_at(SITE))
    played.fail_at = "interfaces.py"
    result = module(played, tmp_path)
    assert result["failed"]
    assert "Docker at unix:///var/run/docker.sock, asked about image vllm:1, answers" in result["msg"]
    assert played.removed == ["made-0"]


def test_what_a_kill_left_goes_with_the_next_run_and_a_running_one_stays() -> None:
    played = PlayedDocker(engine_at(SITE))
    played.made["old"] = {"Id": "old", "Created": time.time() - 3600}
    played.made["young"] = {"Id": "young", "Created": time.time() - 10}
    source = ImageSource(played, "vllm:1")
    assert source.read("vllm/__init__.py") == b""
    source.close()
    assert sorted(played.removed) == ["made-2", "old"]


def test_a_kept_answer_needs_no_container(tmp_path: Path) -> None:
    played = PlayedDocker(engine_at(SITE))
    cache = str(tmp_path / "cache")
    first = module(played, tmp_path, cache=cache)
    played.made.clear()
    second = module(played, tmp_path, cache=cache)
    assert (first["cached"], second["cached"]) == (False, True)
    assert played.made == {}


def test_links_are_followed_and_do_not_go_round() -> None:
    played = PlayedDocker(engine_at(SITE))
    played.links[f"{SITE}/vllm/link.py"] = "_version.py"
    played.links[f"{SITE}/vllm/absolute.py"] = f"{SITE}/vllm/link.py"
    played.links[f"{SITE}/vllm/round.py"] = "again.py"
    played.links[f"{SITE}/vllm/again.py"] = "round.py"
    source = ImageSource(played, "vllm:1")
    assert source.read("vllm/link.py") == source.read("vllm/absolute.py") == source.read("vllm/_version.py")
    assert source.read("vllm/round.py") is None
    assert source.read("vllm") is None
    source.close()


def test_pipes_and_large_files_are_not_read() -> None:
    played = PlayedDocker(engine_at(SITE))
    played.files[f"{SITE}/vllm/large.py"] = bytes(MOST_BYTES + 1)
    played.kinds[f"{SITE}/vllm/__init__.py"] = PIPE
    source = ImageSource(played, "vllm:1")
    assert source.read("vllm/__init__.py") is None
    with pytest.raises(VoicesError, match="that is no source of vLLM"):
        source.read("vllm/large.py")
    with pytest.raises(VoicesError, match="leaves the engine's source"):
        source.read("../etc/passwd")
    source.close()


def test_an_answer_longer_than_it_said_is_not_read_to_its_end() -> None:
    played = PlayedDocker(engine_at(SITE))
    source = ImageSource(played, "vllm:1")
    assert source.root == SITE
    endless = Chunks(bytes(10_000_000))
    with (
        patch.object(played, "get_archive", lambda *_, **__: (endless, {"size": 10, "mode": 0o644, "linkTarget": ""})),
        pytest.raises(VoicesError, match="longer than the file that it should hold"),
    ):
        source.read("vllm/_version.py")
    source.close()


def test_no_docker_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(VoicesError, match="no Docker socket at"),
        image_source("vllm:1", f"unix://{tmp_path}/none.sock"),
    ):
        pass
