"""Functions of an engine's source that give classes, followed as far as their text tells. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .source_conditions import decide
from .source_things import Class, Function, Lost, Thing
from .source_tree import Module, absolute

if TYPE_CHECKING:
    from .source_names import Names


class LazyModule:
    """A module's own ``__getattr__(name)``, followed as far as it imports, compares the name and returns."""

    def __init__(self, names: Names, module: Module, node: ast.FunctionDef, name: str) -> None:
        self.names, self.module, self.node, self.name = names, module, node, name
        self.parameter = node.args.args[0].arg if node.args.args else ""
        self.known: dict[str, Thing] = {}

    def run(self) -> Thing:
        """What it returns for the name."""
        return self.body(self.node.body) or Lost(f"{self.module.path} has no {self.name}")

    def body(self, statements: list[ast.stmt]) -> Thing | None:
        for node in statements:
            if isinstance(node, ast.ImportFrom):
                target = absolute(self.module.name, self.module.package, node)
                for alias in node.names:
                    self.known[alias.asname or alias.name] = self.names.imported(target, alias.name)
            elif isinstance(node, ast.If):
                found = self.condition(node.test)
                if found is None:
                    return self.lost(node)
                returned = self.body(node.body if found else node.orelse)
                if returned is not None:
                    return returned
            elif isinstance(node, ast.Return) and node.value is not None:
                return self.value(node.value)
            elif isinstance(node, ast.Raise):
                text = ast.unparse(node)
                return Lost(f"{self.module.path}:{node.lineno}: {text:.120}")
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                return self.lost(node)
        return None

    def lost(self, node: ast.AST) -> Lost:
        line = getattr(node, "lineno", 0)
        return Lost(f"{self.module.path}:{line}: {ast.unparse(node):.80} is decided at run time")

    def condition(self, test: ast.expr) -> bool | None:
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and ast.unparse(test.left) == self.parameter:
            right = self.plain(test.comparators[0])
            operator = test.ops[0]
            if right is not None and isinstance(operator, ast.Eq | ast.NotEq):
                return (right == self.name) is isinstance(operator, ast.Eq)
            if right is not None and isinstance(operator, ast.In | ast.NotIn):
                return (self.name in right) is isinstance(operator, ast.In)
        return decide(test, self.names.tree.platform)

    def plain(self, node: ast.expr) -> Any:
        if ast.unparse(node) == "globals()":
            return self.module.scope.steps
        if isinstance(node, ast.Name):
            steps = self.module.scope.bound(node.id)
            value = steps[0].node.value if steps and isinstance(steps[0].node, ast.Assign) else None
            return None if value is None else self.plain(value)
        try:
            return ast.literal_eval(node)
        except ValueError:
            pass
        if isinstance(node, ast.Dict):  # a table of modules or classes: its keys
            return {self.plain(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
        return None

    def value(self, node: ast.expr) -> Thing:
        if isinstance(node, ast.Name) and node.id in self.known:
            return self.known[node.id]
        if isinstance(node, ast.Attribute):
            return self.names.attribute(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == self.parameter:
            table = self.plain(node.value)
            if isinstance(table, Mapping) and isinstance(table.get(self.name), ast.expr):
                return self.value(table[self.name])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) >= 2:
            attribute = node.args[1]
            if ast.unparse(attribute) == self.parameter:
                return self.names.attribute(self.value(node.args[0]), self.name)
        found = self.names.expression(node, self.module)
        return found if not isinstance(found, Lost) else self.lost(node)


def returned(names: Names, function: Function, given: list[Thing]) -> Thing:
    """What a call with these positional arguments returns, for a function that returns a class it was given or defines.

    A return under a condition is passed over: such functions return the class that they were given there, and what they
    define below derives from it.
    """
    module, node = function.module, function.node
    local: dict[str, Thing] = dict(zip((one.arg for one in node.args.args), given, strict=False))
    for statement in node.body:
        if isinstance(statement, ast.ImportFrom):
            target = absolute(module.name, module.package, statement)
            for alias in statement.names:
                local[alias.asname or alias.name] = names.imported(target, alias.name)
        elif isinstance(statement, ast.ClassDef):
            local[statement.name] = Class(module, statement, statement.name, tuple(local.items()))
        elif isinstance(statement, ast.Return) and statement.value is not None:
            found = names.expression(statement.value, module, None, local)
            if isinstance(found, Class):
                return found
            break
    return Lost(f"{module.path}:{node.lineno}: what {node.name}() returns is decided at run time")
