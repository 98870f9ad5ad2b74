"""Reads what a carrier's directory tells of its modules: config.json and the headers of its safetensors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .carrier_client import read_config, weight_files
from .carrier_tensors import CarrierModules, carrier_modules
from .plan import VoicesError
from .safetensors_header import PREFIX_BYTES, header_length, parse_header

_CACHED = re.compile(r"models--[^/]+--(?P<name>[^/]+)")


def read_carrier_modules(directory: Path, embedding_modules: Mapping[str, Any] | None = None) -> CarrierModules:
    """The modules of the carrier in ``directory``. Raises VoicesError naming the file and why it cannot be read."""
    try:
        config = read_config(directory)
        tensors = _tensors(directory)
    except OSError as error:
        raise VoicesError(
            f"carrier {directory}: {error.filename or ''}: {error.strerror or error}: point carrier at the directory "
            "that holds its config.json"
        ) from None
    except ValueError as error:
        raise VoicesError(f"carrier {directory}: {error}: copy that file anew") from None
    return carrier_modules(config, tensors, names=_names(directory, config), embedding_modules=embedding_modules)


def _tensors(directory: Path) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in weight_files(directory):
        try:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                header = parse_header(stream.read(header_length(stream.read(PREFIX_BYTES), size)), size)
        except VoicesError as error:
            raise ValueError(f"{path.name} {error}") from None
        found.update({tensor.name: (tensor.dtype, tensor.shape) for tensor in header.tensors})
    return found or None


def _names(directory: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """By what names an adapter may call this carrier: its directory, where that leads, and what its config says."""
    real = os.path.realpath(directory)
    found = [directory.name, os.path.basename(real)]
    found += [match["name"] for match in _CACHED.finditer(real)]
    named = config.get("_name_or_path")
    return tuple(dict.fromkeys([*found, *([named] if isinstance(named, str) and named else [])]))
