"""Instants as people and files read them: UTC, ISO 8601, ``Z``. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_utc(epoch_s: float) -> str:
    """Seconds since the epoch as ``2026-11-30T20:09:44.125Z``."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_of(text: str) -> float:
    """Seconds since the epoch of an ISO 8601 instant.

    An instant without an offset is taken as UTC, because Ansible's ``now(utc=true)`` gives one without.

    Raises:
        ValueError: ``text`` is no ISO 8601 instant.
    """
    instant = datetime.fromisoformat(text.strip())
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
