"""Which entries serve since when, which may go, which one a rollback goes to; and the module that notes and prunes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.adapter_files import Adapter, Broken
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.store_desired import desired_from, voice_of
from ansible.module_utils.voices.store_notes import Notes, Use, as_text, came_in, from_text, held, served, without
from ansible.module_utils.voices.store_prune import Choice, History, choose, prune, verified
from hypothesis import given
from hypothesis import strategies as st

from tests.support.adapter_dirs import set_digest, tree, write_adapter
from tests.support.killed import killed_at
from tests.support.run_module import run_module

A, B, C, D = (f"lv-x@{digit * 12}" for digit in "abcd")
Y = "lv-y@" + "a" * 12


# --- notes ------------------------------------------------------------------------------------------------------------


def test_a_life_of_two_entries() -> None:
    notes = held(came_in(Notes(), {A}, 1), "t1", {A})
    assert notes.use(A, "t1") == Use()
    notes = served(notes, "t1", {A}, 2)
    assert notes.use(A, "t1") == Use(since=2)
    assert served(notes, "t1", {A}, 3) == notes
    notes = held(came_in(notes, {B}, 4), "t1", {B})
    assert notes.use(A, "t1") == Use(since=2)
    notes = served(notes, "t1", {B}, 5)
    assert (notes.use(A, "t1"), notes.use(B, "t1")) == (Use(2, 5, False), Use(5))
    notes = served(held(notes, "t1", {A}), "t1", {A}, 6)
    assert (notes.use(A, "t1"), notes.use(B, "t1")) == (Use(6), Use(5, 6, False))


def test_what_was_held_and_never_served_is_no_use() -> None:
    notes = served(held(Notes(), "t1", {A}), "t1", {A}, 1)
    assert served(held(notes, "t1", {B}), "t1", {A}, 2) == notes
    # An entry that served once, was held again and did not load keeps its time.
    notes = served(held(notes, "t1", {B}), "t1", {B}, 2)
    assert served(held(notes, "t1", {A}), "t1", {B}, 3) == notes


def test_seats_do_not_disturb_each_other() -> None:
    notes = served(served(Notes(), "t1", {A}, 1), "t2", {A, Y}, 2)
    notes = served(notes, "t1", {B}, 3)
    assert notes.use(A, "t2") == Use(2)
    assert notes.use(A, "t1") == Use(1, 3, False)


def test_a_clock_that_was_set_back_does_not_turn_the_order_round() -> None:
    notes = served(served(Notes(), "t1", {A}, 100), "t1", {B}, 50)
    use = notes.use(B, "t1")
    assert use is not None
    assert use.since is not None
    assert use.since > 100


times = st.one_of(st.none(), st.floats(0, 2e9))
entries = st.sampled_from([A, B, C, Y])
noted = st.builds(
    Notes,
    st.dictionaries(entries, st.floats(0, 2e9)),
    st.dictionaries(
        entries,
        st.dictionaries(st.sampled_from(["t1", "t2"]), st.builds(Use, times, times, st.booleans()), min_size=1),
    ),
)


@given(noted)
def test_notes_come_back_from_their_text(notes: Notes) -> None:
    assert from_text(as_text(notes), "/f") == notes


@given(noted, st.sets(entries), st.floats(0, 2e9))
def test_after_a_seat_was_seen_it_holds_what_it_serves(notes: Notes, live: set[str], now: float) -> None:
    after = served(notes, "t1", live, now)
    assert {name for name in after.uses if (use := after.use(name, "t1")) and use.held} == live
    assert served(after, "t1", live, now + 1) == after
    assert {n: after.use(n, "t2") for n in (A, B, C, Y)} == {n: notes.use(n, "t2") for n in (A, B, C, Y)}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2, "entries": {}}', '{"format": 1, "entries": {"a": 1}}', "[" * 100_000]
    + [
        json.dumps({"format": 1, "entries": {"a": {"stored": None, "seats": {"t1": use}}}})
        for use in ({}, {"since": "x", "until": None, "held": True}, {"since": 1, "until": None, "held": 1})
    ],
)
def test_what_are_no_notes_is_named(text: str) -> None:
    with pytest.raises(VoicesError, match=r"^/f cannot be understood .*: remove it; only the order"):
        from_text(text, "/f")


def test_entries_that_are_gone_leave_the_notes() -> None:
    notes = served(came_in(Notes(), {A, B}, 1), "t1", {A, B}, 2)
    assert without(notes, {A}) == Notes({B: notes.stored[B]}, {B: notes.uses[B]})


# --- pruning ----------------------------------------------------------------------------------------------------------

AGES = {A: 1.0, B: 2.0, C: 3.0, D: 4.0, Y: 0.5}


def pruned(keep: int, in_use: set[str], voices: tuple[str, ...] = ("lv-x", "lv-y")) -> list[str]:
    return [action.line() for action in prune(AGES, voices, keep, in_use, AGES.__getitem__)]


def test_the_oldest_go_and_the_plan_says_why() -> None:
    assert pruned(3, set()) == [f"prune {A}: 4 kept, limit 3"]
    assert pruned(2, set()) == [f"prune {A}: 4 kept, limit 2", f"prune {B}: 3 kept, limit 2"]
    assert pruned(4, set()) == []
    assert pruned(3, set(), ("lv-y",)) == []


def test_what_is_in_use_stays_and_counts() -> None:
    assert pruned(3, {A}) == [f"prune {B}: 4 kept, limit 3"]
    assert pruned(1, {A, B, C}) == [f"prune {D}: 4 kept, limit 1"]
    assert pruned(1, {A, B, C, D, Y}) == []


@given(
    st.dictionaries(
        st.builds(lambda v, d: f"lv-{v}@{d * 12}", st.sampled_from("xyz"), st.sampled_from("0123456789")),
        st.floats(0, 9),
    ),
    st.integers(1, 5),
    st.data(),
)
def test_pruning_keeps_the_newest_and_never_what_is_in_use(ages: dict[str, float], keep: int, data: Any) -> None:
    in_use = data.draw(st.sets(st.sampled_from(sorted(ages)))) if ages else set()
    gone = {action.what for action in prune(ages, ("lv-x", "lv-y"), keep, in_use, ages.__getitem__)}
    assert not gone & in_use
    for voice in ("lv-x", "lv-y", "lv-z"):
        own = {name for name in ages if voice_of(name) == voice}
        left = own - gone
        if voice == "lv-z":
            assert left == own
            continue
        assert len(left) == max(min(len(own), keep), len(own & in_use))
        if gone & own:
            assert max(ages[name] for name in gone & own) <= min((ages[n] for n in left - in_use), default=9)
    left = {name: age for name, age in ages.items() if name not in gone}
    assert prune(left, ("lv-x", "lv-y"), keep, in_use, ages.__getitem__) == []


# --- where a rollback goes --------------------------------------------------------------------------------------------


def history(present: str, notes: Notes, pin: str = "", seat: str = "t1", there: tuple[str, ...] = (A, B, C)) -> History:
    return History("lv-x", seat, there, present, notes, pin)


def life(*order: str) -> Notes:
    """The notes of a seat that served these entries one after the other, each stored when it first served."""
    notes = Notes()
    for number, entry in enumerate(order):
        if entry not in notes.stored:
            notes = came_in(notes, {entry}, 10 * number)
        notes = served(notes, "t1", {entry}, 10 * number + 1)
    return notes


def test_back_is_to_what_was_in_use_before() -> None:
    assert choose(history(C, life(A, B, C)), "") == Choice(B, f"in use before {C}")
    # B came in and never served: it did not load.
    assert choose(history(C, came_in(life(A, C), {B}, 5)), "").entry == A
    # A was in use again between B and C.
    assert choose(history(C, life(A, B, A, C)), "").entry == A


def test_a_second_rollback_goes_nowhere_and_says_how_to_go_further() -> None:
    found = choose(history(B, life(A, B, C, B), pin="b" * 12), "")
    assert found.entry == B
    assert f"back already, from {C}; to go further, name an entry" in found.why


def test_a_pin_that_is_not_live_yet_is_what_was_asked_for() -> None:
    # Killed between the pin and the load, or a pin that a person has set by hand.
    assert choose(history(C, life(A, B, C), pin="a" * 12), "").entry == A
    with pytest.raises(VoicesError, match="is not in the store"):
        choose(history(C, life(A, B, C), pin="e" * 12), "")


def test_a_pinned_release_goes_back_too() -> None:
    assert choose(history(C, life(A, B, C), pin="c" * 64), "").entry == B


def test_without_a_past_the_candidates_are_named() -> None:
    with pytest.raises(VoicesError) as caught:
        choose(history(C, life(C)), "")
    assert f"before {C}: name one with -e to=DIGEST (the store has {A}, {B}, {C} of lv-x)" in str(caught.value)
    with pytest.raises(VoicesError, match="known to have been in use on seat t2"):
        choose(history(C, life(A, B, C), seat="t2"), "")


def test_an_entry_is_named_by_eight_digits_or_more() -> None:
    for to in ("a" * 8, "a" * 12, "a" * 64):
        assert choose(history(C, Notes()), to) == Choice(A, "named")
    two = ("lv-x@" + "a" * 11 + "1", "lv-x@" + "a" * 11 + "2")
    with pytest.raises(VoicesError, match=r"is ambiguous: it begins lv-x@a+1, lv-x@a+2"):
        choose(history(C, Notes(), there=two), "a" * 8)
    for to in ("a" * 7, "a" * 65, "A" * 8, "lv-x@aaaaaaaa"):
        with pytest.raises(VoicesError, match="8 to 64 lower-case hex digits"):
            choose(history(C, Notes()), to)
    with pytest.raises(VoicesError, match=r"with the digest eeeeeeee is not in the store \(the store has"):
        choose(history(C, Notes()), "e" * 8)


def test_nothing_goes_back_to_a_damaged_entry() -> None:
    whole = Adapter("/a", "a" * 64, 8, 1, ())
    assert verified(Choice(A, ""), whole, "a" * 20) == whole
    for found, said in [
        (None, "is not there"),
        (Broken(("is torn",)), "it is torn"),
        (Adapter("/a", "b" * 64, 8, 1, ()), "it holds bbbb"),
    ]:
        with pytest.raises(VoicesError, match=f"{A} is damaged: .*{said}.* Nothing goes back to it"):
            verified(Choice(A, ""), found, "")
    with pytest.raises(VoicesError, match="correct it after its 12th digit"):
        verified(Choice(A, ""), whole, "a" * 12 + "b")


# --- the module -------------------------------------------------------------------------------------------------------


class Host:
    """A store, a source of lv-x, and the two calls of a run: before and after loading."""

    def __init__(self, root: Path) -> None:
        self.root, self.store, self.seats = root, root / "store", root / "seats"

    def run(self, check: bool = False, **options: Any) -> dict[str, Any]:
        return run_module("adapter_store", {"store": str(self.store), **options}, check=check)

    def put(self, seed: str, seat: str = "t1", voice: str = "lv-x", **more: Any) -> str:
        """The first call: a source of this ``seed`` into the store. Returns the entry's path."""
        source = write_adapter(self.root / f"source-{seed}", seed)
        done = self.run(voices={voice: {"source": str(source)}}, seat=seat, **more)
        assert not done.get("failed"), done
        return str(done["entries"][voice]["path"])

    def see(self, *paths: str, seat: str = "t1", check: bool = False, keep: int = 2, **more: Any) -> dict[str, Any]:
        """The second call: the seat serves ``paths``."""
        (self.seats / seat).mkdir(parents=True, exist_ok=True)
        options = {"serves": paths, "in_use": paths, "prune": ["lv-x"], "keep": keep, "seats_dir": str(self.seats)}
        done = self.run(check, seat=seat, **options, **more)
        assert not done.get("failed"), done
        return done

    def serve(self, seed: str, **more: Any) -> str:
        path = self.put(seed)
        self.see(path, **more)
        return path

    def engine_yaml(self, seat: str, text: str) -> None:
        path = self.seats / seat / "engine/engine.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def there(self) -> set[str]:
        return {name for name in os.listdir(self.store) if "@" in name}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def base(path: str) -> str:
    return os.path.basename(path)


def acts(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(action["do"], action["what"], action["why"]) for action in result["actions"]]


def test_the_oldest_use_goes_and_check_says_so(host: Host) -> None:
    one, two = host.serve("1"), host.serve("2")
    host.see(one)  # back again: two is now the older use
    three = host.put("3")
    before = tree(host.store)
    planned = host.see(three, check=True)
    assert tree(host.store) == before
    done = host.see(three)
    assert acts(done) == acts(planned) == [("prune", base(two), "3 kept, limit 2")]
    assert done["diff"] == [{"prepared": f"prune {base(two)}: 3 kept, limit 2\n"}]
    assert host.there() == {base(one), base(three)}
    after = tree(host.store)
    assert host.see(three)["changed"] is False
    assert tree(host.store) == after


def test_check_of_a_whole_run_foretells_the_pruning(host: Host) -> None:
    host.serve("1")
    host.serve("2")
    source = write_adapter(host.root / "source-3", "3")
    options = {"voices": {"lv-x": {"source": str(source)}}, "seat": "t1"}
    before = tree(host.store)
    foretold = host.run(check=True, **options)
    path = foretold["entries"]["lv-x"]["path"]
    planned = host.see(path, check=True)
    assert tree(host.store) == before
    assert host.run(**options)["actions"] == foretold["actions"]
    assert host.see(path)["actions"] == planned["actions"] != []


def test_a_trial_of_another_seat_stays(host: Host) -> None:
    trial = host.put("1", seat="t2")  # voice_try stores and loads; nothing else says so
    (host.seats / "t2").mkdir(parents=True)
    for seed in "234":
        host.serve(seed, keep=1)
    assert base(trial) in host.there()
    shutil.rmtree(host.seats / "t2")  # the seat is gone for good
    host.serve("5", keep=1)
    assert base(trial) not in host.there()


def test_the_end_of_a_trial_frees_its_entry(host: Host) -> None:
    trial = host.put("1", seat="t2")
    kept = host.serve("2")
    host.see(seat="t2")
    assert acts(host.see(kept, keep=1)) == [("prune", base(trial), "2 kept, limit 1")]


def test_what_another_seat_s_engine_file_names_stays(host: Host) -> None:
    one, two = host.put("1"), host.put("2")
    host.engine_yaml("t2", f"lora-modules: [lv-x={one}]\n")
    host.engine_yaml("t1", f"lora-modules: [lv-x={one}]\n")
    three = host.put("3")
    assert acts(host.see(three)) == [("prune", base(two), "3 kept, limit 2")]


def test_the_own_engine_file_is_not_asked_because_a_check_would_find_the_old_one(host: Host) -> None:
    one, two = host.put("1"), host.put("2")
    host.engine_yaml("t1", f"lora-modules: [lv-x={one}]\n")
    assert acts(host.see(two, keep=1)) == [("prune", base(one), "2 kept, limit 1")]


def test_an_engine_file_that_cannot_be_read_stops_the_pruning(host: Host) -> None:
    host.put("1")
    two = host.put("2")
    host.engine_yaml("t2", "- no mapping\n")
    done = host.see(two, keep=1)
    assert acts(done) == []
    assert "nothing is pruned, because it cannot be told what is in use" in str(done["warnings"])
    assert len(host.there()) == 2


def test_what_an_inventory_pins_stays(host: Host) -> None:
    one, two = host.put("1"), host.put("2")
    assert acts(host.see(two, keep=1, pinned=[base(one)])) == []


def test_an_absent_voice_is_forgotten_and_not_pruned_as_well(host: Host) -> None:
    paths = [host.put(seed) for seed in "123"]
    done = host.see(keep=1, absent=["lv-x"])
    assert {(do, what) for do, what, _ in acts(done)} == {("forget", base(path)) for path in paths}
    assert json.loads((host.store / ".uses.json").read_text())["entries"] == {}


def test_notes_that_a_person_broke_stop_the_pruning_and_nothing_else(host: Host) -> None:
    host.put("1")
    (host.store / ".uses.json").write_text("{")
    two = host.put("2")
    done = host.see(two, keep=1)
    assert acts(done) == []
    assert "until then nothing is pruned" in str(done["warnings"])
    assert (host.store / ".uses.json").read_text() == "{"


def test_drift_is_reported_by_name_in_check_mode(host: Host) -> None:
    one, two = host.serve("1"), host.serve("2")
    weights = Path(one, "adapter_model.safetensors")
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    now = set_digest(Path(one))
    found = host.see(two, check=True)
    assert found["drift"] == [{"what": base(one), "why": f"it no longer matches its digest: it holds {now}"}]
    assert base(one) in str(found["warnings"])
    assert host.see(two)["drift"] == []
    pin = base(two).partition("@")[2]
    source = write_adapter(host.root / "source-2", "moved on")
    pinned = {"lv-x": {"source": str(source), "digest": pin}}
    found = host.run(check=True, voices=pinned)
    assert found["actions"] == []
    assert found["drift"][0]["what"] == "lv-x"
    assert f"now holds {set_digest(source)[:12]}, and {pin} is pinned" in found["drift"][0]["why"]


def test_a_kill_at_any_system_call_loses_nothing_in_use_and_no_notes(host: Host) -> None:
    one, two, three = host.serve("1"), host.serve("2"), host.serve("3", keep=9)
    before = host.root / "before"
    shutil.copytree(host.store, before)
    options = {"seat": "t1", "serves": [three], "in_use": [two], "prune": ["lv-x"], "keep": 1}
    number = 0
    while True:
        shutil.rmtree(host.store)
        shutil.copytree(before, host.store)
        source = write_adapter(host.root / "source-4", "4")
        voices = {"lv-x": {"source": str(source)}}
        killed = killed_at(number, lambda given=voices: host.run(voices=given, **options))
        from_text((host.store / ".uses.json").read_text(), "")
        assert {base(two), base(three)} <= host.there()
        done = host.run(voices=voices, **options)
        four = base(done["entries"]["lv-x"]["path"])
        assert host.there() == {base(two), base(three), four}
        assert host.run(voices=voices, **options)["changed"] is False
        notes = from_text((host.store / ".uses.json").read_text(), "")
        assert notes.use(four, "t1") is not None
        assert base(one) not in notes.uses
        assert not [name for name in os.listdir(host.store) if name.startswith((".incoming", ".outgoing", ".."))]
        if not killed:
            break
        number += 1
    assert number > 20


def test_a_play_killed_before_its_notes_is_back_already() -> None:
    # Loaded and lasting, and the notes still say that C serves.
    assert choose(history(B, life(A, B, C), pin="b" * 12), "").entry == B


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": -1}, "keep is -1"),
        ({"keep": 1}, "keep and serves need seat"),
        ({"serves": []}, "keep and serves need seat"),
        ({"seat": "T 1"}, "seat 'T 1' is outside the naming rule"),
        ({"prune": ["homer"]}, "voice 'homer' is outside"),
        ({"pinned": ["lv-x"]}, "pinned names 'lv-x', which is no entry"),
    ],
)
def test_bad_parameters_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(VoicesError, match=said):
        desired_from({}, **options)
