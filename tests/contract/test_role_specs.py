"""Every role's argument specs and defaults name the same public variables, with the same defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (REPOSITORY / "roles").iterdir() if path.is_dir())


def read(role: str, file: str) -> dict[str, Any]:
    """A role's YAML file as data, empty when it is not there."""
    path = REPOSITORY / "roles" / role / file
    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def differences(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Where ``main``'s options and the public defaults disagree. A required option has no default anywhere."""
    public = {name: value for name, value in defaults.items() if not name.startswith("__")}
    optional = {name: option for name, option in options.items() if not option.get("required")}
    found = [f"{name}: required, yet has a default" for name in public.keys() & (options.keys() - optional.keys())]
    found += [f"{name}: in defaults/main.yml, not in the specs" for name in public.keys() - options.keys()]
    found += [f"{name}: in the specs, not in defaults/main.yml" for name in optional.keys() - public.keys()]
    found += [
        f"{name}: default {optional[name].get('default')!r} in the specs, {public[name]!r} in defaults/main.yml"
        for name in optional.keys() & public.keys()
        if repr(optional[name].get("default")) != repr(public[name])
    ]
    return sorted(found)


def undescribed(text: str) -> list[str]:
    """The top-level names of a YAML text that have no comment in the line above."""
    lines = text.splitlines()
    return [
        line.partition(":")[0]
        for above, line in zip(["", *lines], lines, strict=False)
        if re.match(r"[A-Za-z_]\w*:", line) and not above.startswith("# ")
    ]


def test_there_are_roles() -> None:
    assert ROLES


@pytest.mark.parametrize("role", ROLES)
def test_specs_equal_defaults(role: str) -> None:
    specs = read(role, "meta/argument_specs.yml")["argument_specs"]
    assert differences(specs["main"].get("options", {}), read(role, "defaults/main.yml")) == []


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_and_option_is_described(role: str) -> None:
    for entry, spec in read(role, "meta/argument_specs.yml")["argument_specs"].items():
        assert spec.get("short_description"), entry
        assert (REPOSITORY / "roles" / role / "tasks" / f"{entry}.yml").exists(), f"{entry} has no tasks"
        for name, option in spec.get("options", {}).items():
            assert option.get("description"), f"{entry}: {name}"
            assert option.get("type"), f"{entry}: {name} has no type"


@pytest.mark.parametrize("role", ROLES)
def test_every_default_has_a_comment_above(role: str) -> None:
    path = REPOSITORY / "roles" / role / "defaults/main.yml"
    assert (undescribed(path.read_text()) if path.exists() else []) == []


@pytest.mark.parametrize("role", ROLES)
def test_names_carry_the_role_and_internals_two_underscores(role: str) -> None:
    options = {
        name
        for spec in read(role, "meta/argument_specs.yml")["argument_specs"].values()
        for name in spec.get("options", {})
    }
    # voices_seat and voices_seats: the dict keyed by seat name is the role's plural.
    public = re.compile(rf"{re.escape(role)}(s|_\w+)")
    assert [name for name in options if not public.fullmatch(name)] == []
    internal = [name for name in read(role, "defaults/main.yml") if name not in options]
    internal += [name for name in read(role, "vars/main.yml")]
    assert [name for name in internal if not name.startswith(f"__{role}")] == []


# The checks above find what they are there for.


def test_every_kind_of_difference_is_found() -> None:
    options = {"r_a": {"default": 1}, "r_b": {"default": True}, "r_c": {}, "r_d": {"required": True}}
    defaults = {"r_a": "1", "r_b": True, "r_d": 4, "r_e": 5, "__r_f": 6}
    assert differences(options, defaults) == [
        "r_a: default 1 in the specs, '1' in defaults/main.yml",
        "r_c: in the specs, not in defaults/main.yml",
        "r_d: required, yet has a default",
        "r_e: in defaults/main.yml, not in the specs",
    ]


def test_a_default_without_a_comment_is_found() -> None:
    assert undescribed("---\n# Why.\na: 1\nb:\n  c: 2\n\n# Gone.\n\nd: 3\n") == ["b", "d"]
