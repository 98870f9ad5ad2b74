"""Every module's DOCUMENTATION, EXAMPLES and RETURN say what its ARGUMENT_SPEC and its code do."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (REPOSITORY / "library").glob("*.py") if path.stem != "__init__")
ATTRIBUTES = ("check_mode", "diff_mode", "idempotent")
SUPPORT = ("full", "partial", "none", "N/A")
TYPES = {"str", "int", "float", "bool", "list", "dict", "path", "raw", "bytes", "bits", "json", "jsonarg"}
# What an option means to Ansible; every other key of a spec (no_log, options) is compared by its own rule.
COMPARED = {"type": "str", "required": False, "default": None, "choices": None, "elements": None}
# Ansible itself warns about such names without no_log; here each says yes or no on purpose.
SECRET = re.compile(r"(?:^|_)(?:key|pass(?:word|phrase)?|secret|token)(?:_|$)")
# exit_json and fail_json have these from Ansible, documented by it.
COMMON_RESULTS = {"changed", "diff", "msg", "exception", "invocation", "skipped", "warnings"}


def load(name: str) -> Any:
    """The module's Python module (tests/conftest.py makes library/ and the core importable)."""
    return importlib.import_module(name)


def document(name: str, part: str) -> Any:
    """DOCUMENTATION, EXAMPLES or RETURN as data."""
    return yaml.safe_load(getattr(load(name), part))


def option_differences(documented: Mapping[str, Any], spec: Mapping[str, Any], where: str = "") -> list[str]:
    """Where documented options and an argument spec disagree, suboptions included."""
    found = [f"{where}{name}: documented, not in the spec" for name in documented.keys() - spec.keys()]
    found += [f"{where}{name}: in the spec, not documented" for name in spec.keys() - documented.keys()]
    for name in sorted(documented.keys() & spec.keys()):
        doc, arg = documented[name], spec[name]
        found += [
            f"{where}{name}: {key} is {doc.get(key)!r} in the docs and {arg.get(key)!r} in the spec"
            for key, absent in COMPARED.items()
            if not _same(doc.get(key, absent), arg.get(key, absent))
        ]
        if doc.get("type", "str") not in TYPES:
            found.append(f"{where}{name}: type {doc['type']!r} is none of Ansible's")
        if not doc.get("description"):
            found.append(f"{where}{name}: has no description")
        if sorted(doc.get("aliases", [])) != sorted(arg.get("aliases", [])):
            found.append(f"{where}{name}: aliases differ")
        if "no_log" in doc and bool(doc["no_log"]) != bool(arg.get("no_log")):
            found.append(f"{where}{name}: no_log differs")
        if SECRET.search(name) and "no_log" not in arg:
            found.append(f"{where}{name}: its name sounds secret and the spec says neither no_log: true nor false")
        if arg.get("no_log") and arg.get("default"):
            found.append(f"{where}{name}: is no_log and has a default, which the docs show")
        found += option_differences(doc.get("suboptions", {}), arg.get("options", {}), f"{where}{name}.")
    return found


def _same(one: object, other: object) -> bool:
    """Equal, and of one kind: 60 and 60.0 are one default, true and 1 are not."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def example_problems(name: str, examples: Any, spec: Mapping[str, Any]) -> list[str]:
    """What is wrong with a module's examples: no use of the module, or options it does not know or misses."""
    if not isinstance(examples, list):
        return ["EXAMPLES is no list of tasks"]
    uses = [task for task in _tasks(examples) if name in task]
    found = [] if uses else [f"no example uses {name}"]
    for task in uses:
        label = task.get("name", "(unnamed)")
        if "name" not in task:
            found.append(f"example {task[name]}: has no name")
        found += [f"example {label!r}: {problem}" for problem in _argument_problems(task[name] or {}, spec)]
    return found


def _argument_problems(given: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    for option, value in given.items():
        if option not in spec:
            yield f"unknown option {option}"
            continue
        choices = spec[option].get("choices")
        if choices and "{{" not in str(value) and value not in choices:
            yield f"{option}={value!r} is none of {choices}"
        inner = spec[option].get("options")
        entries = value if isinstance(value, list) else [value]
        for entry in entries if inner else []:
            yield from (f"{option}: {problem}" for problem in _argument_problems(entry, inner))
    yield from (f"misses required {name}" for name, arg in spec.items() if arg.get("required") and name not in given)


def _tasks(entries: list[Any]) -> Iterator[dict[str, Any]]:
    """Every task of an EXAMPLES list, those in blocks and plays too."""
    for entry in entries:
        yield entry
        for section in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks"):
            yield from _tasks(entry.get(section, []))


def return_problems(returns: Any, source: str) -> list[str]:
    """What is wrong with RETURN, given the module's source."""
    returns = returns or {}
    found = []
    for key, value in returns.items():
        found += [f"{key}: has no {part}" for part in ("description", "returned", "type") if not value.get(part)]
        if value.get("type") not in TYPES:
            found.append(f"{key}: type {value.get('type')!r} is none of Ansible's")
    if "as_dicts" in source and "actions" not in returns:
        found.append("the module has a plan and RETURN no actions")
    found += [
        f"{key}: returned, not in RETURN" for key in sorted(returned_keys(source) - set(returns) - COMMON_RESULTS)
    ]
    return found


def returned_keys(source: str) -> set[str]:
    """The result's keys that can be read off the source: keywords of exit_json, and the dict that run() returns."""
    keys: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "exit_json":
            keys |= {keyword.arg for keyword in node.keywords if keyword.arg}
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            for statement in ast.walk(node):
                if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Dict):
                    keys |= {k.value for k in statement.value.keys if isinstance(k, ast.Constant)}
    return keys


def test_there_are_modules() -> None:
    assert MODULES


@pytest.mark.parametrize("name", MODULES)
def test_documentation_heads(name: str) -> None:
    doc = document(name, "DOCUMENTATION")
    assert doc["module"] == name
    assert [key for key in ("short_description", "description", "author", "options") if not doc.get(key)] == []
    assert not doc["short_description"].endswith(".")
    assert {key: doc.get("attributes", {}).get(key, {}).get("support") for key in ATTRIBUTES} == dict.fromkeys(
        ATTRIBUTES, "full"
    ), "a module says how far it supports check mode and diff and whether it is idempotent"
    assert all(doc["attributes"][key].get("description") for key in ATTRIBUTES)


@pytest.mark.parametrize("name", MODULES)
def test_options_equal_the_argument_spec(name: str) -> None:
    assert option_differences(document(name, "DOCUMENTATION")["options"], load(name).ARGUMENT_SPEC) == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_use_known_options(name: str) -> None:
    assert example_problems(name, document(name, "EXAMPLES"), load(name).ARGUMENT_SPEC) == []


@pytest.mark.parametrize("name", MODULES)
def test_return_names_every_result(name: str) -> None:
    source = (REPOSITORY / f"library/{name}.py").read_text()
    assert return_problems(document(name, "RETURN"), source) == []


@pytest.mark.parametrize("name", MODULES)
def test_main_uses_the_argument_spec_in_check_mode_too(name: str) -> None:
    source = (REPOSITORY / f"library/{name}.py").read_text()
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "AnsibleModule"
    ]
    assert len(calls) == 1
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in calls[0].keywords}
    spec = ast.unparse(calls[0].args[0]) if calls[0].args else keywords["argument_spec"]
    assert spec == "ARGUMENT_SPEC"
    assert keywords["supports_check_mode"] == "True"


def test_ansible_doc_renders_every_module() -> None:
    run = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-doc")), "--json", "--module-path", "library", *MODULES],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert sorted(json.loads(run.stdout)) == MODULES, run.stderr
    assert "[WARNING]" not in run.stderr


# The checks above find what they are there for.


def test_a_wrong_default_type_choice_and_missing_option_are_found() -> None:
    documented = {
        "a": {"description": "x", "default": 1},
        "b": {"description": "x", "type": "list", "elements": "str"},
        "c": {"description": "x", "choices": ["p", "q"]},
        "d": {"description": "x"},
        "f": {"description": "x", "type": "bool", "default": True},
        "g": {"type": "float", "default": 60, "description": "x"},
    }
    spec: dict[str, Any] = {
        "a": {"default": 2},
        "b": {"type": "list", "elements": "int"},
        "c": {"choices": ["p"]},
        "e": {},
        "f": {"type": "bool", "default": 1},
        "g": {"type": "float", "default": 60.0},
    }
    found = "\n".join(sorted(option_differences(documented, spec)))
    assert [line.split(" ", 2)[:2] for line in found.splitlines()] == [
        ["a:", "default"],
        ["b:", "elements"],
        ["c:", "choices"],
        ["d:", "documented,"],
        ["e:", "in"],
        ["f:", "default"],
    ]


def test_suboptions_and_silent_secrets_are_found() -> None:
    documented = {"o": {"description": "x", "type": "dict", "suboptions": {"api_key": {"description": "x"}}}}
    spec = {"o": {"type": "dict", "options": {"api_key": {"required": True}}}}
    assert [line.split(": ")[:2] for line in option_differences(documented, spec)] == [
        ["o.api_key", "required is None in the docs and True in the spec"],
        ["o.api_key", "its name sounds secret and the spec says neither no_log"],
    ]


def test_examples_with_unknown_and_missing_options_are_found() -> None:
    spec = {"path": {"required": True}, "state": {"choices": ["up", "down"]}}
    examples = [{"block": [{"name": "x", "thing": {"pth": "/", "state": "left"}}]}]
    assert example_problems("thing", examples, spec) == [
        "example 'x': unknown option pth",
        "example 'x': state='left' is none of ['up', 'down']",
        "example 'x': misses required path",
    ]
    assert example_problems("other", examples, spec) == ["no example uses other"]


def test_undocumented_results_are_found() -> None:
    source = (
        "def run():\n    return {'changed': True, 'live': {}}\ndef main():\n    m.exit_json(actions=as_dicts(x), pid=1)"
    )
    assert return_problems({"live": {"type": "dict", "returned": "success"}}, source) == [
        "live: has no description",
        "the module has a plan and RETURN no actions",
        "actions: returned, not in RETURN",
        "pid: returned, not in RETURN",
    ]
