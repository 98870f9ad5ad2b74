"""What a name in an engine's source stands for, followed over modules. Reads trees; runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from .source_conditions import decide
from .source_functions import LazyModule, returned
from .source_things import Assigned, Class, Foreign, Function, Lost, Package, Thing
from .source_tree import Module, Step, Tree

_BUILTIN = frozenset(("object", "type", "dict", "list", "tuple", "set", "str", "int", "bool", "float", "Exception"))
_DEEPEST = 40
_NOTHING: Mapping[str, Thing] = {}


class Names:
    """Follows names. ``guards`` collects the conditions that the text could not decide on the way."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._members: dict[tuple[str, str], Thing] = {}
        self._guards: dict[tuple[str, str], list[str]] = {}
        self._depth = 0

    def member(self, module: Module, name: str) -> Thing:
        """What ``name`` is in ``module``."""
        key = (module.name, name)
        if key not in self._members:
            self._members[key] = Lost(f"{module.path}: {name} refers to itself")
            self._members[key] = self._member(module, name)
        return self._members[key]

    def guards(self, module: Module, name: str) -> list[str]:
        """The conditions under which ``name`` in ``module`` is what ``member`` says."""
        return [f"{module.path}:{one.line}: if {one.guard}" for one in module.scope.bound(name) if one.guard]

    def _member(self, module: Module, name: str) -> Thing:
        steps = module.scope.bound(name)
        if steps:
            return self.bound(module, name, steps, None)
        for star in reversed(module.scope.stars):
            target = self.tree.module(star)
            if target is not None and not name.startswith("_"):
                found = self.member(target, name)
                if not isinstance(found, Lost):
                    return found
        if module.package:
            inner = self.tree.module(f"{module.name}.{name}")
            if inner is not None:
                return Package(inner)
        lazily = module.scope.bound("__getattr__")
        if lazily and isinstance(lazily[-1].node, ast.FunctionDef):
            return LazyModule(self, module, lazily[-1].node, name).run()
        if name in _BUILTIN:
            return Foreign(name)
        return Lost(f"{module.path} has no {name}")

    def bound(self, module: Module, name: str, steps: list[Step], owner: Class | None) -> Thing:
        """What the steps that bind ``name`` make of it."""
        step = steps[0]
        if step.kind == "class" and isinstance(step.node, ast.ClassDef):
            return Class(module, step.node, f"{owner.name}.{step.node.name}" if owner else step.node.name)
        if step.kind == "def" and isinstance(step.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return Function(module, step.node)
        if step.kind == "import":
            return self.imported(step.module, step.attribute)
        if step.kind == "unknown":
            return Lost(f"{module.path}:{step.line}: {name} is bound in a way that the text does not tell")
        value = step.node.value if isinstance(step.node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Name | ast.Attribute | ast.Call) and len(steps) == 1:
            found = self.expression(value, module, owner)
            if not isinstance(found, Lost):
                return found
        scope = self.tree.class_scope(module, owner.node) if owner else module.scope
        every = scope.steps.get(name, [])
        return Assigned(name, tuple(every if step in every else steps), module, owner)

    def imported(self, target: str, attribute: str) -> Thing:
        """What ``from target import attribute`` (or ``import target``) gives."""
        module = self.tree.module(target)
        if module is None:
            if target.partition(".")[0] == "vllm":
                return Lost(f"{target} is not in the source")
            return Foreign(f"{target}.{attribute}" if attribute else target)
        return self.member(module, attribute) if attribute else Package(module)

    def expression(
        self, node: ast.expr, module: Module, owner: Class | None = None, local: Mapping[str, Thing] = _NOTHING
    ) -> Thing:
        """What an expression in ``module`` stands for: in the body of ``owner``, in a function with ``local`` names."""
        if self._depth > _DEEPEST:
            return Lost(f"{module.path}:{node.lineno}: names refer to each other without end")
        self._depth += 1
        try:
            return self._expression(node, module, owner, local)
        finally:
            self._depth -= 1

    def _expression(self, node: ast.expr, module: Module, owner: Class | None, local: Mapping[str, Thing]) -> Thing:
        if isinstance(node, ast.Name):
            if node.id in local:
                return local[node.id]
            if owner is not None:
                steps = self.tree.class_scope(module, owner.node).bound(node.id)
                if steps:
                    return self.bound(module, node.id, steps, owner)
            return self.member(module, node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.expression(node.value, module, owner, local), node.attr)
        if isinstance(node, ast.Subscript):  # Base[T]
            return self.expression(node.value, module, owner, local)
        if isinstance(node, ast.IfExp):
            found = decide(node.test, self.tree.platform)
            if found is not None:
                return self.expression(node.body if found else node.orelse, module, owner, local)
        if isinstance(node, ast.Call):
            function = self.expression(node.func, module, owner, local)
            if isinstance(function, Function):
                given = [self.expression(argument, module, owner, local) for argument in node.args]
                return returned(self, function, given)
        return Lost(f"{module.path}:{node.lineno}: {ast.unparse(node):.80} is made at run time")

    def attribute(self, thing: Thing, name: str) -> Thing:
        """``thing.name`` for modules, classes and what is foreign."""
        if isinstance(thing, Package):
            return self.member(thing.module, name)
        if isinstance(thing, Foreign):
            return Foreign(f"{thing.name}.{name}")
        if isinstance(thing, Class):
            steps = self.tree.class_scope(thing.module, thing.node).bound(name)
            if steps:
                return self.bound(thing.module, name, steps, thing)
            return Lost(f"{thing.place}: {thing.name} itself has no {name}")
        return thing if isinstance(thing, Lost) else Lost(f".{name} of a value")
