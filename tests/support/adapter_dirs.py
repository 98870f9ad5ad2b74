"""Small adapter directories for tests, written byte by byte and without the code under test."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def safetensors_bytes(tensors: Mapping[str, bytes], *, dtype: str = "U8") -> bytes:
    """A safetensors file with one flat tensor of one-byte elements for each name."""
    listed: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, data in tensors.items():
        listed[name] = {"dtype": dtype, "shape": [len(data)], "data_offsets": [position, position + len(data)]}
        position += len(data)
    return raw_file(json.dumps(listed).encode(), b"".join(tensors.values()))


def raw_file(header: bytes, data: bytes = b"") -> bytes:
    """The length, this header and these bytes, whatever they say."""
    return struct.pack("<Q", len(header)) + header + data


def weights(seed: str, size: int = 4096) -> bytes:
    """``size`` bytes that depend on ``seed`` only."""
    return hashlib.shake_256(seed.encode()).digest(size)


def write_adapter(
    directory: Path, seed: str = "a", *, size: int = 4096, config: Mapping[str, Any] | None = None
) -> Path:
    """An adapter directory of rank 8 whose weights are a function of ``seed``. Returns ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    chosen = {"peft_type": "LORA", "r": 8, "lora_alpha": 16} if config is None else config
    (directory / "adapter_config.json").write_text(json.dumps(chosen))
    (directory / "adapter_model.safetensors").write_bytes(safetensors_bytes({"lora_A.weight": weights(seed, size)}))
    return directory


def set_digest(directory: Path) -> str:
    """The digest as the store's description words it, written down a second time."""
    total = hashlib.sha256()
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*.safetensors")}
    for name in sorted(names | {"adapter_config.json"}):
        data = (directory / name).read_bytes()
        total.update(struct.pack(">QQ", len(name.encode()), len(data)) + name.encode() + data)
    return total.hexdigest()


def tree(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every path below ``directory`` with inode, mode, mtime and content: equal trees were not touched in between."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for folder, folders, files in os.walk(directory):
        for name in [*folders, *files]:
            path = Path(folder, name)
            state = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path.relative_to(directory))] = (state.st_ino, state.st_mode, state.st_mtime_ns, content)
    return found
