"""The safetensors header: is this file whole, and what tensors does it hold? Pure, over bytes that a client has read.

The format (safetensors' own documentation): 8 bytes little-endian header length N, N bytes of JSON that begin with
``{`` and may be padded with spaces, then the tensors' bytes without a gap or an overlap up to the end of the file. So
the header alone gives the file's exact length, and a truncated or padded file is found without reading its tensors.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .plan import VoicesError

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_LARGEST_SHOWN = 80
_TOO_LARGE = 2**64  # the format's readers count in 64 bits
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON's escapes can make one; it is no text, and readers refuse it

# Bits of one element, as safetensors 0.8.0 packs it (each was tried against its reader).
DTYPE_BITS: Mapping[str, int] = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


class HeaderError(VoicesError):
    """What is wrong with the file, with its numbers. The caller puts the file's name in front."""


@dataclass(frozen=True)
class Tensor:
    """One tensor: ``begin`` and ``end`` count bytes from the first byte after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A checked header, its tensors in the order of their bytes in the file."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]
    header_bytes: int


def header_length(prefix: bytes, file_bytes: int) -> int:
    """How many header bytes follow the first 8 bytes (``prefix``) of a file of ``file_bytes``.

    Raises HeaderError when there can be no such header, so that nobody allocates what a hostile length asks for.
    """
    if len(prefix) < PREFIX_BYTES:
        raise HeaderError(f"is truncated: {len(prefix)} bytes, a safetensors file begins with an 8-byte header length")
    length: int = struct.unpack("<Q", prefix[:PREFIX_BYTES])[0]
    if length > MAX_HEADER_BYTES:
        raise HeaderError(f"is no safetensors file: header length {length}, the format's limit is {MAX_HEADER_BYTES}")
    if PREFIX_BYTES + length > file_bytes:
        raise HeaderError(f"is truncated: a header of {length} bytes is announced, the file has {file_bytes} bytes")
    if length < len("{}"):
        raise HeaderError(f"is no safetensors file: header length {length}")
    return length


def parse_header(blob: bytes, file_bytes: int) -> Header:
    """Check the header's bytes ``blob`` against a file of ``file_bytes`` and return its tensors.

    Raises HeaderError naming the first tensor that is wrong, or the bytes that are missing or too many at the end.
    """
    listed = _load(blob)
    metadata = listed.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("has a bad header: __metadata__ is no map of strings to strings")
    data_bytes = file_bytes - PREFIX_BYTES - len(blob)
    tensors = tuple(
        sorted((_tensor(name, entry) for name, entry in listed.items()), key=lambda one: (one.begin, one.end))
    )
    position = 0
    for tensor in tensors:
        if tensor.begin != position:
            kind = "a gap" if tensor.begin > position else "an overlap"
            raise HeaderError(
                f"has {kind}: tensor {_shown(tensor.name)} begins at byte {tensor.begin}, expected {position}"
            )
        position = tensor.end
    if position > data_bytes:
        raise HeaderError(
            f"is truncated: the header asks for {PREFIX_BYTES + len(blob) + position} bytes, the file has "
            f"{file_bytes} ({position - data_bytes} missing)"
        )
    if position < data_bytes:
        raise HeaderError(
            f"has {data_bytes - position} bytes too many: the header asks for "
            f"{PREFIX_BYTES + len(blob) + position} bytes, the file has {file_bytes}"
        )
    return Header(tensors=tensors, metadata=metadata, header_bytes=len(blob))


def _load(blob: bytes) -> dict[str, Any]:
    if not blob.startswith(b"{"):
        raise HeaderError(f"is no safetensors file: its header begins with {blob[:1]!r}, not with '{{'")
    try:
        listed = json.loads(blob.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise HeaderError("has a bad header: its JSON is nested too deeply") from None
    except ValueError as error:
        raise HeaderError(f"has a bad header: not valid JSON ({_clipped(str(error))})") from None
    if not isinstance(listed, dict):  # unreachable while the first byte is '{'; the type checker wants it said
        raise HeaderError("has a bad header: its JSON is no object")
    return listed


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise HeaderError(f"has a bad header: key {_shown(key)} stands twice")
        if _LONE_SURROGATE.search(key):
            raise HeaderError(f"has a bad header: key {_shown(key)} is no text")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _tensor(name: str, entry: Any) -> Tensor:
    def bad(why: str) -> HeaderError:
        return HeaderError(f"has a bad header: tensor {_shown(name)}: {why}")

    if not isinstance(entry, dict):
        raise bad("its entry is no object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(f"dtype {_shown(dtype)} is none of {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise bad(f"shape {_shown(shape)} is no list of sizes (whole, 0 to 2**64-1)")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise bad(f"data_offsets {_shown(offsets)} are no two offsets (whole, 0 to 2**64-1)")
    begin, end = offsets
    if end < begin:
        raise bad(f"data_offsets end at {end}, before they begin at {begin}")
    if not _fits(shape, DTYPE_BITS[dtype], end - begin):
        raise bad(f"{dtype} of shape {_shown(shape)} does not take the {end - begin} bytes of its data_offsets")
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), begin=begin, end=end)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE


def _fits(shape: Sequence[int], bits: int, size: int) -> bool:
    """Whether ``shape`` elements of ``bits`` take exactly ``size`` bytes. Stops when 64 bits cannot count them."""
    count = 1
    for length in shape:
        count *= length
        if count >= _TOO_LARGE:
            return False
    return count * bits == 8 * size


def _shown(value: object) -> str:
    return _clipped(repr(value))


def _clipped(text: str) -> str:
    return text if len(text) <= _LARGEST_SHOWN else text[:_LARGEST_SHOWN] + "…"
