"""Options of a dict whose keys are names: what a filter hands over is validated without what it carries."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.voices.options import nearest, plain, typed


class Carried(dict[str, Any]):
    """As Ansible's own dict in a filter: its copy would take the templating engine along."""

    def __deepcopy__(self, memo: object) -> Carried:
        raise AssertionError("copied with all that it carries")


class Text(str):
    """A text that knows where it comes from."""


class Number(int):
    """A number that does."""


def test_a_container_is_never_copied_with_what_it_carries() -> None:
    spec = {"voices": {"type": "dict", "default": {}}, "names": {"type": "list", "elements": "str"}}
    given = Carried(voices=Carried(a=Carried(b=Text("c"))), names=[Text("d")])
    values, errors = typed("seat x", spec, given)
    assert errors == []
    assert values == {"voices": {"a": {"b": "c"}}, "names": ["d"]}
    assert type(values["voices"]["a"]) is dict
    assert type(values["voices"]["a"]["b"]) is type(values["names"][0]) is str


def test_plain_keeps_values_and_their_kinds() -> None:
    made = plain({Text("k"): (Number(3), True, None, 1.5, Text("x"), object)})
    assert made == {"k": [3, True, None, 1.5, "x", object]}
    assert [type(one) for one in made["k"][:5]] == [int, bool, type(None), float, str]
    assert [type(one) for one in made] == [str]


def test_an_unknown_option_is_answered_with_the_nearest_or_with_all() -> None:
    assert nearest("prot", ["port", "bind"]) == "; did you mean 'port'?"
    assert nearest("zzz", ["port", "bind"]) == "; known are bind, port"
