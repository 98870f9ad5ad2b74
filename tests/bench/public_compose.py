"""community.docker's modules, to measure against, without the 500 MB of the package that carries them.

The collection is on Ansible Galaxy and, inside the package ``ansible``, on PyPI. Two of its collections are taken out
of that wheel: community.docker and the one that it imports.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ANSIBLE = "14.5.0"
"""Carries community.docker 5.4.0."""
SHA256 = "245623ccc2d31d0f6f4bdb63168d550cad305fb032cc43d96e8f61ce8ab0ba84"
WANTED = ("ansible_collections/community/docker/", "ansible_collections/community/library_inventory_filtering_v1/")


def collections(cache: Path) -> Path:
    """A directory for ANSIBLE_COLLECTIONS_PATH, below ``cache``; fetched when it is not there."""
    there = cache / f"community-docker-of-ansible-{ANSIBLE}"
    if there.is_dir():
        return there
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wheel = _wheel(Path(scratch))
        made = Path(scratch, "made")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(made, [name for name in archive.namelist() if name.startswith(WANTED)])
        shutil.move(made, there)
    return there


def _wheel(directory: Path) -> Path:
    # The package asks for a newer Python than the collections in it do, which need ansible-core 2.17 or later.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--python-version", "3.13", "--dest", str(directory), f"ansible=={ANSIBLE}"], check=True)
    (wheel,) = directory.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{wheel.name} has the sha256 {found}, and not {SHA256}: it is another file than was measured")
    return wheel
