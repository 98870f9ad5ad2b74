"""Reads an adapter's directory for its check: files, configuration, header, weights in pieces. Nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from .adapter_check import Source
from .adapter_files import CONFIG, MAX_CONFIG_BYTES, WEIGHTS, File, list_files, open_regular, pieces_of
from .adapter_findings import Finding, found, shown
from .adapter_weights import ELEMENT_BYTES, PIECE_BYTES, Scan, scan
from .plan import VoicesError
from .safetensors_header import PREFIX_BYTES, Header, HeaderError, header_length, parse_header

_PART = re.compile(r"adapter_model-\d+-of-\d+\.safetensors")
#: A mixture of 128 experts in 48 layers has 37,000 tensors and 6 MB; the parsed header takes ten times its bytes.
MAX_HEADER_BYTES = 32 << 20
#: What adapter_files says of a file that is no part of an adapter, and the finding's code.
_PROBLEMS = (
    ("is a link that leaves", "link-escapes"),
    ("is a link to", "link-broken"),
    ("is a pickle", "pickle"),
)


class Changed(Exception):
    """The weight file was written to while it was read."""


def read_source(directory: str, *, read_weights: bool) -> Source:
    """What ``check_adapter`` asks for. Every problem of the files is a finding, none an exception."""
    if not os.path.isdir(directory):
        what = "is no directory" if os.path.lexists(directory) else "does not exist"
        return Source((found("source-missing", f"{shown(directory)} {what}"),))
    # Asked before the tree is walked: a wrong path may be somebody's whole home directory.
    if not os.path.lexists(os.path.join(directory, CONFIG)):
        return Source((found("no-config", f"{shown(directory)} has no {CONFIG}"),))
    try:
        return _read(directory, read_weights)
    except OSError as error:
        text = f"{shown(error.filename or directory)}: {error.strerror or error}"
        return Source((found("unreadable", text),))
    except Changed:
        return Source((found("changed", f"{WEIGHTS} changed while it was read"),))
    except VoicesError as error:
        return Source((found("unreadable", shown(str(error))),))


def _read(directory: str, read_weights: bool) -> Source:
    files, problems = list_files(directory)
    by_name = {file.name: file for file in files}
    findings = [_problem(text) for text in problems]
    told = any(text.startswith((f"{CONFIG} ", f"{WEIGHTS} ")) for text in problems)
    config = _config(directory, by_name, findings, told)
    findings += _others(files)
    header = None
    size = 0
    scans: dict[str, Scan] | None = None
    if WEIGHTS in by_name:
        with open(open_regular(by_name[WEIGHTS].path), "rb", buffering=0) as stream:
            before = os.fstat(stream.fileno())
            size = before.st_size
            header = _header(stream, size, findings)
            if header is not None and read_weights:
                scans = _scans(stream, header)
            _require_same(stream, before)
    elif not told:
        findings.append(_no_weights(files, problems))
    return Source(tuple(findings), config, header.tensors if header else None, scans, size)


def _problem(text: str) -> Finding:
    code = next((code for words, code in _PROBLEMS if words in text), "special-file")
    message, _, fix = text.rpartition(": ")
    return found(code, shown(message), fix=shown(fix))


def _config(directory: str, by_name: dict[str, File], findings: list[Finding], told: bool) -> bytes | None:
    file = by_name.get(CONFIG)
    if file is None:
        if os.path.isdir(os.path.join(directory, CONFIG)):
            findings.append(found("config-not-a-file", f"{CONFIG} is a directory"))
        elif not told:
            findings.append(found("no-config", f"{CONFIG} is no file"))
        return None
    if file.bytes > MAX_CONFIG_BYTES:
        text = f"{CONFIG} has {file.bytes} bytes; at most {MAX_CONFIG_BYTES} are read"
        findings.append(found("config-too-large", text))
        return None
    return b"".join(pieces_of(file.path))


def _others(files: Sequence[File]) -> Iterator[Finding]:
    """Adapters in directories below, and weights that the engine does not load."""
    loaded = {file.path for file in files if file.name == WEIGHTS}
    for file in files:
        if file.path in loaded:
            continue  # under another name, to which a link leads
        folder, _, name = file.name.rpartition("/")
        if folder and name == CONFIG:
            yield found("several-adapters", f"{shown(folder)}/ holds an adapter too; vLLM loads the upper one")
        elif not folder and name.endswith(".safetensors") and name != WEIGHTS and not _PART.fullmatch(name):
            yield found("extra-weights", f"{shown(name)}, {file.bytes} bytes: vLLM loads {WEIGHTS} alone")
    if any(file.name == WEIGHTS for file in files) and any(_PART.fullmatch(file.name) for file in files):
        yield found("sharded", f"parts beside {WEIGHTS}, which vLLM does not load")


def _no_weights(files: Sequence[File], problems: Sequence[str]) -> Finding:
    parts = [file.name for file in files if _PART.fullmatch(file.name)]
    if parts:
        return found("sharded", f"{len(parts)} parts, such as {shown(parts[0])}, and no {WEIGHTS}")
    beside = [name for name in (file.name for file in files) if name.endswith(".safetensors")]
    there = f"; there is {shown(beside[0])}" if beside else ""
    return found("no-weights", f"there is no {WEIGHTS}, the only name that vLLM loads{there}")


def _header(stream: BinaryIO, size: int, findings: list[Finding]) -> Header | None:
    try:
        length = header_length(stream.read(PREFIX_BYTES), size)
        if length > MAX_HEADER_BYTES:
            text = f"{WEIGHTS} has a header of {length} bytes; at most {MAX_HEADER_BYTES} are read"
            findings.append(found("header-too-large", text))
            return None
        return parse_header(_exactly(stream, length), size)
    except HeaderError as error:
        text = str(error)
        code = "truncated" if "truncated" in text else "padded" if "bytes too many" in text else "header-invalid"
        findings.append(found(code, f"{WEIGHTS} {shown(text, 300)}"))
    return None


def _scans(stream: BinaryIO, header: Header) -> dict[str, Scan]:
    """Each tensor of a float type, read once from front to back, a piece of memory at a time."""
    start = PREFIX_BYTES + header.header_bytes
    found_scans: dict[str, Scan] = {}
    for tensor in header.tensors:
        if tensor.dtype in ELEMENT_BYTES and tensor.end > tensor.begin:
            stream.seek(start + tensor.begin)
            found_scans[tensor.name] = scan(_pieces(stream, tensor.end - tensor.begin), tensor.dtype)
    return found_scans


def _require_same(stream: BinaryIO, before: os.stat_result) -> None:
    """Raises Changed when somebody wrote to the file since ``before``: then what was seen is no file that ever was."""
    after = os.fstat(stream.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Changed


def _pieces(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        piece = _exactly(stream, min(size, PIECE_BYTES))
        size -= len(piece)
        yield piece


def _exactly(stream: BinaryIO, size: int) -> bytes:
    """``size`` bytes, in as many reads as it takes. Raises Changed when the file ends before."""
    pieces = []
    while size:
        piece = stream.read(size)
        if not piece:
            raise Changed
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
