"""site.yml and a card that others live on: what does not fit is refused before anything is changed, what runs stays up.

The card is a scenario of the stand-in for the NVIDIA driver's library; the seat's engine is a real one, on the CPU, and
the scenario says how much of the card it holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import observe
from tests.support.local_seat import LocalSeat
from tests.support.nvml import nvml_double
from tests.support.run_module import run_module

MIB = 1024 * 1024
TOTAL_MIB = 97_887


class CardSeat(LocalSeat):
    """A seat that its inventory puts on card 0."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root)
        self.scenario = root / "card.json"
        # The engine itself must not see a card: it is the CPU build.
        self.options = {"gpu": "0", "gpu_memory_utilization": 0.02, "environment": {"LD_LIBRARY_PATH": ""}}
        self.add_voice("lv-austen")
        for key, value in nvml_double.environment(nvml_double.build(), self.scenario).items():
            monkeypatch.setitem(os.environ, key, value)

    def card(self, others_mib: int, own_mib: int = 0) -> None:
        """What the card holds from now on; ``own_mib`` are the engine's, as soon as it runs."""
        own = {"running": str(self.engine_file), "used_bytes": own_mib * MIB}
        others = {"pid": os.getpid(), "used_bytes": others_mib * MIB}  # one that can be read, and is no tenant
        card = {
            "uuid": "GPU-0c5d2ab1-1111-2222-3333-444455550000",
            "name": "NVIDIA RTX PRO 6000 Blackwell",
            "total_bytes": TOTAL_MIB * MIB,
            "reserved_bytes": 638 * MIB,
            "used_bytes": others_mib * MIB,
            "processes": [others, *([own] if own_mib else [])],
        }
        nvml_double.write(self.scenario, {"driver": "580.0", "cards": [card]})


@pytest.fixture(scope="module")
def seat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CardSeat]:
    """Not up yet; gone at the end."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = CardSeat(tmp_path_factory.mktemp("card"), monkeypatch)
        yield made
        made.card(0)
        gone = made.run(voices_seat_state="absent")
        assert gone.rc == 0, gone.output


def made_by(seat: CardSeat) -> set[str]:
    """What lies below the seat's root, without the leases."""
    return {path.name for path in seat.made.iterdir() if path.name != "leases"} if seat.made.exists() else set()


@pytest.mark.parametrize("check", [True, False])
def test_what_does_not_fit_is_refused_before_anything_is_made(seat: CardSeat, check: bool) -> None:
    seat.card(96_000)
    refused = seat.run(check=check)
    assert refused.rc != 0
    assert "Seat t1 does not fit on card 0 now: its engine asks for 1,945 MiB and would find 780 free" in refused.output
    assert "1,165 MiB are missing" in refused.output and "Nothing was changed" in refused.output
    assert made_by(seat) == set()


def test_a_held_card_is_refused_by_the_name_of_its_hold(seat: CardSeat) -> None:
    seat.card(0)
    seat.host_vars = {"voices_seat_cards": {"0": {"hold": {"name": "flash-next", "needs_mib": 95_232}}}}
    refused = seat.run()
    assert refused.rc != 0 and "it is held for flash-next" in refused.output
    assert made_by(seat) == set()
    seat.host_vars = {}


def test_a_tenant_that_is_away_is_not_squeezed_when_it_comes_back(seat: CardSeat) -> None:
    seat.card(40_000)
    seat.host_vars = {"voices_seat_cards": {"0": {"tenants": {"gen": {"peak_mib": 57_000, "container": "gen"}}}}}
    refused = seat.run(check=True)
    assert refused.rc != 0 and "at their peaks" in refused.output
    seat.host_vars = {}


def test_another_seat_that_starts_on_the_card_has_it_to_itself(seat: CardSeat) -> None:
    seat.card(0)
    (seat.made / "leases").mkdir(parents=True, exist_ok=True)
    lease: dict[str, Any] = {"path": str(seat.made / "leases/card-0.json"), "anchor": "none"}
    held = run_module("seat_lease", {**lease, "holder": "ann@desk", "ttl_s": 600})
    refused = seat.run(voices_seat_card_wait_s=1)
    assert refused.rc != 0 and "ann@desk" in refused.output
    assert observe.processes(seat.directory) == {}
    assert not run_module("seat_lease", {**lease, "state": "free", "token": held["token"]}).get("failed")


def test_a_seat_that_runs_is_left_alone_on_a_full_card_and_not_started_again(seat: CardSeat) -> None:
    seat.card(40_000, own_mib=9_000)
    up = seat.run()
    assert up.rc == 0, up.output
    # The scenario says 9,000; a CPU engine holds nothing of a card. What matters is that the difference is told.
    assert "Seat t1 holds 9000 MiB" in up.output
    assert "seat t1 holds 9,000 MiB of card 0, and" in up.output
    before = seat.engine_pids()

    seat.card(95_900, own_mib=1_200)  # its neighbours took what it would need again
    again = seat.run()
    assert (again.rc, again.changed) == (0, []), again.output
    assert "Seat t1 runs and is left alone. Seat t1 does not fit" in again.output
    seat.add_voice("lv-bronte")
    more = seat.run()
    assert more.rc == 0, more.output
    assert set(seat.live()) == {"lv-austen", "lv-bronte"}

    seat.options["max_model_len"] = 768
    seat.options["gpu_memory_utilization"] = 0.2
    file = seat.engine_file.read_bytes()
    for check in (True, False):
        refused = seat.run(check=check)
        assert refused.rc != 0 and "Nothing was changed" in refused.output, refused.output
        assert "and 1,200 of its own" in refused.output
    assert seat.engine_file.read_bytes() == file
    assert seat.engine_pids() == before
