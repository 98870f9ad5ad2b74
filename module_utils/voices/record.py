"""Deploy records: one dated JSON file for each run that changed something. Written once, never touched again."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .files import sync_directory
from .names import seat_name_error
from .plan import VoicesError
from .secret_check import Leak, find_leaks
from .times import epoch_of, iso_utc

SCHEMA = "voices/deploy-record/1"
DIRTY_SUFFIX = "-dirty"
MOST_IN_ONE_SECOND = 1000

#: What a file system without hard links answers to one.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class SecretError(VoicesError):
    """A record with what looks like a secret. ``leaks`` holds the values, for masking; the message does not."""

    def __init__(self, leaks: Sequence[Leak]) -> None:
        self.leaks = list(leaks)
        shown = ", ".join(leak.where for leak in self.leaks[:5])
        more = f" and {len(self.leaks) - 5} more" if len(self.leaks) > 5 else ""
        super().__init__(
            f"deploy record refused, nothing was written: what looks like a secret stands at {shown}{more}."
            " A record is readable by everybody: pass a digest (sha256:<12 hex>), or leave the value out"
        )


@dataclass(frozen=True)
class Run:
    """What a run did, as the play tells it. ``started`` in ISO 8601 or empty; ``durations`` in seconds, may nest.

    ``error`` is what a run that failed half-way said; ``actions`` are then those of the steps before it.
    """

    seat: str
    runtime: str
    actions: Sequence[Mapping[str, Any]]
    operator: str
    reasons: Sequence[Any] = ()
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    dirty: bool = False
    started: str = ""
    durations: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


def build_record(run: Run, finished_s: float) -> dict[str, Any]:
    """The record of a run that ended at ``finished_s`` (seconds since the epoch).

    Raises:
        VoicesError: a value outside the rules, named; SecretError: a value that looks secret.
    """
    wrong = seat_name_error(run.seat)
    if wrong:
        raise VoicesError(wrong)
    for index, action in enumerate(run.actions):
        if not all(isinstance(action.get(name), str) and action[name] for name in ("do", "what")):
            raise VoicesError(f"actions[{index}] has no do and what; pass the actions that a module returned")
    try:
        started = iso_utc(epoch_of(run.started)) if run.started else None
    except (ValueError, OverflowError, OSError) as error:
        raise VoicesError(f"started is {run.started!r}, no ISO 8601 instant such as 2026-11-30T20:09:44Z") from error
    commit = run.commit.removesuffix(DIRTY_SUFFIX)
    record = {
        "schema": SCHEMA,
        "seat": run.seat,
        "runtime": run.runtime,
        "operator": run.operator,
        "commit": None if commit in {"", "unknown"} else commit,
        "dirty": run.dirty or commit != run.commit,
        "started": started,
        "finished": iso_utc(finished_s),
        "outcome": "failed" if run.error else "ok",
        "error": run.error or None,
        "durations_s": _seconds(run.durations, "durations"),
        "actions": list(run.actions),
        "reasons": list(run.reasons),
        "before": dict(run.before),
        "after": dict(run.after),
    }
    leaks = list(find_leaks(record))
    if leaks:
        raise SecretError(leaks)
    return record


def _seconds(value: Any, where: str) -> Any:
    """Durations as finite numbers, whatever of them templates made into text."""
    if isinstance(value, Mapping):
        return {str(key): _seconds(inner, f"{where}.{key}") for key, inner in value.items()}
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise VoicesError(f"{where} is {value!r}; a duration is a number of seconds, 0 or more")
    return round(seconds, 3)


def as_text(record: Mapping[str, Any]) -> str:
    """The file's text: sorted keys, so that two records compare line by line; ASCII, whatever the reader's locale."""
    return json.dumps(record, indent=2, sort_keys=True, allow_nan=False) + "\n"


def file_name(seat: str, finished_s: float, count: int = 0) -> str:
    """``20261130T200944Z-tiny.json``; the second one of that second is ``20261130T200944Z.001-tiny.json``.

    Names sort by time: ``-`` comes before ``.``, and the count has a fixed width.
    """
    stamp = datetime.fromtimestamp(finished_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}{f'.{count:03d}' if count else ''}-{seat}.json"


class RecordDirectory:
    """Where a host keeps its deploy records. Records are added, never changed or removed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, seat: str, finished_s: float, text: str) -> Path:
        """Write a record, readable by everybody, and return its path. It is there whole or not at all.

        Raises:
            VoicesError: the directory cannot be made or written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(prefix=f".{seat}.", dir=self.path)
            try:
                with os.fdopen(handle, "w") as stream:
                    os.fchmod(stream.fileno(), 0o644)
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                path = self._publish(Path(draft), seat, finished_s)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
            sync_directory(self.path)
        except OSError as error:
            raise VoicesError(
                f"no deploy record could be written to {self.path}: {error.filename or ''} {error.strerror or error};"
                " what the run changed stays changed"
            ) from error
        return path

    def _publish(self, draft: Path, seat: str, finished_s: float) -> Path:
        """Give the draft the first free name. Of two runs that want one name, one gets it and the other the next."""
        for count in range(MOST_IN_ONE_SECOND):
            path = self.path / file_name(seat, finished_s, count)
            try:
                _link(draft, path)
            except FileExistsError:
                continue
            return path
        raise VoicesError(f"{self.path} already holds {MOST_IN_ONE_SECOND} records of seat {seat} for this second")


def _link(draft: Path, path: Path) -> None:
    """Make ``path`` the whole of ``draft``, exclusively: like O_EXCL, but a kill leaves no half-written file."""
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(draft.read_bytes())
            stream.flush()
            os.fsync(stream.fileno())
