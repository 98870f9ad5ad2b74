"""What a rollback asks of the inventory, what it may not carry along, and the module that chooses the entry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.plan import Action, as_dicts
from ansible.module_utils.voices.rollback import others, pinned, rollback_errors, rollback_seat

from tests.support.adapter_dirs import set_digest, tree, write_adapter
from tests.support.run_module import run_module


def seat(port: int, *voices: str, **more: Any) -> dict[str, Any]:
    return {"carrier": "/c", "port": port, "voices": {name: {"source": name} for name in voices}, **more}


SEATS = {
    "t1": seat(1, "lv-a", "lv-both"),
    "t2": seat(2, "lv-both"),
    "t3": seat(3, "lv-c", state="stopped"),
    "t4": {**seat(4), "voices": {"lv-r": {"state": "retired"}, "lv-g": {"state": "absent"}}},
}


def errors(voice: str, name: str = "") -> str:
    return "; ".join(rollback_errors(SEATS, voice=voice, seat=name, runtime="supervisor"))


def test_the_seat_that_is_meant() -> None:
    for voice, name, meant in (("lv-a", "", "t1"), ("lv-both", "t2", "t2"), ("lv-both", "", ""), ("lv-x", "", "")):
        assert rollback_seat(SEATS, voice=voice, seat=name, runtime="supervisor") == meant
    assert errors("lv-a") == errors("lv-a", "t1") == errors("lv-both", "t2") == ""


@pytest.mark.parametrize(
    ("voice", "name", "said"),
    [
        ("", "", "outside the naming rule"),
        ("babya", "", "name it lv-a"),
        ("lv-both", "", "in the inventory of the seats t1, t2: choose one with -e seat=NAME"),
        ("lv-a", "t9", "seat 't9' is none of this host's: t1, t2, t3, t4"),
        (
            "lv-x",
            "",
            "lv-x does not stand in the inventory of any seat of this host. If it is served all the same it is on",
        ),
        ("lv-a", "t2", "lv-a does not stand in the inventory of seat t2"),
        ("lv-r", "", "lv-r is retired on seat t4"),
        ("lv-g", "t4", "lv-g is absent on seat t4"),
        ("lv-c", "", "seat t3 is stopped"),
    ],
)
def test_what_cannot_be_rolled_back_is_told_why(voice: str, name: str, said: str) -> None:
    assert said in errors(voice, name)


def test_a_bad_inventory_is_refused_as_everywhere() -> None:
    found = rollback_errors({"t1": {}}, voice="lv-a", seat="", runtime="supervisor")
    assert any("carrier" in error for error in found)


def test_one_pin_is_set_and_the_given_seats_stay() -> None:
    before = {"t1": seat(1, "lv-a", "lv-b"), "t2": seat(2)}
    after = pinned(before, seat="t1", voice="lv-a", digest="d")
    assert "digest" not in before["t1"]["voices"]["lv-a"]
    assert after["t1"]["voices"].pop("lv-a") == {"source": "lv-a", "digest": "d"}
    assert before["t1"]["voices"].pop("lv-a")
    assert after == before


def test_what_is_done_to_anything_else_is_listed() -> None:
    own = [
        Action("replace", "lv-a", before="/1", after="/2"),
        Action("prune", "lv-a@" + "0" * 12, why="4 kept, limit 3"),
    ]
    other = [Action("load", "lv-ab", after="/3"), Action("write", "engine.yaml", why="dtype", before=1, after=2)]
    assert others(as_dicts([*own, *other]), "lv-a") == [
        "load lv-ab: (none) -> /3",
        "write engine.yaml: dtype 1 -> 2",
    ]


# --- adapter_history --------------------------------------------------------------------------------------------------


class Host:
    """A store with a past of seat t1, and its engine.yaml."""

    def __init__(self, root: Path) -> None:
        self.root, self.store, self.engine_file = root, root / "store", root / "engine.yaml"

    def serve(self, seed: str) -> str:
        source = write_adapter(self.root / f"s-{seed}", seed)
        store = {"store": str(self.store), "seat": "t1"}
        path = run_module("adapter_store", {**store, "voices": {"lv-x": {"source": str(source)}}})["entries"]["lv-x"][
            "path"
        ]
        run_module("adapter_store", {**store, "serves": [path]})
        self.engine_file.write_text(f"lora-modules: [lv-x={path}]\n")
        return str(path)

    def choose(self, **more: Any) -> dict[str, Any]:
        args = {"store": str(self.store), "seat": "t1", "voice": "lv-x", "engine_file": str(self.engine_file)}
        before = tree(self.root)
        found = run_module("adapter_history", {**args, **more})
        assert tree(self.root) == before
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_entry_before_is_chosen_and_verified(host: Host) -> None:
    one, two = host.serve("1"), host.serve("2")
    found = host.choose()
    assert (found["changed"], found["actions"]) == (False, [])
    assert found["path"] == one
    assert found["digest"] == set_digest(Path(one))
    assert found["present"] == os.path.basename(two)
    assert found["stored"] == sorted([os.path.basename(one), os.path.basename(two)])
    assert host.choose(to=set_digest(Path(two))[:8])["path"] == two
    assert "correct it after its 12th digit" in host.choose(to=set_digest(Path(one))[:12] + "0" * 52)["msg"]
    host.serve("1")
    assert "is back already" in host.choose()["why"]


def test_a_damaged_entry_is_refused(host: Host) -> None:
    one = host.serve("1")
    host.serve("2")
    weights = Path(one, "adapter_model.safetensors")
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    for more in ({}, {"to": os.path.basename(one).partition("@")[2]}):
        assert f"{os.path.basename(one)} is damaged: it holds {set_digest(Path(one))}" in host.choose(**more)["msg"]


def test_a_store_without_notes_names_what_there_is(host: Host) -> None:
    one = host.serve("1")
    host.serve("2")
    (host.store / ".uses.json").unlink()
    assert "is known to have been in use on seat t1 before" in host.choose()["msg"]
    assert os.path.basename(one) in host.choose()["msg"]
    assert host.choose(to=os.path.basename(one).partition("@")[2])["path"] == one


def test_a_seat_without_the_voice_or_without_an_engine_file_is_told_to_run_site(host: Host) -> None:
    host.serve("1")
    host.engine_file.write_text("port: 1\n")
    assert (
        "is not in the engine.yaml of seat t1, so there is nothing to go back from: run site.yml"
        in host.choose()["msg"]
    )
    host.engine_file.unlink()
    assert "run site.yml" in host.choose()["msg"]
    (host.store / ".uses.json").write_text("{")
    assert "cannot be understood" in host.choose()["msg"]
