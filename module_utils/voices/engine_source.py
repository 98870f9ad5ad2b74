"""An engine's own source and where it lies: a directory, a virtual environment or a wheel. Runs nothing of it."""

from __future__ import annotations

import ast
import os
import re
import stat
import zipfile
from pathlib import Path, PurePosixPath
from typing import Protocol

from .plan import VoicesError

REGISTRY = "vllm/model_executor/models/registry.py"
MOST_BYTES = 8 * 1024 * 1024
"""No file of vLLM's source comes near it (the largest has 0.3 MiB)."""
_MOST_NAMES = 100_000
_PLATFORMS = ("cpu", "rocm", "xpu", "tpu")


class Source(Protocol):
    """Files by their path below the directory that holds ``vllm/``, with ``/`` between."""

    @property
    def where(self) -> str:
        """What a message calls it."""

    def read(self, path: str) -> bytes | None:
        """The file's content, None when there is no such file. Raises VoicesError for one that is too large."""

    def listing(self, path: str) -> list[str]:
        """The names in a directory, empty when there is none or when this source cannot list."""


class DirectorySource:
    """A checkout, an unpacked wheel or a site-packages directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def where(self) -> str:
        return str(self.root)

    def read(self, path: str) -> bytes | None:
        file = self.root / inside(path)
        try:
            status = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None  # a pipe would hold the run for ever
        if status.st_size > MOST_BYTES:
            raise too_large(str(file), status.st_size)
        return file.read_bytes()

    def listing(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / inside(path)))[:_MOST_NAMES]
        except (FileNotFoundError, NotADirectoryError):
            return []


class WheelSource:
    """A wheel, as it comes from a package index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise VoicesError(f"{path} is no wheel ({error}): fetch it again") from None
        self._sizes = {one.filename: one.file_size for one in self._archive.infolist()}

    @property
    def where(self) -> str:
        return str(self.path)

    def read(self, path: str) -> bytes | None:
        size = self._sizes.get(inside(path))
        if size is None:
            return None
        if size > MOST_BYTES:
            raise too_large(f"{self.path}:{path}", size)
        try:
            return self._archive.read(path)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise VoicesError(f"{self.path}: {path} cannot be read ({error}): fetch the wheel again") from None

    def listing(self, path: str) -> list[str]:
        start = f"{inside(path)}/" if path not in ("", ".") else ""
        return sorted({name[len(start) :].partition("/")[0] for name in self._sizes if name.startswith(start)})


def inside(path: str) -> str:
    """``path`` as it is. Raises VoicesError for one that would leave the source."""
    if path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
        raise VoicesError(f"{path!r} leaves the engine's source")
    return path


def too_large(name: str, size: int) -> VoicesError:
    """The refusal of a file that can be no source."""
    return VoicesError(f"{name} has {size} bytes, more than {MOST_BYTES}: that is no source of vLLM")


def directory_source(path: Path) -> Source:
    """The source at ``path``: a directory with ``vllm/`` in it, ``vllm/`` itself, a virtual environment or a wheel.

    Raises VoicesError when there is no vLLM.
    """
    if path.is_file():
        if path.suffix != ".whl":
            raise VoicesError(f"{path} is a file and no wheel: give a directory, a wheel or an environment's python")
        return _with_vllm(WheelSource(path))
    if not path.is_dir():
        raise VoicesError(f"{path} is not there: give the directory in which the engine's vllm/ lies")
    for root in (path, path.parent, path / "src"):
        if (root / REGISTRY).is_file() and (root != path.parent or path.name == "vllm"):
            return DirectorySource(root)
    if (path / "pyvenv.cfg").is_file() or (path / "lib").is_dir():
        return _installed(path)
    raise _no_vllm(str(path))


def python_source(python: Path) -> Source:
    """The source in the environment of an interpreter, which is not started.

    Raises VoicesError when there is no vLLM.
    """
    if python.is_dir():
        return directory_source(python)
    if not python.exists():
        raise VoicesError(f"{python} is not there: give the interpreter that starts the engine")
    return _installed(python.absolute().parent.parent)


def _installed(prefix: Path) -> Source:
    sites = [*prefix.glob("lib*/python3*/site-packages"), *prefix.glob("lib*/python3*/dist-packages")]
    for site in sorted(sites, reverse=True):
        if (site / REGISTRY).is_file():
            return DirectorySource(site)
    for site in sorted(sites, reverse=True):
        for root in _editable_roots(site):
            if (root / REGISTRY).is_file():
                return DirectorySource(root)
    raise _no_vllm(str(prefix))


def _editable_roots(site: Path) -> list[Path]:
    """Where the checkouts lie that this site-packages refers to: lines of .pth files and setuptools' finders."""
    roots = []
    for file in sorted(site.glob("*.pth")):
        lines = file.read_text(errors="replace").splitlines()
        roots += [site / line.strip() for line in lines if line.strip() and not line.startswith(("#", "import "))]
    for file in sorted(site.glob("__editable__*_finder.py")):
        match = re.search(r"^MAPPING\b[^=]*=\s*(\{.*\})\s*$", file.read_text(errors="replace"), re.MULTILINE)
        try:
            mapping = ast.literal_eval(match.group(1)) if match else {}
        except (ValueError, SyntaxError):
            continue
        if isinstance(mapping, dict) and isinstance(mapping.get("vllm"), str):
            roots.append(Path(mapping["vllm"]).parent)
    return roots


def _with_vllm(source: Source) -> Source:
    if source.read(REGISTRY) is None:
        raise _no_vllm(source.where)
    return source


def _no_vllm(where: str) -> VoicesError:
    return VoicesError(
        f"{where} holds no {REGISTRY}: give the directory in which the engine's vllm/ lies, its wheel, or the "
        "environment in which it is installed"
    )


def engine_version(source: Source) -> str:
    """The version that the source itself names, "" when it names none (a checkout that was not built)."""
    for path in ("vllm/_version.py", "vllm/version.py"):
        text = (source.read(path) or b"").decode(errors="replace")
        match = re.search(r"^__version__\b[^'\"\n]*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE)
        if match and match.group(1) != "dev":
            return match.group(1)
    for name in _distributions(source):
        match = re.search(r"^Version: (\S+)$", (source.read(f"{name}/METADATA") or b"").decode(errors="replace"), re.M)
        if match:
            return match.group(1)
    return ""


def engine_platform(source: Source, version: str) -> str:
    """What the build is for, as its version or the name of its distribution says; CUDA says nothing."""
    local = version.partition("+")[2]
    names = " ".join(re.split(r"[-_.+]", f"{local} " + " ".join(_distributions(source)))).split()
    return next((platform for platform in _PLATFORMS if any(one.startswith(platform) for one in names)), "cuda")


def _distributions(source: Source) -> list[str]:
    return [name for name in source.listing("") if re.fullmatch(r"vllm[\w.+]*-[\w.+]+\.dist-info", name)]
