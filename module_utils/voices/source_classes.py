"""The classes of an engine's source: their bases in Python's order, and what their attributes hold. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .source_names import Names
from .source_operations import Unreadable
from .source_things import Assigned, Class, Foreign, Function, Lost, Thing
from .source_tree import Tree, in_force
from .source_values import Values

Base = Class | Foreign | Lost


@dataclass(frozen=True)
class Attribute:
    """A class's attribute: its value, or why it cannot be read; the class that sets it, and where."""

    owner: Class
    line: int
    value: Any = None
    unreadable: str = ""
    guards: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.owner.module.path}:{self.line}"


@dataclass(frozen=True)
class SelfChange:
    """A statement in a method that sets or changes an attribute of the made model."""

    owner: Class
    method: str
    line: int
    text: str
    conditions: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.owner.module.path}:{self.line}"


class Classes:
    """Questions about classes, each answered once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.names = Names(tree)
        self.values = Values(self)
        self._orders: dict[Class, list[Base]] = {}
        self._attributes: dict[tuple[Class, str], Attribute | None] = {}

    def find(self, module: str, name: str) -> Thing:
        """The class ``name`` of ``module``, wherever it is imported from."""
        found = self.tree.module(module)
        return self.names.member(found, name) if found else Lost(f"{module} is not in the source")

    def order(self, cls: Class) -> list[Base]:
        """The class and its bases in the order in which Python looks (C3), foreign and lost ones among them."""
        if cls not in self._orders:
            self._orders[cls] = [cls]  # what a class that names itself as base gets
            bases = self.bases(cls)
            kept = [base for base in bases if not (isinstance(base, Foreign) and base.name in _NO_BASES)]
            orders: list[list[Base]] = [self.order(base) if isinstance(base, Class) else [base] for base in kept]
            self._orders[cls] = [cls, *merged([*orders, list(kept)])]
        return self._orders[cls]

    def bases(self, cls: Class) -> list[Base]:
        """What stands between the brackets of the class statement."""
        return [self._base(node, cls) for node in cls.node.bases]

    def _base(self, node: ast.expr, cls: Class) -> Base:
        found = self.names.expression(node, cls.module, None, dict(cls.local))
        if isinstance(found, Class | Foreign | Lost):
            return found
        return Lost(f"{cls.place}: base {ast.unparse(node):.60} is no class that the text tells")

    def own(self, cls: Class) -> list[Class]:
        """The classes among ``order`` whose text is there."""
        return [base for base in self.order(cls) if isinstance(base, Class)]

    def lost(self, cls: Class) -> list[str]:
        """Why some bases could not be followed."""
        return [base.why for base in self.order(cls) if isinstance(base, Lost)]

    def attribute(self, cls: Class, name: str) -> Attribute | None:
        """The class attribute as ``getattr(cls, name)`` finds it; None when no class sets it."""
        key = (cls, name)
        if key in self._attributes:
            return self._attributes[key]
        owners = (found for one in self.own(cls) if (found := self._own_attribute(one, name)))
        attribute = next(owners, None)
        if not self.values.busy:  # in the midst of a statement the value is that of before it
            self._attributes[key] = attribute
        return attribute

    def _own_attribute(self, cls: Class, name: str) -> Attribute | None:
        inside = self.tree.class_scope(cls.module, cls.node).steps.get(name, [])
        # After the class, its module may set the attribute: Cls.attribute = ...
        outside = cls.module.scope.steps.get(f"{cls.name}.{name}", [])
        every = self.values.before([*inside, *outside])
        steps = in_force(every)
        if not steps:
            return None
        owner = None if steps[0] in outside else cls
        guards = tuple(f"{cls.module.path}:{step.line}: if {step.guard}" for step in steps if step.guard)
        line = steps[0].line
        thing = self.names.bound(cls.module, name, steps, owner)
        if isinstance(thing, Function | Class):
            return Attribute(cls, line, unreadable=f"{cls.module.path}:{line}: {name} is made by a function")
        if not isinstance(thing, Foreign | Lost):
            thing = Assigned(name, tuple(every), cls.module, owner)
        try:
            return Attribute(cls, line, self.values.thing(thing, f"{cls.module.path}:{line}: {name}"), guards=guards)
        except Unreadable as error:
            return Attribute(cls, line, unreadable=str(error), guards=guards)

    def method(self, cls: Class, name: str) -> tuple[Class, ast.FunctionDef] | None:
        """The method as an instance finds it, and the class that defines it."""
        for one in self.own(cls):
            for step in self.tree.class_scope(one.module, one.node).bound(name):
                if isinstance(step.node, ast.FunctionDef):
                    return one, step.node
        return None

    def changes(self, cls: Class, attribute: str) -> list[SelfChange]:
        """Where methods of the class and its bases set or change ``self.attribute``, besides what they overrode."""
        found: list[SelfChange] = []
        overridden: set[str] = set()
        for one in self.own(cls):
            methods = [node for node in one.node.body if isinstance(node, ast.FunctionDef)]
            if f".{attribute}" in one.module.text:  # most files never say it, and walking a class is slow
                for method in methods:
                    if method.name not in overridden or method.name == "__init__":
                        found += _changes(one, method, attribute)
            overridden |= {method.name for method in methods}
        return found

    def children(self, cls: Class) -> Iterator[tuple[str, ast.Call, Class]]:
        """(attribute, call, the class in whose __init__ it stands) of each ``self.attribute = Something(...)``."""
        for one in self.own(cls):
            for method in one.node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    for node in ast.walk(method):
                        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                            for target in node.targets:
                                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                                    yield target.attr, node.value, one


_NO_BASES = frozenset(("typing.Generic", "typing_extensions.Generic", "object"))


def merged(orders: Sequence[list[Base]]) -> list[Base]:
    """C3's merge. Where the orders contradict each other, which a real class cannot, the first head goes on."""
    left = [list(order) for order in orders if order]
    result: list[Base] = []
    while left:
        heads = [order[0] for order in left]
        free = (head for head in heads if not any(head in order[1:] for order in left))
        head = next(free, heads[0])
        result.append(head)
        left = [[one for one in order if one != head] for order in left]
        left = [order for order in left if order]
    return result


def _changes(cls: Class, method: ast.FunctionDef, attribute: str) -> list[SelfChange]:
    found: list[SelfChange] = []

    def visit(node: ast.AST, conditions: tuple[str, ...]) -> None:
        if isinstance(node, ast.If):
            text = ast.unparse(node.test)
            for part in node.body:
                visit(part, (*conditions, text))
            for part in node.orelse:
                visit(part, (*conditions, f"not ({text})"))
            return
        if isinstance(node, ast.stmt) and _changes_it(node, attribute):
            found.append(SelfChange(cls, method.name, node.lineno, ast.unparse(node), conditions))
            return
        for child in ast.iter_child_nodes(node):
            visit(child, conditions)

    for statement in method.body:
        visit(statement, ())
    return found


def _changes_it(node: ast.stmt, attribute: str) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute) and function.attr in _CHANGING:
            targets = [function.value]
    for target in targets:
        named = target.value if isinstance(target, ast.Subscript) else target
        if isinstance(named, ast.Attribute) and named.attr == attribute and ast.unparse(named.value) in ("self", "cls"):
            return True
    return False


_CHANGING = frozenset(("update", "pop", "clear", "setdefault", "append", "extend", "insert", "remove"))
