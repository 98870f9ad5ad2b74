"""Reads a host's cards through NVML. The only place that touches pynvml; it changes nothing.

What NVML cannot say becomes a card's ``problem`` or a note, never a traceback: a part without its own memory, a card
split by MIG, one that fell off the bus, a driver that is not there, rights that are missing, numbers that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pynvml

from .cards import Card, CardProcess

#: A list of processes may grow between NVML's count and its answer; pynvml then gives up.
_TRIES = 4
#: No host has as many cards, and no card as much memory.
_MOST_CARDS = 256
_MOST_BYTES = 2**50

_OLD_DRIVER_NOTE = (
    "this driver does not tell its own reserve apart (drivers before R510): it counts as used, and CUDA's total is "
    "smaller than the total shown"
)
#: What an error means and what to do, where NVML's own words do not say.
_SAID = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded; nvidia-smi on the host says why",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver's library and the loaded kernel module are of two versions, as after an upgrade; restart the host"
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: "it fell off the bus; the kernel's log says why (Xid), and the host needs a restart",
    pynvml.NVML_ERROR_RESET_REQUIRED: "it has to be reset before it serves anyone",
}


def read_cards() -> tuple[tuple[Card, ...], str]:
    """The host's cards by NVML's index, and why there are none ("" when NVML answers)."""
    with _nvml() as problem:
        if problem:
            return (), problem
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            return (), f"NVML cannot count the cards: {_said(error)}"
        if count > _MOST_CARDS:
            return (), f"NVML counts {count:,} cards, which cannot be"
        return tuple(_card(index) for index in range(count)), ""


@contextmanager
def _nvml() -> Iterator[str]:
    """NVML between its start and its end; yields why it does not start."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            yield "no NVIDIA driver here (libnvidia-ml.so.1 is not found)"
        else:
            yield f"NVML does not start: {_said(error)}"
        return
    try:
        yield ""
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _card(index: int) -> Card:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Card(index, "", "", problem=f"card {index} cannot be opened: {_said(error)}")
    uuid, name = _text(pynvml.nvmlDeviceGetUUID, handle), _text(pynvml.nvmlDeviceGetName, handle)
    if _is_split(handle):
        why = f"card {index} is split by MIG, and a part of a card is not sized here"
        return Card(index, uuid, name, problem=f"{why}; nvidia-smi -i {index} -mig 0 joins it again")
    try:
        memory, note = _memory(handle)
    except pynvml.NVMLError as error:
        return Card(index, uuid, name, problem=_memory_problem(index, error))
    total, reserved, used, free = memory
    # Of numbers that agree only roughly the least free memory counts; those that do not agree at all say nothing.
    free = min(free, total - reserved - used)
    if not 0 < total <= _MOST_BYTES or free < 0:
        why = f"NVML's numbers of card {index} contradict each other: total, reserved, used, free = {memory} bytes"
        return Card(index, uuid, name, problem=why)
    processes, unlisted = _processes(handle)
    notes = tuple(one for one in (note, unlisted) if one)
    return Card(index, uuid, name, total, reserved, used, free, processes, notes=notes)


def _is_split(handle: Any) -> bool:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # a card that knows no MIG
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _memory(handle: Any) -> tuple[tuple[int, int, int, int], str]:
    """(total, reserved, used, free) in bytes, and a note. Raises NVMLError."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return (info.total, info.reserved, info.used, info.free), ""
    except pynvml.NVMLError:
        # Whatever else is wrong with the card, the first form fails too, and says it.
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return (info.total, 0, info.used, info.free), _OLD_DRIVER_NOTE


def _memory_problem(index: int, error: pynvml.NVMLError) -> str:
    if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return f"card {index} has no memory of its own that NVML tells of (unified memory)"
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return f"NVML may not tell this user of the memory of card {index}: run it as root"
    return f"the memory of card {index} cannot be read: {_said(error)}"


def _processes(handle: Any) -> tuple[tuple[CardProcess, ...], str]:
    """Every process that holds memory, by pid, and a note when the list is not whole."""
    found: dict[int, int | None] = {}
    note = ""
    for kind in ("Compute", "Graphics", "MPSCompute"):
        try:
            listed = _listed(getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3"), handle)
        except pynvml.NVMLError as error:
            # Cards for computing know no graphics, and MPS is rare: only the first list has to be there.
            note = f"its processes cannot be listed: {_said(error)}" if kind == "Compute" else note
            continue
        for one in listed:
            used = None if one.usedGpuMemory is None else int(one.usedGpuMemory)
            known = found.get(one.pid)
            found[one.pid] = used if known is None else max(known, used or 0)
    return tuple(CardProcess(pid, found[pid]) for pid in sorted(found)), note


def _listed(read: Callable[[Any], list[Any]], handle: Any) -> list[Any]:
    for _try in range(_TRIES - 1):
        try:
            return read(handle)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                raise
    return read(handle)


def _said(error: pynvml.NVMLError) -> str:
    """An error as a sentence: NVML's words, and what to do where that is known."""
    meaning = _SAID.get(error.value)
    return f"{error} ({meaning})" if meaning else str(error)


def _text(read: Callable[[Any], str], handle: Any) -> str:
    """A name as it may be printed, "" when it cannot be read."""
    try:
        text = read(handle)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:96]
