"""What a name in an engine's source can stand for. Pure."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .source_tree import Module, Step


@dataclass(frozen=True)
class Class:
    """A class of the source. ``local``: what the names of the function in whose body it stands were in that call."""

    module: Module = field(repr=False)
    node: ast.ClassDef = field(repr=False)
    name: str
    local: tuple[tuple[str, Thing], ...] = ()

    def __hash__(self) -> int:
        return id(self.node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Class) and self.node is other.node and self.local == other.local

    @property
    def line(self) -> int:
        """Where it begins, its decorators included, which is where Python too says that it begins."""
        return min([self.node.lineno, *(one.lineno for one in self.node.decorator_list)])

    @property
    def place(self) -> str:
        return f"{self.module.path}:{self.line}"


@dataclass(frozen=True)
class Package:
    """A module of the source."""

    module: Module = field(compare=False)


@dataclass(frozen=True)
class Foreign:
    """Something of a package that is not looked into, such as ``torch.nn.Module``."""

    name: str


@dataclass(frozen=True)
class Function:
    """A function of the source."""

    module: Module = field(compare=False)
    node: ast.FunctionDef | ast.AsyncFunctionDef = field(compare=False)


@dataclass(frozen=True)
class Assigned:
    """A value: all steps that bind or change its name, in order, and where they stand."""

    name: str
    steps: tuple[Step, ...] = field(compare=False)
    module: Module = field(compare=False)
    owner: Class | None = None


@dataclass(frozen=True)
class Lost:
    """What could not be followed, and why."""

    why: str


Thing = Class | Package | Foreign | Function | Assigned | Lost
