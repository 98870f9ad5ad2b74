"""Look at a seat from outside, sharing no code with the product: files with inodes and hashes, processes, answers."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


def tree(root: Path, *, without: tuple[str, ...] = ("log", "cache")) -> dict[str, tuple[Any, ...]]:
    """Every file below ``root``: inode, mode, size, hash; without logs and caches, which a served request fills."""
    found: dict[str, tuple[Any, ...]] = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name not in without]
        for name in [*names, *files]:
            path = Path(directory, name)
            stat = path.lstat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path.relative_to(root))] = (stat.st_ino, stat.st_mode, stat.st_size if digest else 0, digest)
    return found


def processes(root: Path) -> dict[int, str]:
    """Pids and command lines of all live processes that mention ``root`` in their command line or environment."""
    needle = str(root).encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if command and (needle in command or needle in (entry / "environ").read_bytes()):
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return found


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, model: str, key: str, prompt: str = "Tell me about the weather today.", max_tokens: int = 24) -> str:
    """One question at temperature 0; raises urllib's HTTPError for anything but 200."""
    body = {
        "model": model,
        "temperature": 0,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": prompt}],
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback, built above
        return str(json.load(answer)["choices"][0]["message"]["content"])


def live(port: int, key: str) -> dict[str, str]:
    """Adapters of /v1/models by name with their paths."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback, built above
        return {model["id"]: model["root"] for model in json.load(answer)["data"] if model.get("parent")}


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until ``condition`` holds; a refused connection counts as "not yet". Fails after ``seconds``."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if condition():
                return time.monotonic() - began
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")
