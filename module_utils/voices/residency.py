"""What a seat holds of its card, against what was predicted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .headroom_text import mib

MIB = 1024 * 1024
#: Beyond this the prediction is worth a look: the sizing's own errors were at most a third of it.
TOLERANCE_BYTES = 150 * MIB


@dataclass(frozen=True)
class Residency:
    """Bytes. A seat holds ``predicted_bytes`` after its start and up to ``loaded_bytes`` once it had long prompts;
    ``difference_bytes`` is how far ``measured_bytes`` is outside the two, 0 between them."""

    measured_bytes: int
    predicted_bytes: int
    loaded_bytes: int
    difference_bytes: int
    warning: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with the sizes in MiB for people."""
        plain = asdict(self)
        plain.pop("warning")
        return plain | {f"{key.removesuffix('_bytes')}_mib": round(value / MIB) for key, value in plain.items()}


def measured_bytes(seat: str, row: Mapping[str, Any], looked: Mapping[str, Any]) -> int | None:
    """What the seat's processes hold where it is placed; None when it has none there, or NVML does not say."""
    places = [looked["memory"]] if row["device"] == "cpu" else looked["cards"]
    sizes = [
        process["used_bytes"]
        for card in places
        if row["device"] == "cpu" or card["index"] == row["card"]
        for process in card["processes"]
        if process["seat"] == seat
    ]
    return None if not sizes or None in sizes else sum(sizes)


def compare(measured: int, row: Mapping[str, Any]) -> Residency | None:
    """The comparison, None for a seat that could not be sized. ``row`` is the seat's row of the plan."""
    predicted = row["resident_bytes"]
    if predicted is None:
        return None
    loaded = max(predicted, row["size"].get("loaded_bytes") or 0)
    outside = min(measured - predicted, 0) or max(measured - loaded, 0)
    # Host memory is given page by page: below the estimate is where a CPU seat belongs.
    counts = outside > TOLERANCE_BYTES or (outside < -TOLERANCE_BYTES and row["device"] != "cpu")
    warning = (
        f"seat {row['seat']} holds {mib(measured)} MiB of card {row['card']}, and {mib(predicted)} were predicted "
        f"(up to {mib(loaded)} with traffic): {mib(abs(outside))} MiB {'more' if outside > 0 else 'less'}"
    )
    return Residency(measured, predicted, loaded, outside, warning if counts else "")
