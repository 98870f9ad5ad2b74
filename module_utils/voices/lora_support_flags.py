"""The options that an engine's server takes, by its source, and keys of engine.yaml that are none. Runs nothing."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .lora_support_engine import Engine
from .plan import VoicesError
from .source_things import Class
from .source_tree import Module

_ENGINE_ARGUMENTS = "vllm.engine.arg_utils"
_SERVER_ARGUMENTS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")


@dataclass(frozen=True)
class UnknownFlag:
    """A key that this engine does not have under this very name. ``nearest`` is "" where nothing is like it."""

    flag: str
    why: str
    nearest: str

    def line(self) -> str:
        """For a person."""
        hint = f"; {self.nearest} is the nearest" if self.nearest else ""
        if self.why == "abbreviation":
            hint = f", which the engine takes for {self.nearest}: write that, because a later version may not"
        return f"{self.flag} is {_WORDS[self.why]}{hint}"


_WORDS = {"unknown": "no option of this engine", "abbreviation": "an abbreviation"}


class Options:
    """The server's long options without their dashes: ``known``, and the ``negative`` ones (``no-enable-lora``)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        module = engine.tree.module(_ENGINE_ARGUMENTS)
        server = next(filter(None, map(engine.tree.module, _SERVER_ARGUMENTS)), None)
        if module is None or server is None:
            where = _ENGINE_ARGUMENTS if module is None else " or ".join(_SERVER_ARGUMENTS)
            raise VoicesError(
                f"{engine.name} in {engine.tree.source.where} has no {where}: this version is not known here"
            )
        self.modules = (module, server)
        self.server = server

    @cached_property
    def known(self) -> frozenset[str]:
        """Every long option."""
        calls = (argument for module in self.modules for call in _calls(module) for argument in call.args)
        looped = (one for module in self.modules for one in _looped(module))
        named = set(_texts((*calls, *looped)))
        fields = {name.replace("_", "-") for name, _ in self._server_fields()}
        return frozenset({name[2:] for name in named if name.startswith("--")} | fields)

    @cached_property
    def negative(self) -> frozenset[str]:
        """Every ``no-`` form: argparse gives one to each boolean option."""
        found = {name.replace("_", "-") for name, node in self._server_fields() if _is_boolean(node)}
        for module in self.modules:
            sources = self._field_sources(module)
            for call in _calls(module):
                names = [text[2:] for text in _texts(call.args) if text.startswith("--")]
                if names and self._is_boolean_call(module, call, sources):
                    found.update(names)
        return frozenset(f"no-{name}" for name in found)

    def _server_fields(self) -> Iterator[tuple[str, ast.expr]]:
        """The fields of FrontendArgs and its bases, each of which is an option."""
        thing = self.engine.classes.names.member(self.server, "FrontendArgs")
        for cls in self.engine.classes.own(thing) if isinstance(thing, Class) else ():
            yield from _fields(cls)

    def _field_sources(self, module: Module) -> dict[str, str]:
        """{model_kwargs: ModelConfig} of each ``model_kwargs = get_kwargs(ModelConfig)``."""
        found = {}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.value.args) == 1:
                target, argument = node.targets[0], node.value.args[0]
                if ast.unparse(node.value.func) == "get_kwargs" and isinstance(target, ast.Name):
                    found[target.id] = ast.unparse(argument)
        return found

    def _is_boolean_call(self, module: Module, call: ast.Call, sources: dict[str, str]) -> bool:
        for keyword in call.keywords:
            if keyword.arg == "action":
                return ast.unparse(keyword.value).endswith("BooleanOptionalAction")
            for node in ast.walk(keyword.value) if keyword.arg is None else ():
                if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    source = sources.get(ast.unparse(node.value), "")
                    thing = self.engine.classes.names.member(module, source) if source else None
                    if isinstance(thing, Class):
                        return self._field_is_boolean(thing, str(node.slice.value))
        return False

    def _field_is_boolean(self, cls: Class, name: str) -> bool:
        for owner in self.engine.classes.own(cls):
            for field, annotation in _fields(owner):
                if field == name:
                    return _is_boolean(annotation)
        return False


def _calls(module: Module) -> Iterator[ast.Call]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield node


def _texts(nodes: Iterable[ast.AST]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _looped(module: Module) -> Iterator[ast.AST]:
    """What a loop around ``add_argument`` goes over."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.For) and "add_argument(" in ast.unparse(node.body[0]):
            yield from ast.walk(node.iter)


def _fields(cls: Class) -> Iterator[tuple[str, ast.expr]]:
    for node in cls.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation = ast.unparse(node.annotation)
            if not annotation.startswith(("ClassVar", "typing.ClassVar", "InitVar")):
                yield node.target.id, node.annotation


def _is_boolean(annotation: ast.expr) -> bool:
    """Whether ``bool`` is one of the types; with ``str`` and None beside it the engine takes an optional text."""
    types = {part.strip() for part in _union(annotation)}
    return "bool" in types and types != {"bool", "str", "None"}


def _union(node: ast.expr) -> list[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_union(node.left), *_union(node.right)]
    if isinstance(node, ast.Subscript):
        name = ast.unparse(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in ("Annotated", "SkipValidation"):
            return _union(inner[0])
        if name in ("Union", "Optional"):
            return [one for part in inner for one in _union(part)] + (["None"] if name == "Optional" else [])
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.split("|")
    return [ast.unparse(node)]


def unknown_flags(options: Options, flags: Iterable[str]) -> list[UnknownFlag]:
    """The keys of ``flags`` that are no whole name of an option. Dashes and underscores are one, as for the engine."""
    found = []
    for flag in flags:
        name = flag.replace("_", "-").partition(".")[0]
        if name in options.known or (name.startswith("no-") and name in options.negative):
            continue
        every = options.known | (options.negative if name.startswith("no-") else frozenset())
        longer = sorted(one for one in every if name and one.startswith(name))
        if len(longer) == 1:
            found.append(UnknownFlag(flag, "abbreviation", longer[0]))
            continue
        close = difflib.get_close_matches(name, sorted(every), n=1, cutoff=0.6)
        found.append(UnknownFlag(flag, "unknown", longer[0] if longer else next(iter(close), "")))
    return found
