"""Non-finite and all-zero weights, in a stream of bytes and in bounded memory, without numpy. Pure.

A little-endian float is NaN or infinite when all bits of its exponent are set. The exponent lies in the last byte and
the one before, so each piece is cut into planes (every last byte, every last but one) by slicing, and these are
searched and compared as a whole: no loop over single elements. Speed: see docs/decisions/0004-adapter-checks.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Bytes of one element of each type that is read.
ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
PIECE_BYTES = 1 << 20  # a multiple of every element

_LAST_SET = {  # in the last byte (sign and the exponent's upper bits) the exponent's bits are all set
    "BF16": b"\x7f\xff",
    "F32": b"\x7f\xff",
    "F64": b"\x7f\xff",
    "F16": bytes([*range(0x7C, 0x80), *range(0xFC, 0x100)]),
}
#: From this value on, the byte before holds the exponent's remaining bits all set. Float16 has none there.
_BEFORE_FROM = {"BF16": 0x80, "F32": 0x80, "F64": 0xF0}


def _marks(values: Iterable[int]) -> bytes:
    """A translation table: 1 for these byte values, 0 for all others."""
    chosen = set(values)
    return bytes(value in chosen for value in range(256))


_LAST_TABLE = {dtype: _marks(values) for dtype, values in _LAST_SET.items()}
_BEFORE_TABLE = {dtype: _marks(range(start, 256)) for dtype, start in _BEFORE_FROM.items()}


@dataclass(frozen=True)
class Scan:
    """One tensor: its number of elements, how many are not finite and where the first lies, whether all are zero."""

    elements: int
    bad: int
    first_bad: int
    zero: bool


def scan(pieces: Iterable[bytes], dtype: str) -> Scan:
    """Look through a tensor's bytes. Every piece holds whole elements. ``first_bad`` is -1 where all are finite.

    Raises KeyError for a type that is not in ELEMENT_BYTES.
    """
    width = ELEMENT_BYTES[dtype]
    elements, bad, first, zero = 0, 0, -1, True
    for piece in pieces:
        last = piece[width - 1 :: width]
        where = _not_finite(piece, last, dtype, width)
        if where:
            if first < 0:
                first = elements + where.index(1)
            bad += where.count(1)
        if zero:
            zero = _all_zero(piece, last, width)
        elements += len(last)
    return Scan(elements, bad, first, zero)


def _not_finite(piece: bytes, last: bytes, dtype: str, width: int) -> bytes:
    """One byte for each element, 1 where it is not finite; empty when there is none."""
    if dtype != "F16" and not any(value.to_bytes(1, "big") in last for value in _LAST_SET[dtype]):
        return b""
    marks = last.translate(_LAST_TABLE[dtype])
    if dtype in _BEFORE_TABLE:
        before = piece[width - 2 :: width].translate(_BEFORE_TABLE[dtype])
        both = int.from_bytes(marks, "little") & int.from_bytes(before, "little")
        marks = both.to_bytes(len(last), "little")
    return marks if 1 in marks else b""


def _all_zero(piece: bytes, last: bytes, width: int) -> bool:
    """Whether every element is 0.0 or -0.0, which has the sign's bit alone."""
    if last.translate(None, b"\x00\x80"):
        return False
    return not any(piece[plane::width].strip(b"\x00") for plane in range(width - 1))
