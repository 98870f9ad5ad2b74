"""An engine's source in a real image: read from a container that is never started, and that does not stay."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from ansible.module_utils.voices import engine_source_image
from ansible.module_utils.voices.engine_source_image import LABEL

from tests.support.docker_project import DOCKER_HOST, PREFIX, events_about, until
from tests.support.lora_answers import REPOSITORY, VENV
from tests.support.lora_engines import ENGINE, MODELS, make_carrier, make_engine
from tests.support.run_module import run_module

SITE = "usr/local/lib/python3.12/dist-packages"


def make_image(api: Any, tag: str, directory: Path, links: dict[str, str] | None = None) -> str:
    """An image of nothing but the Python files below ``directory``, where vLLM's own image has them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in sorted((directory / "vllm").rglob("*.py")):
            archive.add(file, arcname=f"{SITE}/{file.relative_to(directory)}")
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(f"{SITE}/{path}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    changes = ["ENV PATH=/usr/local/bin:/bin", f"LABEL voices.test.run={PREFIX}"]
    api.import_image_from_data(buffer.getvalue(), repository=f"{PREFIX}-lora", tag=tag, changes=changes)
    return f"{PREFIX}-lora:{tag}"


@pytest.fixture
def image(api: Any, images: None, tmp_path: Path) -> str:
    return make_image(api, "small", make_engine(tmp_path / "engine"))


@pytest.fixture(scope="module")
def real_image(api: Any, images: None) -> str:
    """The source of the installed engine."""
    (site,) = VENV.glob("lib/python3*/site-packages")
    return make_image(api, "real", site)


@pytest.fixture(autouse=True)
def nothing_stays(api: Any) -> Iterator[None]:
    yield
    left = ours(api)
    for one in left:
        api.remove_container(one["Id"], force=True)
    assert left == []


def ours(api: Any) -> list[dict[str, Any]]:
    """The containers that reading made, of these tests' images."""
    found = api.containers(all=True, filters={"label": LABEL})
    return [one for one in found if one["Labels"][LABEL].startswith(PREFIX)]


def arguments(image: str, carrier: Path, **more: Any) -> dict[str, Any]:
    return {"image": image, "docker_host": DOCKER_HOST, "carrier": str(carrier), **more}


def test_a_container_is_made_read_and_removed_and_never_started(api: Any, image: str, tmp_path: Path) -> None:
    carrier = make_carrier(tmp_path / "carrier", "PlainForCausalLM")
    began = time.time()
    result = run_module("vllm_lora_support", arguments(image, carrier, flags=["dtype", "kv-cache-memory-bytes"]))
    assert (result.get("msg"), result["supported"], result["class"]) == (None, True, "PlainForCausalLM")
    events = events_about(api, [image], began, time.time())
    actions = [event["Action"] for event in events if event["Type"] == "container"]
    assert "start" not in actions
    assert (actions.count("create"), actions.count("destroy")) == (1, 1)


def test_check_mode_says_the_same(image: str, tmp_path: Path) -> None:
    carrier = make_carrier(tmp_path / "carrier", "DeafForCausalLM")
    given = arguments(image, carrier, cache=str(tmp_path / "cache"))
    checked = run_module("vllm_lora_support", given, check=True)
    assert checked["failed"]
    assert not (tmp_path / "cache").exists()
    assert checked == run_module("vllm_lora_support", given)
    assert (tmp_path / "cache").exists()


def test_an_answer_is_kept_by_the_images_id(api: Any, image: str, tmp_path: Path) -> None:
    carrier = make_carrier(tmp_path / "carrier", "PlainForCausalLM")
    given = arguments(image, carrier, cache=str(tmp_path / "cache"))
    assert not run_module("vllm_lora_support", given)["cached"]
    began = time.time()
    assert run_module("vllm_lora_support", given)["cached"]
    assert [one for one in events_about(api, [image], began, time.time()) if one["Type"] == "container"] == []
    # The same name for another image.
    make_image(api, "small", make_engine(tmp_path / "other", {f"{MODELS}/plain.py": "class PlainForCausalLM: ...\n"}))
    again = run_module("vllm_lora_support", given)
    assert again["failed"]
    assert (again["supported"], again["cached"]) == (False, False)


def test_an_image_that_is_not_here_is_refused_and_not_pulled(api: Any, tmp_path: Path) -> None:
    carrier = make_carrier(tmp_path / "carrier", "PlainForCausalLM")
    result = run_module("vllm_lora_support", arguments(f"{PREFIX}-lora:none", carrier))
    assert result["failed"]
    assert f"docker pull {PREFIX}-lora:none" in result["msg"]


def test_an_image_without_vllm_is_refused(api: Any, images: None, tmp_path: Path) -> None:
    carrier = make_carrier(tmp_path / "carrier", "PlainForCausalLM")
    result = run_module("vllm_lora_support", arguments(f"{PREFIX}:one", carrier))
    assert result["failed"]
    assert "in any of the usual places" in result["msg"]


def test_links_are_followed_inside_the_image_only(api: Any, images: None, tmp_path: Path) -> None:
    root = make_engine(tmp_path / "engine", {f"{MODELS}/plain.py": None, "vllm/real.py": ENGINE[f"{MODELS}/plain.py"]})
    text = (root / "vllm/real.py").read_text().replace("from .interfaces", "from vllm.model_executor.models.interfaces")
    (root / "vllm/real.py").write_text(text)
    links = {
        f"{MODELS}/plain.py": "../../real.py",
        f"{MODELS}/round.py": "round.py",
        f"{MODELS}/deaf.py": str(REPOSITORY / "README.md"),
    }
    (root / f"{MODELS}/deaf.py").unlink()
    linked = make_image(api, "linked", root, links)
    carrier = make_carrier(tmp_path / "carrier", "PlainForCausalLM")
    assert run_module("vllm_lora_support", arguments(linked, carrier))["supported"]
    outside = run_module("vllm_lora_support", arguments(linked, make_carrier(tmp_path / "deaf", "DeafForCausalLM")))
    assert outside["failed"]
    assert outside["verdict"] == "unknown", "the link names a file of the host, which the image does not have"


def test_what_a_kill_leaves_is_known_and_goes_with_a_later_run(api: Any, real_image: str, tmp_path: Path) -> None:
    carrier = make_carrier(tmp_path / "carrier", "Qwen3ForCausalLM")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.module_process", "vllm_lora_support"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments(real_image, carrier)))
    process.stdin.close()
    (left,) = until(lambda: ours(api), 30, "a container of the module's")
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert [one["Id"] for one in ours(api)] == [left["Id"]]
    assert left["State"] == "created"
    # A young one may be another run's, and stays.
    assert run_module("vllm_lora_support", arguments(real_image, carrier))["supported"]
    assert [one["Id"] for one in ours(api)] == [left["Id"]]
    with patch.object(engine_source_image, "_STALE_S", -60):
        assert run_module("vllm_lora_support", arguments(real_image, carrier))["supported"]
    assert ours(api) == []


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForConditionalGeneration"])
def test_the_real_source_reads_alike_from_an_image_and_from_its_environment(
    real_image: str, tmp_path: Path, architecture: str
) -> None:
    carrier = make_carrier(tmp_path / "carrier", architecture, num_experts=8)
    began = time.monotonic()
    found = run_module("vllm_lora_support", arguments(real_image, carrier, platform="cpu"))
    print(f"{architecture} from an image: {time.monotonic() - began:.2f} s")
    given = {"python": str(VENV / "bin/python"), "carrier": str(carrier), "platform": "cpu"}
    beside = run_module("vllm_lora_support", given)
    told_by_place = ("invocation", "message", "msg", "warnings")
    assert {k: v for k, v in found.items() if k not in told_by_place} == {
        k: v for k, v in beside.items() if k not in told_by_place
    }
