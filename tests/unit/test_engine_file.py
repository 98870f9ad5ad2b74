"""engine.yaml: text, slots, refusals, the plan, and the module that writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.voices import engine_directory
from ansible.module_utils.voices import engine_file as core
from ansible.module_utils.voices.api_key import TO_BE_GENERATED, mask
from ansible.module_utils.voices.engine_slots import slots
from ansible.module_utils.voices.engine_yaml import normalise, parse, render, same
from ansible.module_utils.voices.flags import flags_sha256, masked_secret
from ansible.module_utils.voices.plan import VoicesError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.run_module import run_module

FLAGS = {"model": "/carriers/tiny", "served-model-name": "voices-base", "port": 8100, "max-lora-rank": 8}
GUARD = "class SeatGuard: pass\n"
GUARD_FILE = f"{core.guard_module(GUARD)}.py"
KEY = "0123456789-a-key-that-is-long"
OTHER_KEY = "another-key-that-is-long-enough"

scalars = st.one_of(st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)
flag_names = st.from_regex(r"[a-z]{2,9}(-[a-z0-9]{1,9}){0,2}", fullmatch=True).filter(
    lambda name: name != "lora-modules"
)
paths = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(lambda text: f"/{text}")


# Text


@settings(max_examples=60, deadline=None)
@example(flags={"aa": "\x85"}, voices={})
@example(flags={}, voices={"lv-a": "/a"})
@given(
    flags=st.dictionaries(flag_names, values),
    voices=st.dictionaries(st.from_regex(r"lv-[a-z]{1,9}", fullmatch=True), paths),
)
def test_what_is_rendered_is_parsed_back(flags: dict[str, Any], voices: dict[str, str]) -> None:
    flags = {name: normalise(value) for name, value in flags.items()}
    parsed, found = parse(render(flags, voices), "engine.yaml")
    assert same(parsed, flags) and found == voices


def test_the_text_is_what_vllm_reads() -> None:
    text = render({**FLAGS, "enable-lora": True}, {"lv-b": "/store/b=1", "lv-a": "/store/a,b"})
    assert text.startswith("# Managed by") and "# Voices: lv-a, lv-b." in text
    assert yaml.safe_load(text) == {
        **FLAGS,
        "enable-lora": True,
        # vLLM takes an entry with a comma for JSON
        "lora-modules": ['{"name": "lv-a", "path": "/store/a,b"}', "lv-b=/store/b=1"],
    }
    assert "lora-modules" not in render(FLAGS, {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model: x\nport: [1\nhost: y\n", "engine.yaml line 3 is no YAML"),
        ("model: x\n\tport: 1\n", "engine.yaml line 2 is no YAML"),
        ("model: !!python/object:os.system x\n", "engine.yaml line 1 is no YAML"),
        ("a: \x07\n", "engine.yaml is no YAML"),
        ("", "engine.yaml is empty"),
        ("- model\n", "holds a list on line 1"),
        ("lora-modules: lv-a=/a\n", "not a list of name=path"),
        ("lora-modules: [lv-a]\n", "'lv-a' is not name=path"),
        ("lora-modules: [{lv-a: /a}]\n", "is not name=path"),
        ('lora-modules: [\'{"name": "lv-a"}\']\n', "is not name=path"),
        ("lora-modules: [lv-a=/a, lv-a=/b]\n", "names lv-a twice"),
    ],
)
def test_a_broken_file_is_refused_with_the_line_and_the_fix(text: str, complaint: str) -> None:
    with pytest.raises(VoicesError, match=complaint) as caught:
        parse(text, "engine.yaml")
    assert "move it away" in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1.0, 1, True),
        ([0.5, 2.0], [0.5, 2], True),
        ({"a": 1.0, "b": 2}, {"b": 2, "a": 1}, True),
        ("1", 1, False),
        (True, 1, False),
        (False, 0, False),
        ("true", True, False),
        (None, "", False),
        ([1, 2], [2, 1], False),
    ],
)
def test_values_are_compared_as_yaml_has_them(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal


def test_the_key_is_masked_and_one_to_come_is_readable() -> None:
    masked = mask({"api-key": KEY, "port": 1})
    assert masked["port"] == 1 and masked["api-key"].startswith("sha256:") and len(masked["api-key"]) == 19
    assert mask({"api-key": TO_BE_GENERATED})["api-key"] == "(to be generated)"


# Slots


@pytest.mark.parametrize(
    ("voices", "loras", "cpu", "present", "expected"),
    [
        (3, None, None, {}, (4, 4)),
        (4, None, None, {"max-loras": 4, "max-cpu-loras": 4}, (4, 4)),
        (5, None, None, {"max-loras": 4, "max-cpu-loras": 4}, (6, 6)),
        (2, None, None, {"max-loras": 9, "max-cpu-loras": 12}, (9, 12)),
        (0, None, None, {}, (1, 1)),
        (3, 3, None, {"max-loras": 8}, (3, 3)),
        (3, None, 9, {}, (4, 9)),
        (3, 4, 4, {"max-cpu-loras": 9}, (4, 4)),
        (3, 6, None, {"max-cpu-loras": 4}, (6, 6)),
        (3, None, None, {"max-loras": "many", "max-cpu-loras": True}, (4, 4)),
    ],
)
def test_slots(voices: int, loras: int | None, cpu: int | None, present: Any, expected: tuple[int, int]) -> None:
    assert slots(voices, loras, cpu, present) == expected


@pytest.mark.parametrize(
    ("voices", "loras", "cpu", "complaint"),
    [
        (3, 2, None, "max_loras is 2, but 3 voices are present: set it to 4"),
        (0, 0, None, "max_loras is 0, but 0 voices are present: set it to 1"),
        (3, 4, 3, r"max_cpu_loras is 3, but max_loras is 4 .* set max_cpu_loras to 4"),
        (3, None, 3, "max_cpu_loras is 3, but max_loras is 4"),
    ],
)
def test_slots_that_are_too_few_are_refused_with_the_value_to_set(
    voices: int, loras: int | None, cpu: int | None, complaint: str
) -> None:
    with pytest.raises(VoicesError, match=complaint):
        slots(voices, loras, cpu, {})


# Refusals


def plan(desired: core.Desired, present: core.Present | None = None) -> core.Plan:
    return core.plan(desired, present or core.Present(), path="engine.yaml", api_key_file="api_key")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"lora-modules": []}, "flag lora-modules is not yours to set"),
        ({"api-key": KEY}, "give the key as api_key or in api_key_file"),
        ({"middleware": []}, "the seat's guard stands there"),
        ({"max-loras": 3}, "set max_loras"),
        ({"max-cpu-loras": 3}, "set max_cpu_loras"),
        ({"lora-mod": []}, "flag lora-mod is not yours to set"),  # vLLM's parser takes abbreviations
        ({"middlewar": []}, "not yours to set"),
        ({"root-path": "/x"}, "flag root-path is refused"),
        ({"hf-token": "x"}, "a secret"),
        ({"config": "x"}, "flag config is refused"),
        ({"max_model_len": 3}, "'max_model_len' is not written in kebab-case"),
        ({"--port": 3}, "is not written in kebab-case"),
        ({"a.b": 3}, "is not written in kebab-case"),
    ],
)
def test_flags_with_another_owner_are_refused(flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(VoicesError, match=complaint) as caught:
        plan(core.Desired({**FLAGS, **flags}, GUARD))
    assert KEY not in str(caught.value)


def test_a_rank_flag_is_no_abbreviation_of_an_owned_one() -> None:
    assert plan(core.Desired({**FLAGS, "max-lora-rank": 16, "model": "m"}, GUARD)).flags["max-lora-rank"] == 16


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("short", "has 5 characters, and a key has at least 24"),
        ("-" + KEY, "not begin with a dash"),
        (KEY + " x", "printable ASCII without spaces"),
        (KEY + "\n", "printable ASCII without spaces"),
        (KEY + "ü", "printable ASCII"),
    ],
)
def test_a_key_that_cannot_work_is_refused_and_not_shown(key: str, complaint: str) -> None:
    for desired, present in (
        (core.Desired(FLAGS, GUARD, api_key=key), core.Present()),
        (core.Desired(FLAGS, GUARD), core.Present(api_key=key)),
    ):
        with pytest.raises(VoicesError, match=complaint) as caught:
            plan(desired, present)
        assert key not in str(caught.value)


def test_a_key_of_24_characters_is_long_enough() -> None:
    assert plan(core.Desired(FLAGS, GUARD, api_key="k" * 24)).flags["api-key"] == "k" * 24
    with pytest.raises(VoicesError, match="has 23 characters"):
        plan(core.Desired(FLAGS, GUARD, api_key="k" * 23))


def test_a_deployed_voice_that_left_the_inventory_is_refused() -> None:
    present = core.Present(flags=dict(FLAGS), voices={"lv-a": "/a", "lv-b": "/b", "lv-c": "/c"})
    with pytest.raises(VoicesError, match=r"deployed voice lv-c left the inventory .* set state: retired or absent"):
        plan(core.Desired(FLAGS, GUARD, voices=("lv-a",), gone=("lv-b",)), present)


def test_every_complaint_is_in_one_message() -> None:
    with pytest.raises(VoicesError) as caught:
        plan(core.Desired({"middleware": []}, GUARD, voices=("austen", "lv-a"), gone=("lv-a",), api_key="short"))
    for part in ("middleware", "'austen'", "lv-a is both present and gone", "has 5 characters"):
        assert part in str(caught.value)


def test_generated_keys_are_accepted_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["-begins-with-a-dash-0123456789", "a-good-one-0123456789-0123456789"])
    monkeypatch.setattr(engine_directory.secrets, "token_urlsafe", lambda size: next(drawn))
    assert engine_directory._new_key() == "a-good-one-0123456789-0123456789"


# The module, on disk


class Seat:
    """A seat's directories, and the module run on them."""

    def __init__(self, root: Path) -> None:
        self.engine = root / "seat/engine"
        self.secrets = root / "seat/secrets"
        self.path = self.engine / "engine.yaml"
        self.previous = self.engine / "engine.yaml.previous"
        self.store = root / "store"

    def run(self, *, check: bool = False, **others: Any) -> dict[str, Any]:
        args = {
            "path": str(self.path),
            "flags": FLAGS,
            "api_key_file": str(self.secrets / "api_key"),
            "generate_api_key": True,
            "guard": GUARD,
        }
        return run_module("engine_file", {**args, **others}, check=check)

    def apply(self, **others: Any) -> dict[str, Any]:
        """Check, prove that nothing moved, run, prove one plan and that a second run has nothing to do."""
        before = self.files()
        check = self.run(check=True, **others)
        assert self.files() == before
        real = self.run(**others)
        assert not check.get("failed") and not real.get("failed"), (check, real)
        for key in ("changed", "actions", "diff", "boot_voices", "reasons", "previous", "path"):
            assert check[key] == real[key], key
        files = self.files()
        again = self.run(**others)
        assert (again["changed"], again["actions"], again["diff"], again["reasons"]) == (False, [], [], [])
        assert (again["flags"], again["boot_voices"]) == (real["flags"], real["boot_voices"])
        assert self.files() == files
        return real

    def files(self) -> dict[str, tuple[bytes, int, int]]:
        root = self.engine.parent.parent
        return {
            str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode, path.stat().st_ino)
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    def data(self) -> dict[str, Any]:
        loaded = yaml.safe_load(self.path.read_text())
        assert isinstance(loaded, dict)
        return loaded

    def set_voices(self, voices: dict[str, str]) -> None:
        def change(present: dict[str, str]) -> None:
            present.clear()
            present.update(voices)

        engine_directory.EngineDirectory(str(self.path)).change_voices(change)

    def adapter(self, name: str) -> str:
        directory = self.store / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "adapter_config.json").write_text("{}")
        return str(directory)

    def note_healthy(self, flags: dict[str, Any]) -> None:
        note = self.engine.parent / "service/run/healthy.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"config_sha256": flags_sha256(flags)}))


@pytest.fixture
def seat(tmp_path: Path) -> Seat:
    return Seat(tmp_path)


def did(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(action["do"], action["what"], action["why"]) for action in result["actions"]]


def test_the_first_run_makes_all_files(seat: Seat) -> None:
    result = seat.apply(voices=["lv-a"])
    assert did(result) == [
        ("create", "guard", ""),
        ("create", "api key", ""),
        ("create", "auth header", ""),
        ("create", "engine.yaml", ""),
    ]
    key = (seat.secrets / "api_key").read_text().strip()
    assert len(key) >= 24 and (seat.secrets / "auth.header").read_text() == f"Authorization: Bearer {key}\n"
    assert seat.data() == {
        **FLAGS,
        "max-loras": 2,
        "max-cpu-loras": 2,
        "middleware": [GUARD_FILE.replace(".py", ".SeatGuard")],
        "api-key": key,
    }
    assert (seat.engine / GUARD_FILE).read_text() == GUARD
    private = [seat.path, seat.secrets / "api_key", seat.secrets / "auth.header"]
    assert [path.stat().st_mode & 0o777 for path in private] == [0o600] * 3
    assert seat.secrets.stat().st_mode & 0o777 == 0o700
    assert key not in json.dumps(result) and result["flags"]["api-key"] == masked_secret(key)
    assert (result["boot_voices"], result["reasons"], result["previous"]) == ({}, [], "")
    assert "+(to be" not in result["diff"][0]["before"] and "api-key: (to be generated)" in result["diff"][0]["after"]


def test_check_mode_before_the_first_run_shows_a_key_to_come(seat: Seat) -> None:
    result = seat.run(check=True)
    assert result["changed"] and result["flags"]["api-key"] == "(to be generated)"
    assert not seat.engine.parent.exists()


def test_a_seat_without_a_key(seat: Seat) -> None:
    result = seat.apply(generate_api_key=False)
    assert did(result) == [("create", "guard", ""), ("create", "engine.yaml", "")]
    assert "api-key" not in seat.data() and "api-key" not in result["flags"]


def test_changed_flags_are_named_and_keep_key_and_voices(seat: Seat) -> None:
    seat.apply(voices=["lv-a"])
    seat.set_voices({"lv-a": seat.adapter("lv-a")})
    key = seat.data()["api-key"]
    flags = {**FLAGS, "max-lora-rank": 16, "enforce-eager": True}
    del flags["port"]
    result = seat.apply(flags=flags, voices=["lv-a"])
    assert result["reasons"] == [
        {"flag": "enforce-eager", "before": None, "after": True},
        {"flag": "max-lora-rank", "before": 8, "after": 16},
        {"flag": "port", "before": 8100, "after": None},
    ]
    assert did(result) == [("write", "engine.yaml", r["flag"]) for r in result["reasons"]]
    assert seat.data()["api-key"] == key and result["boot_voices"] == {"lv-a": str(seat.store / "lv-a")}
    (diff,) = result["diff"]
    assert "max-lora-rank: 8" in diff["before"] and "max-lora-rank: 16" in diff["after"]
    assert key not in json.dumps(result)


def test_edits_by_hand_are_put_right_and_comments_are_left(seat: Seat) -> None:
    seat.apply()
    text = seat.path.read_text()
    seat.path.write_text("# a note\n" + text.replace("port: 8100", "port: 8100.0"))
    assert seat.run()["changed"] is False
    seat.path.write_text(text.replace("port: 8100", "port: 9999") + "seed: 7\n")
    result = seat.apply()
    assert [(r["flag"], r["before"], r["after"]) for r in result["reasons"]] == [
        ("port", 9999, 8100),
        ("seed", 7, None),
    ]
    assert seat.path.read_text() == text


def test_a_null_flag_is_no_flag_and_whole_floats_are_ints(seat: Seat) -> None:
    seat.apply()
    result = seat.run(flags={**FLAGS, "port": 8100.0, "dtype": None})
    assert result["changed"] is False and result["flags"]["port"] == 8100 and "dtype" not in result["flags"]


def test_one_voice_more_restarts_nothing_while_there_are_slots(seat: Seat) -> None:
    seat.apply(voices=["lv-a", "lv-b", "lv-c"])
    assert seat.data()["max-loras"] == 4
    assert seat.run(voices=["lv-a", "lv-b", "lv-c", "lv-d"])["changed"] is False
    result = seat.apply(voices=["lv-a", "lv-b", "lv-c", "lv-d", "lv-e"])
    assert [(r["flag"], r["before"], r["after"]) for r in result["reasons"]] == [
        ("max-cpu-loras", 4, 6),
        ("max-loras", 4, 6),
    ]


def test_gone_and_lost_voices_leave_only_a_file_that_an_engine_starts_from(seat: Seat) -> None:
    seat.apply(voices=["lv-a", "lv-b", "lv-c"])
    kept = seat.adapter("lv-a")
    seat.set_voices({"lv-a": kept, "lv-b": seat.adapter("lv-b"), "lv-c": str(seat.store / "lv-c")})
    lists: dict[str, Any] = {"voices": ["lv-a", "lv-c"], "gone": ["lv-b"]}
    unchanged = seat.run(**lists, stored=[str(seat.store / "lv-c")])
    assert unchanged["changed"] is False and set(unchanged["boot_voices"]) == {"lv-a", "lv-b", "lv-c"}
    lost = seat.apply(**lists)
    assert did(lost) == [("drop", "lv-c", "its directory holds no adapter, which would stop the engine at its start")]
    assert set(lost["boot_voices"]) == {"lv-a", "lv-b"}
    result = seat.apply(flags={**FLAGS, "max-lora-rank": 16}, **lists)
    assert did(result) == [("write", "engine.yaml", "max-lora-rank"), ("drop", "lv-b", "retired or absent")]
    assert result["flags_before"]["max-lora-rank"] == FLAGS["max-lora-rank"]
    assert set(result["voices_before"]) == {"lv-a", "lv-b"}
    assert result["boot_voices"] == {"lv-a": kept} and seat.data()["lora-modules"] == [f"lv-a={kept}"]


def test_a_lost_key_file_is_written_again_from_the_engine_file(seat: Seat) -> None:
    seat.apply(generate_api_key=True)
    key = seat.data()["api-key"]
    (seat.secrets / "api_key").unlink()
    result = seat.apply(generate_api_key=True)
    assert [step[:2] for step in did(result)] == [("create", "api key")]
    assert (seat.secrets / "api_key").read_text().strip() == seat.data()["api-key"] == key


def test_a_given_key_replaces_the_one_on_disk_and_stays(seat: Seat) -> None:
    seat.apply(api_key=KEY)
    assert seat.data()["api-key"] == KEY
    seat.run()
    assert seat.data()["api-key"] == KEY, "no key given: the one in the file stays"
    result = seat.apply(api_key=OTHER_KEY)
    assert did(result) == [
        ("write", "api key", ""),
        ("write", "auth header", "another key"),
        ("write", "engine.yaml", "api-key"),
    ]
    assert (seat.secrets / "api_key").read_text() == f"{OTHER_KEY}\n"
    assert KEY not in json.dumps(result) and OTHER_KEY not in json.dumps(result)
    assert result["reasons"] == [
        {"flag": "api-key", "before": masked_secret(KEY), "after": masked_secret(OTHER_KEY)},
    ]


def test_loose_modes_are_put_right(seat: Seat) -> None:
    seat.apply()
    seat.path.chmod(0o644)
    (seat.secrets / "api_key").chmod(0o640)
    result = seat.apply()
    assert [(a["what"], a["why"], a["before"], a["after"]) for a in result["actions"]] == [
        ("api key", "mode", "0640", "0600"),
        ("engine.yaml", "mode", "0644", "0600"),
    ]


def test_the_last_healthy_file_is_kept_when_flags_change(seat: Seat) -> None:
    healthy = seat.apply(api_key=KEY)["flags"]
    text = seat.path.read_text()
    seat.note_healthy(healthy)
    result = seat.apply(flags={**FLAGS, "max-lora-rank": 16})
    assert result["previous"] == str(seat.previous) and seat.previous.read_text() == text
    assert seat.previous.stat().st_mode & 0o777 == 0o600
    # Rank 16 was never healthy (the note still has rank 8), so the way back stays the way back.
    result = seat.apply(flags={**FLAGS, "max-lora-rank": 32})
    assert result["previous"] == str(seat.previous) and seat.previous.read_text() == text


@pytest.mark.parametrize("note", ["", "{torn", "[]", '{"config_sha256": "another"}'])
def test_without_a_note_of_health_no_previous_file_is_made(seat: Seat, note: str) -> None:
    seat.apply()
    seat.note_healthy({})
    (seat.engine.parent / "service/run/healthy.json").write_text(note)
    assert seat.apply(flags={**FLAGS, "max-lora-rank": 16})["previous"] == ""
    assert not seat.previous.exists()


def test_voices_do_not_count_for_health(seat: Seat) -> None:
    seat.note_healthy(seat.apply(voices=["lv-a"])["flags"])
    seat.set_voices({"lv-a": seat.adapter("lv-a")})
    assert seat.apply(voices=["lv-a"], flags={**FLAGS, "max-lora-rank": 16})["previous"] == str(seat.previous)


def test_a_new_guard_leaves_the_old_one_until_nothing_refers_to_it(seat: Seat) -> None:
    def guards() -> set[str]:
        return {path.name for path in seat.engine.glob("voices_guard_*.py")}

    texts = [GUARD, *(f"{GUARD}# {version}\n" for version in (2, 3, 4))]
    names = [f"{core.guard_module(text)}.py" for text in texts]
    seat.note_healthy(seat.apply()["flags"])
    second = seat.apply(guard=texts[1])
    assert ("write", "guard", "") in did(second) and ("write", "engine.yaml", "middleware") in did(second)
    assert guards() == {names[0], names[1]}, "the running engine and engine.yaml.previous have the first"
    seat.apply(guard=texts[2])
    assert guards() == set(names[:3]), "the second stood in the file until now, so an engine may run with it"
    result = seat.apply(guard=texts[3])
    assert ("remove", "guard", "nothing refers to it") in did(result)
    assert guards() == {names[0], names[2], names[3]}
    (seat.engine / "voices_guard_notours.py").write_text("")
    seat.apply(guard=texts[0])
    assert (seat.engine / "voices_guard_notours.py").exists()


def test_a_guard_that_was_edited_is_written_again(seat: Seat) -> None:
    seat.apply()
    (seat.engine / GUARD_FILE).write_text("class SeatGuard: ...\n")
    assert did(seat.apply()) == [("write", "guard", "its content is not what its name says")]
    (seat.engine / GUARD_FILE).unlink()
    assert [action[:2] for action in did(seat.apply())] == [("write", "guard")]


@pytest.mark.parametrize("broken", ["model: [\n", "- a\n", "", "\xff"])
def test_a_file_that_cannot_be_read_is_refused_and_left(seat: Seat, broken: str) -> None:
    seat.apply()
    seat.path.write_bytes(broken.encode("latin-1"))
    before = seat.files()
    for check in (True, False):
        result = seat.run(check=check, flags={**FLAGS, "max-lora-rank": 16})
        assert result["failed"] and str(seat.path) in result["msg"] and "move it away" in result["msg"]
    assert seat.files() == before


def test_a_refusal_on_the_first_run_leaves_nothing(seat: Seat) -> None:
    assert seat.run(api_key="short")["failed"]
    assert not seat.engine.parent.exists()


def test_a_key_file_with_two_words_is_refused(seat: Seat) -> None:
    seat.apply()
    (seat.secrets / "api_key").write_text(f"{KEY} {KEY}\n")
    result = seat.run()
    assert result["failed"] and "holds 2 words" in result["msg"] and KEY not in json.dumps(result)


def test_a_place_that_cannot_be_written_is_named(seat: Seat) -> None:
    seat.engine.parent.parent.mkdir(exist_ok=True)
    seat.engine.parent.write_text("a file where a directory should be\n")
    result = seat.run()
    assert result["failed"] and str(seat.engine.parent) in result["msg"]


@pytest.mark.parametrize("first", [True, False], ids=["first run", "changed flags, guard and key"])
@pytest.mark.parametrize("survived", range(6))
def test_a_kill_at_any_write_leaves_a_file_to_start_from(
    seat: Seat, monkeypatch: pytest.MonkeyPatch, first: bool, survived: int
) -> None:
    wanted: dict[str, Any] = {"api_key": KEY}
    if not first:
        seat.note_healthy(seat.apply(**wanted)["flags"])
        wanted = {"api_key": OTHER_KEY, "guard": GUARD + "# 2\n", "flags": {**FLAGS, "max-lora-rank": 16}}
    writes = iter(range(100))
    write_text = engine_directory.write_text

    def killed(path: Path, text: str, mode: int = 0o600, **owner: Any) -> None:
        if next(writes) >= survived:
            raise KeyboardInterrupt
        write_text(path, text, mode, **owner)

    with monkeypatch.context() as patch:
        patch.setattr(engine_directory, "write_text", killed)
        try:
            result = seat.run(**wanted)
        except KeyboardInterrupt:
            result = None
    total = 4 if first else 5
    assert (result is not None) == (survived >= total), "the order below is tested at every write"
    for path in (seat.path, seat.previous):
        if path.exists():
            data = yaml.safe_load(path.read_text())
            module = data["middleware"][0].partition(".")[0]
            assert (seat.engine / f"{module}.py").exists(), "an engine that starts now would not find its guard"
            assert path == seat.previous or (seat.secrets / "api_key").exists()
    seat.apply(**wanted)
    assert seat.data()["api-key"] == wanted["api_key"]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user takes root")
def test_an_engine_under_another_user_owns_its_engine_file_alone(seat: Seat) -> None:
    seat.apply(owner="10027:10028")
    status = seat.path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (10027, 10028, 0o600)
    engine_directory.EngineDirectory(str(seat.path)).change_voices(lambda voices: voices.update({"lv-a": "/store/a"}))
    assert seat.path.stat().st_uid == 10027, "the writer of the voices leaves the file to the engine"
    os.chown(seat.path, 0, 0)
    result = seat.apply(owner="10027:10028", voices=["lv-a"], stored=["/store/a"])
    assert did(result) == [("write", "engine.yaml", "owner")]
    assert seat.path.stat().st_uid == 10027


def test_an_engine_file_that_refers_to_itself_is_refused(seat: Seat) -> None:
    seat.apply()
    seat.path.write_text(seat.path.read_text() + "loop: &loop [*loop]\n")
    assert "refers to itself" in seat.run()["msg"]
