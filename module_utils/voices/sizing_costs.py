"""Several voices as adapters on one carrier, or merged into a copy of it each: what either costs. Pure."""

from __future__ import annotations


def adapters_cost_bytes(carrier_bytes: int, adapter_bytes: int, voices: int) -> int:
    """One carrier and an adapter for each voice, in the bytes that the caller counts: of directories or of tensors."""
    return carrier_bytes + voices * adapter_bytes


def merged_cost_bytes(carrier_bytes: int, voices: int) -> int:
    """A carrier for each voice."""
    return voices * carrier_bytes
