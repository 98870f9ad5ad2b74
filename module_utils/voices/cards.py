"""A card (GPU) as it is: its memory and who holds it. Data only; ``nvml_client`` reads it. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CardProcess:
    """A process that holds memory of the card.

    ``used_bytes`` is None where NVML may not say; ``command`` and ``container`` are empty where they cannot be read.
    ``seat`` is the voices seat that it belongs to, and ``own`` says that this is the seat that is being judged.
    """

    pid: int
    used_bytes: int | None
    command: str = ""
    container: str = ""
    own: bool = False
    seat: str = ""

    @property
    def readable(self) -> bool:
        """Whether anything says what it is."""
        return bool(self.command or self.container)


@dataclass(frozen=True)
class Card:
    """One card. With a ``problem`` (why nothing can be said of it) every size is 0.

    ``reserved_bytes`` is the driver's own, which no program gets (NVML v2). ``used_bytes`` and ``free_bytes`` are NVML
    v2's: without the reserve. ``index`` is NVML's, which is nvidia-smi's and Docker's, and not always CUDA's.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int = 0
    reserved_bytes: int = 0
    used_bytes: int = 0
    free_bytes: int = 0
    processes: tuple[CardProcess, ...] = field(default=())
    problem: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def cuda_total_bytes(self) -> int:
        """What CUDA calls the card's total, of which an engine's share is a part: to the byte, measured on an H200."""
        return self.total_bytes - self.reserved_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a module's result."""
        plain = asdict(self)
        plain["processes"] = [asdict(process) for process in self.processes]
        plain["notes"] = list(self.notes)
        plain["cuda_total_bytes"] = self.cuda_total_bytes
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Card:
        """The card in a module's result."""
        processes = tuple(
            CardProcess(**{key: one[key] for key in ("pid", "used_bytes", "command", "container", "own", "seat")})
            for one in data["processes"]
        )
        keys = ("index", "uuid", "name", "total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "problem")
        return cls(**{key: data[key] for key in keys}, processes=processes, notes=tuple(data.get("notes", ())))
