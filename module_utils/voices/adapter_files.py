"""What an adapter directory holds: which files count, the rules for its configuration, its digest, and the reader.

The top half is pure; ``read_adapter`` and what it calls are the only part that opens files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .plan import VoicesError
from .safetensors_header import PREFIX_BYTES, header_length, parse_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"  # the name vLLM loads
BUFFER_BYTES = 1 << 20
MAX_CONFIG_BYTES = 16 << 20
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# What a trainer leaves beside an adapter to go on training. It is no part of a voice: it is neither read nor copied.
_TRAINING_FILE = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state(_\d+)?)\.(bin|pt|pth)")
_TRAINING_DIRECTORY = re.compile(r"checkpoint-\d+")
_KINDS = (
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@dataclass(frozen=True)
class File:
    """One file of an adapter: its name below the directory (with ``/``), where its bytes really lie, its size."""

    name: str
    path: str
    bytes: int

    @property
    def counted(self) -> bool:
        """Whether the digest covers it."""
        return self.name == CONFIG or self.name.endswith(".safetensors")


@dataclass(frozen=True)
class Adapter:
    """A usable adapter. ``rank`` is the largest of r and rank_pattern, ``bytes`` are those that the digest covers."""

    directory: str
    digest: str
    rank: int
    bytes: int
    files: tuple[File, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, those that ride along too."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Broken:
    """Why a directory is no usable adapter, one sentence without a subject for each reason."""

    problems: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.problems)


def left_out(name: str, *, directory: bool) -> bool:
    """Whether a file or directory of this name is no part of a voice: hidden, or state of a training run."""
    training = _TRAINING_DIRECTORY if directory else _TRAINING_FILE
    return name.startswith(".") or training.fullmatch(name) is not None


def is_pickle(name: str) -> bool:
    """Whether a file of this name holds pickled weights, which run code when they are loaded."""
    return name.lower().endswith(_PICKLES)


def config_rank(blob: bytes) -> int:
    """The largest rank that an ``adapter_config.json`` asks for.

    Raises VoicesError (without the file's name) when it is no JSON object, or ``r`` or a rank of ``rank_pattern`` is
    no whole number above 0. vLLM's max_lora_rank must reach the largest, because rank_pattern replaces ``r``.
    """
    try:
        config = json.loads(blob.decode())
    except RecursionError:
        raise VoicesError("is no valid JSON: nested too deeply") from None
    except ValueError as error:
        raise VoicesError(f"is no valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise VoicesError(f"holds a {type(config).__name__}, not a JSON object")
    pattern = config.get("rank_pattern") or {}
    if not isinstance(pattern, dict):
        raise VoicesError(f"has rank_pattern {pattern!r:.80}, not a map of modules to ranks")
    ranks = {"r": config.get("r"), **{f"rank_pattern {key!r:.80}": rank for key, rank in pattern.items()}}
    largest = 0
    for name, rank in ranks.items():
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise VoicesError(f"has {name} = {rank!r:.80}; a LoRA rank is a whole number above 0")
        largest = max(largest, rank)
    return largest


def framed(files: Mapping[str, tuple[int, Iterable[bytes]]]) -> Iterator[bytes]:
    """The byte stream that the digest hashes: for each file, by name, the two lengths, the name, the content.

    The stream can be read back into the files in one way only, so two different sets never share it. ``files`` maps
    names to (size in bytes, content in pieces). Raises VoicesError when a content is not as long as its size.
    """
    for raw, name in sorted((os.fsencode(name), name) for name in files):
        size, pieces = files[name]
        yield struct.pack(">QQ", len(raw), size) + raw
        seen = 0
        for piece in pieces:
            seen += len(piece)
            yield piece
        if seen != size:
            raise VoicesError(f"{name} changed while it was read: {size} bytes before, {seen} read")


def digest_of(files: Mapping[str, tuple[int, Iterable[bytes]]]) -> str:
    """The sha256 (64 hex) of a set of files; see ``framed``."""
    total = hashlib.sha256()
    for piece in framed(files):
        total.update(piece)
    return total.hexdigest()


# --- the reader -------------------------------------------------------------------------------------------------------


def open_regular(path: str) -> int:
    """Open a regular file for reading and return its descriptor. Never follows a link at its end, never waits.

    The caller has looked at the path before; this holds also when somebody has put a fifo there since.
    Raises OSError, or VoicesError when it is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise VoicesError(f"{path} is no regular file any more")
    except BaseException:
        os.close(handle)
        raise
    return handle


def pieces_of(path: str) -> Iterator[bytes]:
    """A file's content in pieces of at most ``BUFFER_BYTES``."""
    with open(open_regular(path), "rb", buffering=0) as stream:
        while piece := stream.read(BUFFER_BYTES):
            yield piece


def list_files(directory: str) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The files that make up the adapter in ``directory``, by name, and what is wrong with the others.

    Links to regular files inside the directory count as these files; every other link is a problem. What ``left_out``
    names is not looked at. Raises OSError when a directory cannot be read.
    """
    root = os.path.realpath(directory)
    files: list[File] = []
    problems: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(root, folder)) as found:
            for item in sorted(found, key=lambda item: item.name):
                name = f"{folder}/{item.name}" if folder else item.name
                if left_out(item.name, directory=item.is_dir(follow_symlinks=False)):
                    continue
                if item.is_dir(follow_symlinks=False):
                    waiting.append(name)
                    continue
                problem, file = _look_at(root, name)
                if file is not None:
                    files.append(file)
                else:
                    problems.append(problem)
    return tuple(sorted(files, key=lambda file: os.fsencode(file.name))), tuple(sorted(problems))


def _look_at(root: str, name: str) -> tuple[str, File | None]:
    """Either what is wrong with the file ``name`` below ``root``, or the file."""
    path = os.path.join(root, name)
    if os.path.islink(path):
        target = os.readlink(path)
        path = os.path.realpath(path)
        if os.path.commonpath((root, path)) != root:
            return f"{name} is a link that leaves the directory (to {target}): put the file itself there", None
        if not os.path.isfile(path):
            return f"{name} is a link to {target}, which is no file: put the file itself there", None
    if is_pickle(name):
        return f"{name} is a pickle, which runs code when it is loaded: save the weights as {WEIGHTS}", None
    state = os.lstat(path)
    if not stat.S_ISREG(state.st_mode):
        kind = next((kind for test, kind in _KINDS if test(state.st_mode)), "something else")
        return f"{name} is {kind}, not a regular file: take it away", None
    return "", File(name=name, path=path, bytes=state.st_size)


def read_adapter(directory: str) -> Adapter | Broken:
    """Read and check the adapter in ``directory`` and hash it: every problem found, or the adapter.

    Nothing is hashed when there is a problem. Reads each weight file once, headers twice; memory stays at
    ``BUFFER_BYTES`` and one header.
    """
    if not os.path.lexists(directory):
        return Broken(("does not exist: correct the path, or bring its mount back",))
    if not os.path.isdir(directory):
        return Broken(("is no directory",))
    # Asked before the tree is walked: a wrong path may be somebody's whole home directory.
    if not os.path.lexists(os.path.join(directory, CONFIG)):
        return Broken((f"has no {CONFIG}: that is no PEFT adapter directory",))
    try:
        return _read(directory)
    except OSError as error:
        return Broken((f"cannot be read: {error.strerror} ({error.filename})",))
    except VoicesError as error:
        return Broken((str(error),))


def _read(directory: str) -> Adapter | Broken:
    files, found = list_files(directory)
    problems = list(found)
    rank = 0
    by_name = {file.name: file for file in files}
    if CONFIG in by_name:
        try:
            rank = config_rank(_config_bytes(by_name[CONFIG]))
        except VoicesError as error:
            problems.append(f"{CONFIG} {error}")
    if not any(file.name.endswith(".safetensors") for file in files):
        problems.append(f"holds no safetensors file: {WEIGHTS} is missing")
    elif WEIGHTS not in by_name:
        problems.append(f"has no {WEIGHTS}, the only name that vLLM loads")
    for file in files:
        if file.name.endswith(".safetensors"):
            try:
                _check_weights(file)
            except VoicesError as error:
                problems.append(f"{file.name} {error}")
    if problems:
        return Broken(tuple(problems))
    counted = {file.name: (file.bytes, pieces_of(file.path)) for file in files if file.counted}
    return Adapter(
        directory=directory,
        digest=digest_of(counted),
        rank=rank,
        bytes=sum(size for size, _ in counted.values()),
        files=files,
    )


def _config_bytes(file: File) -> bytes:
    if file.bytes > MAX_CONFIG_BYTES:
        raise VoicesError(f"has {file.bytes} bytes; at most {MAX_CONFIG_BYTES} are read")
    return b"".join(pieces_of(file.path))


def _check_weights(file: File) -> None:
    with open(open_regular(file.path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        length = header_length(stream.read(PREFIX_BYTES), size)
        header = parse_header(stream.read(length), size)
    if file.name == WEIGHTS and not header.tensors:
        raise VoicesError("holds no tensor: the voice would speak as the base")
