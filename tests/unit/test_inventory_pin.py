"""inventory_pin: one value in one file, every other byte as it was, and a refusal wherever that is not certain."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.voices import inventory_pin_files
from ansible.module_utils.voices.inventory_pin import edit, places_in_variables, read
from ansible.module_utils.voices.plan import VoicesError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.adapter_dirs import tree
from tests.support.run_module import run_module

PIN, OLD = "0a1b2c3d4e5f", "ffffffffffff"
REPOSITORY = Path(__file__).resolve().parents[2]

BLOCK = """\
# Seats of this host.
voices_seat_root: "/srv"   # here
voices_seats:
  t1:
    port: 8027
    api_key: 'a key that nobody may see'
    voices:
      lv-a:
        # why this one
        source:   'a-v1'   # the first
        state: present

      lv-b: {source: b-v1, state: present}   # flow

      # of c
      lv-c:
        source: c
        digest: ffffffffffff   # was
        verdict: "gate: passed"
  t2:
    voices: {}
"""


def pin(text: str, voice: str, digest: str = PIN, seat: str = "t1", options: Any = None) -> str:
    """``text`` with the pin set. Without ``options`` the voice is in effect as it stands there."""
    document = read("/inv.yml", text)
    assert document is not None
    (place,) = places_in_variables(document)
    if options is None:
        options = yaml.safe_load(text)["voices_seats"][seat]["voices"][voice]
    made = edit(place, seat, voice, digest, options)
    return text if made is None else made.text


def swapped(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def test_a_block_gets_a_line_behind_its_source() -> None:
    line = "        source:   'a-v1'   # the first\n"
    assert pin(BLOCK, "lv-a") == swapped(BLOCK, line, f'{line}        digest: "{PIN}"\n')


def test_a_flow_mapping_gets_an_entry() -> None:
    assert pin(BLOCK, "lv-b") == swapped(BLOCK, "{source: b-v1,", f'{{source: b-v1, digest: "{PIN}",')


def test_a_pin_that_is_there_is_replaced_in_its_own_form() -> None:
    assert pin(BLOCK, "lv-c") == swapped(BLOCK, f"digest: {OLD}   # was", f"digest: {PIN}   # was")
    for quote in "'\"":
        text = BLOCK.replace(OLD, f"{quote}{OLD}{quote}")
        assert pin(text, "lv-c") == text.replace(OLD, PIN)


def test_a_digest_of_digits_is_never_a_number() -> None:
    for digits in ("123456789012", "012345670123", "1" * 12):
        made = pin(BLOCK, "lv-c", digits)
        assert yaml.safe_load(made)["voices_seats"]["t1"]["voices"]["lv-c"]["digest"] == digits
        assert f'digest: "{digits}"   # was' in made


@pytest.mark.parametrize("empty", ["digest:", "digest: ~", "digest: null", 'digest: ""'])
def test_an_empty_pin_is_filled(empty: str) -> None:
    made = pin(BLOCK.replace(f"digest: {OLD}", empty), "lv-c")
    assert yaml.safe_load(made)["voices_seats"]["t1"]["voices"]["lv-c"]["digest"] == PIN
    assert made.replace(f'"{PIN}"', PIN) == BLOCK.replace(OLD, PIN)


def test_the_same_pin_is_no_edit() -> None:
    assert pin(BLOCK, "lv-c", OLD) == BLOCK


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("      lv-x:\n        state: present\n", '      lv-x:\n        digest: "D"\n        state: present\n'),
        ("      lv-x:\n        source: s", '      lv-x:\n        source: s\n        digest: "D"'),
        (
            "      lv-x:\n        source: >-\n          s\n",
            '      lv-x:\n        digest: "D"\n        source: >-\n          s\n',
        ),
        ("      lv-x: {}\n", '      lv-x: {digest: "D"}\n'),
        ("      lv-x: {state: present}\n", '      lv-x: {digest: "D", state: present}\n'),
        ("      lv-x: {source: s}\n", '      lv-x: {source: s, digest: "D"}\n'),
        ('      lv-x: {"source": "s"}\n', '      lv-x: {"source": "s", "digest": "D"}\n'),
        (
            "      lv-x: {\n        source: s,  # c\n      }\n",
            '      lv-x: {\n        source: s, digest: "D",  # c\n      }\n',
        ),
        ("      'lv-x': {source: ä€😀}\n", "      'lv-x': {source: ä€😀, digest: \"D\"}\n"),
        (
            "      lv-x:   \n          source: s # {\n",
            '      lv-x:   \n          source: s # {\n          digest: "D"\n',
        ),
    ],
)
def test_every_form_of_a_voice(before: str, after: str) -> None:
    head = "voices_seats:\n  t1:\n    voices:\n"
    assert pin(head + before, "lv-x") == head + after.replace("D", PIN)


def test_other_line_ends_stay() -> None:
    text = BLOCK.replace("\n", "\r\n")
    made = pin(text, "lv-a")
    assert made.count("\r\n") == made.count("\n") == text.count("\n") + 1
    assert made.replace("\r\n", "\n") == pin(BLOCK, "lv-a")


def test_the_project_s_own_inventories_can_be_pinned() -> None:
    for name, seat in (("local/host_vars/local.yml", "tiny"), ("fleet/host_vars/fv-ml1.yml", "qwen3-4b")):
        text = (REPOSITORY / "inventory" / name).read_text()
        data = yaml.safe_load(text)
        for voice in data["voices_seats"][seat]["voices"]:
            made = pin(text, voice, seat=seat)
            data["voices_seats"][seat]["voices"][voice]["digest"] = PIN
            assert yaml.safe_load(made) == data
            assert pin(made, voice, seat=seat) == made
            del data["voices_seats"][seat]["voices"][voice]["digest"]


words = st.text("abc xyz#:{}'\"&*%-é\t", max_size=8)


@given(
    st.dictionaries(
        st.sampled_from(["lv-a", "lv-b"]),
        st.fixed_dictionaries(
            {"source": words}, optional={"state": st.just("present"), "digest": st.just(OLD), "verdict": words}
        ),
        min_size=1,
    ),
    st.booleans(),
    st.sampled_from(["#c\n", ""]),
)
def test_only_the_pin_changes(voices: dict[str, Any], flow: bool, head: str) -> None:
    data = {"x": 1, "voices_seats": {"t1": {"voices": voices, "port": 1}}, "y": [1, 2]}
    text = head + yaml.safe_dump(data, default_flow_style=flow or None, allow_unicode=True)
    voice = sorted(voices)[0]
    made = pin(text, voice)
    voices[voice]["digest"] = PIN
    assert yaml.safe_load(made) == data
    assert len(made) - len(text) <= len(PIN) + 40
    assert pin(made, voice) == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("      lv-a:\n", "      lv-a: &a\n"), "line 8 carries an anchor or an alias"),
        (("    voices:\n      lv-a", "    voices: &v\n      lv-a"), "carries an anchor"),
        (("  t1:\n", "  t1: &seat\n"), "carries an anchor"),
        (("digest: ffffffffffff", "digest: &d ffffffffffff"), "carries an anchor"),
        (("digest: ffffffffffff", "digest: '{{ pin }}'"), "is no plain value"),
        (("digest: ffffffffffff   # was", "digest: |\n          ffffffffffff"), "is no plain value"),
        (("digest: ffffffffffff", "digest: [ffffffffffff]"), "is no plain value"),
        (("        source: c\n", "        <<: {source: c}\n"), "merge key"),
        (("        source: c\n", "        source: c\n        source: c\n"), "a key twice"),
        (("      lv-c:\n", "      lv-a:\n"), "lv-c does not stand there"),
        (("      lv-b: {", "      lv-c: {"), "lv-c stands there 2 times"),
        (("        source: c\n", "        source: d\n"), "another source than the one in effect ('c')"),
        (("        source: c\n", ""), "another source than the one in effect"),
    ],
)
def test_what_is_not_plain_is_refused(change: tuple[str, str], said: str) -> None:
    voice = "lv-a" if "lv-a: &a" in change[1] else "lv-c"
    options = yaml.safe_load(BLOCK)["voices_seats"]["t1"]["voices"][voice]
    with pytest.raises(VoicesError) as caught:
        pin(swapped(BLOCK, *change), voice, options=options)
    assert said in str(caught.value)


def test_an_alias_is_refused_where_it_is_used() -> None:
    text = "a: &a {source: s}\nvoices_seats: {t1: {voices: {lv-x: *a}}}\n"
    with pytest.raises(VoicesError, match="line 1 carries an anchor or an alias"):
        pin(text, "lv-x")


@pytest.mark.parametrize("at", ["voices_seats", "t1", "voices"])
def test_a_template_on_the_way_is_refused(at: str) -> None:
    nested = {
        "voices_seats": "voices_seats: '{{ x }}'",
        "t1": "voices_seats: {t1: '{{ x }}'}",
        "voices": "voices_seats: {t1: {voices: '{{ x }}'}}",
    }
    with pytest.raises(VoicesError, match=r"is a template there: '\{\{ x \}\}'"):
        pin(nested[at], "lv-x", options={"source": "s"})


# --- the module: which file -------------------------------------------------------------------------------------------


class Inventory:
    """An inventory directory and a run of the module over it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *, check: bool = False, **more: Any) -> dict[str, Any]:
        args = {
            "host": "h1",
            "groups": {"g": ["h1"], "all": ["h1", "h2"]},
            "sources": [str(self.root / "inv")],
            "playbook_dir": str(self.root / "playbooks"),
            "seat": "t1",
            "voice": "lv-x",
            "digest": PIN,
            "options": {"source": "s"},
        }
        return run_module("inventory_pin", {**args, **more}, check=check)


VARS = "voices_seats: {t1: {api_key: hidden-from-diffs, voices: {lv-x: {source: s}}}}\n"


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    made = Inventory(tmp_path)
    made.write("inv/hosts.yml", "g: {hosts: {h1: , h2: }}\n")
    return made


@pytest.mark.parametrize(
    "name",
    [
        *(f"inv/host_vars/h1{ending}" for ending in ("", ".yml", ".yaml", ".json", "/seats.yml", "/deep/x")),
        "inv/group_vars/g.yml",
        "playbooks/host_vars/h1.yml",
    ],
)
def test_check_real_check_real(inventory: Inventory, name: str) -> None:
    path = inventory.write(name, VARS)
    path.chmod(0o640)
    before = tree(inventory.root)
    planned = inventory.run(check=True)
    assert not planned.get("failed"), planned
    assert tree(inventory.root) == before
    done = inventory.run()
    assert done["changed"] is planned["changed"] is True
    for key in ("actions", "diff", "file"):
        assert done[key] == planned[key]
    assert path.read_text() == VARS.replace("source: s", f'source: s, digest: "{PIN}"')
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(path.parent)) == [path.name]
    assert done["actions"] == [
        {"do": "pin", "what": "lv-x", "why": f"digest in {path}:1", "before": None, "after": PIN}
    ]
    assert done["diff"][0]["before"] == "lv-x: {source: s}\n"
    assert done["diff"][0]["after"] == f'lv-x: {{source: s, digest: "{PIN}"}}\n'
    assert "hidden-from-diffs" not in str(done)
    after = tree(inventory.root)
    for check in (True, False):
        again = inventory.run(check=check, options={"source": "s", "digest": PIN})
        assert (again["changed"], again["actions"], again["diff"]) == (False, [], [])
        # A play that began before the edit still has the options of then.
        assert inventory.run(check=check, options={"source": "s", "digest": PIN[:12]})["changed"] is False
    assert tree(inventory.root) == after


@pytest.mark.parametrize(
    "text",
    [
        "all: {hosts: {h1: {voices_seats: SEATS}}}",
        "all: {children: {g: {hosts: {h1: {voices_seats: SEATS}}}}}",
        "all: {children: {g: {hosts: {h1: }, vars: {voices_seats: SEATS}}}}",
        "all: {hosts: {h1: {voices_seats: SEATS}, h2: {voices_seats: SEATS}}}",
        "all: {children: {g: {hosts: {h1: {voices_seats: SEATS}}}, other: {vars: {voices_seats: SEATS}}}}",
    ],
)
def test_an_inventory_file_may_hold_the_seats(inventory: Inventory, text: str) -> None:
    seats = "{t1: {voices: {lv-x: {source: s}}}}"
    path = inventory.write("inv/hosts.yml", text.replace("SEATS", seats) + "\n")
    before = path.read_text()
    done = inventory.run()
    assert not done.get("failed"), done
    assert path.read_text() == before.replace("{source: s}", f'{{source: s, digest: "{PIN}"}}', 1)


def test_a_source_that_is_a_file_has_its_variables_beside_it(inventory: Inventory) -> None:
    path = inventory.write("inv/host_vars/h1.yml", VARS)
    assert inventory.run(sources=[str(inventory.root / "inv/hosts.yml"), "h1,"])["file"] == str(path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no file that can be read defines voices_seats for h1"),
        ({"inv/host_vars/h1.yml": VARS, "inv/group_vars/g.yml": VARS}, "in several places: "),
        ({"inv/host_vars/h1.yml": VARS + VARS}, "in several places: "),
        ({"inv/group_vars/all.yml": VARS}, "is of the group all, and would pin h2 too"),
        ({"inv/host_vars/h2.yml": VARS, "inv/group_vars/other.yml": VARS}, "no file that can be read"),
        ({"inv/host_vars/h1/v.yml": "$ANSIBLE_VAULT;1.1;AES256\n3031\n"}, "not looked into: "),
        ({"inv/host_vars/h1.yml": "voices_seats: {"}, "not looked into: "),
        ({"inv/host_vars/h1.yml": "voices_seats: {t1: {voices: {lv-x: {source: other}}}}\n"}, "another source"),
        ({"inv/host_vars/h1.yml": "voices_seats: {t2: {voices: {lv-x: {source: s}}}}\n"}, "seat t1 does not stand"),
        (
            {"inv/host_vars/h1.yml": "voices_seats: !unsafe {t1: {voices: {lv-x: {source: s}}}}\n"},
            "line 1 carries the tag !unsafe",
        ),
    ],
)
def test_an_uncertain_place_is_refused_with_the_line_to_set(
    inventory: Inventory, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        inventory.write(name, text)
    before = tree(inventory.root)
    for check in (True, False):
        done = inventory.run(check=check)
        assert done["failed"] is True
        assert said in done["msg"]
        assert f'in voices_seats: t1: voices: lv-x:\n    digest: "{PIN}"\n' in done["msg"]
    assert tree(inventory.root) == before
    # Once a person has set it, nothing has to be found.
    assert inventory.run(options={"source": "s", "digest": PIN * 2})["changed"] is False


def test_a_vaulted_file_beside_a_plain_one_is_left_alone(inventory: Inventory) -> None:
    inventory.write("inv/host_vars/h1/vault.yml", "$ANSIBLE_VAULT;1.1;AES256\n3031\n")
    inventory.write("inv/host_vars/h1/notes.yml", "---\n# nothing yet\n")
    path = inventory.write("inv/host_vars/h1/main.yml", "k: !vault |\n  $ANSIBLE_VAULT;1.1\n" + VARS)
    assert inventory.run()["file"] == str(path)
    assert path.read_text().startswith("k: !vault |\n  $ANSIBLE_VAULT;1.1\nvoices_seats: {")


def test_a_link_stays_a_link(inventory: Inventory) -> None:
    real = inventory.write("elsewhere/h1.yml", VARS)
    link = inventory.root / "inv/host_vars/h1.yml"
    link.parent.mkdir()
    link.symlink_to(real)
    assert inventory.run()["changed"] is True
    assert link.is_symlink()
    assert PIN in real.read_text()


def test_a_file_that_changes_meanwhile_and_a_full_disk_write_nothing(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = inventory.write("inv/host_vars/h1.yml", VARS)
    with pytest.raises(VoicesError, match="was changed by somebody meanwhile"):
        inventory_pin_files.replace_text(str(path), "another text", "new")
    assert path.read_text() == VARS

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    before = tree(inventory.root)
    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in inventory.run()["msg"]
    assert {name: state[3] for name, state in tree(inventory.root).items()} == {n: s[3] for n, s in before.items()}


@pytest.mark.parametrize("digest", ["0a1b2c3d4e5", "0A1B2C3D4E5F", "g" * 12, "a" * 65])
def test_what_is_no_digest_is_refused(inventory: Inventory, digest: str) -> None:
    inventory.write("inv/host_vars/h1.yml", VARS)
    assert "is no sha256" in inventory.run(digest=digest)["msg"]
