"""Values that an engine's source itself tells: literals, and what is put together from them. Runs nothing."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .source_operations import (
    BINARY,
    CHANGES,
    COMPARE,
    COPIES,
    FAILURES,
    MAKERS,
    METHODS,
    MOST_ITEMS,
    MOST_STEPS,
    Unreadable,
    copied,
    rooted,
)
from .source_things import Assigned, Class, Lost, Thing
from .source_tree import Module, Step, in_force

if TYPE_CHECKING:
    from .source_classes import Classes


class Values:
    """Works out values. Classes stand for themselves in them."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes
        self.busy: set[int] = set()
        self._steps = 0

    def named(self, module: Module, name: str) -> Any:
        """The value of a module's ``name``. Raises Unreadable."""
        return self.thing(self.classes.names.member(module, name), f"{module.path}: {name}")

    def thing(self, thing: Thing, where: str) -> Any:
        """The value that a name stands for. Raises Unreadable."""
        if isinstance(thing, Assigned):
            return self.assigned(thing)
        if isinstance(thing, Lost):
            raise Unreadable(thing.why)
        if isinstance(thing, Class):
            return thing
        raise Unreadable(f"{where} is no value that the text tells")

    def before(self, steps: Sequence[Step]) -> list[Step]:
        """The steps up to the statement that is being worked out, which may itself use the name."""
        at = next((at for at, step in enumerate(steps) if id(step.node) in self.busy), len(steps))
        return list(steps[:at])

    def assigned(self, thing: Assigned) -> Any:
        """The value after all its steps. Raises Unreadable."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise Unreadable(f"{thing.module.path}: too much to work out")
        steps = in_force(self.before(thing.steps))
        if not steps:
            raise Unreadable(f"{thing.module.path}:{thing.steps[0].line}: {thing.name} refers to itself")
        first, *changes = steps
        work = _Work(self, thing.module, thing.owner)
        if first.kind == "value" and isinstance(first.node, ast.Assign | ast.AnnAssign) and first.node.value:
            with self._working(first):
                value = work.value(first.node.value, {})
        elif first.kind == "value" or first.kind == "unknown":
            raise Unreadable(f"{thing.module.path}:{first.line}: {thing.name} is bound in a way that is not told")
        else:
            names = self.classes.names
            value = copied(self.thing(names.bound(thing.module, thing.name, [first], thing.owner), thing.module.path))
        for step in changes:
            with self._working(step):
                value = self._changed(value, step, work, thing.module)
        return value

    @contextlib.contextmanager
    def _working(self, step: Step) -> Iterator[None]:
        self.busy.add(id(step.node))
        try:
            yield
        finally:
            self.busy.discard(id(step.node))

    def _changed(self, value: Any, step: Step, work: _Work, module: Module) -> Any:
        node = step.node
        where = f"{module.path}:{step.line}"
        if step.guard:
            raise Unreadable(f"{where}: is changed only if {step.guard}")
        try:
            if (
                isinstance(node, ast.AugAssign)
                and type(node.op) in BINARY
                and not isinstance(node.target, ast.Subscript)
            ):
                return BINARY[type(node.op)](value, work.value(node.value, {}))
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) and len(node.targets) == 1:
                value[work.value(node.targets[0].slice, {})] = work.value(node.value, {})
                return value
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = node.value.func
                if isinstance(function, ast.Attribute) and function.attr in CHANGES.get(type(value), ()):
                    getattr(value, function.attr)(*work.arguments(node.value, {}), **work.keywords(node.value, {}))
                    return value
        except FAILURES as error:
            raise Unreadable(f"{where}: {ast.unparse(node):.80}: {type(error).__name__}") from None
        raise Unreadable(f"{where}: {ast.unparse(node):.80} is worked out at run time")


class _Work:
    """Works out expressions of one module (and class body); ``local`` has the variables of comprehensions."""

    def __init__(self, values: Values, module: Module, owner: Class | None) -> None:
        self.values, self.module, self.owner = values, module, owner

    def value(self, node: ast.expr, local: Mapping[str, Any]) -> Any:
        try:
            return self._value(node, local)
        except FAILURES as error:
            line, text = node.lineno, ast.unparse(node)
            raise Unreadable(f"{self.module.path}:{line}: {text:.80}: {type(error).__name__}: {error}") from None

    def _value(self, node: ast.expr, local: Mapping[str, Any]) -> Any:
        found = _HANDLERS.get(type(node))
        if found is None:
            raise self.unreadable(node)
        return found(self, node, local)

    def unreadable(self, node: ast.expr) -> Unreadable:
        return Unreadable(f"{self.module.path}:{node.lineno}: {ast.unparse(node):.80} is worked out at run time")

    def name(self, node: ast.Name, local: Mapping[str, Any]) -> Any:
        if node.id in local:
            return local[node.id]
        return self.thing(node)

    def thing(self, node: ast.expr) -> Any:
        found = self.values.classes.names.expression(node, self.module, self.owner)
        return self.values.thing(found, f"{self.module.path}:{node.lineno}: {ast.unparse(node)}")

    def attribute(self, node: ast.Attribute, local: Mapping[str, Any]) -> Any:
        if not rooted(node, local):
            owner = self.values.classes.names.expression(node.value, self.module, self.owner)
            if isinstance(owner, Class):  # also what a base of it sets
                attribute = self.values.classes.attribute(owner, node.attr)
                if attribute is None or attribute.unreadable:
                    raise Unreadable(attribute.unreadable if attribute else f"{owner.place} has no {node.attr}")
                return copied(attribute.value)
            return self.thing(node)
        raise self.unreadable(node)

    def mapping(self, node: ast.Dict, local: Mapping[str, Any]) -> Any:
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                result.update(self.value(value, local))
            else:
                result[self.value(key, local)] = self.value(value, local)
        return result

    def items(self, nodes: Iterable[ast.expr], local: Mapping[str, Any]) -> list[Any]:
        result: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                result.extend(self.value(node.value, local))
            else:
                result.append(self.value(node, local))
        return result

    def binary(self, node: ast.BinOp, local: Mapping[str, Any]) -> Any:
        if type(node.op) not in BINARY:
            raise self.unreadable(node)
        return BINARY[type(node.op)](self.value(node.left, local), self.value(node.right, local))

    def compare(self, node: ast.Compare, local: Mapping[str, Any]) -> bool:
        left = self.value(node.left, local)
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, local)
            if type(kind) not in COMPARE:
                raise self.unreadable(node)
            if not COMPARE[type(kind)](left, right):
                return False
            left = right
        return True

    def logic(self, node: ast.BoolOp, local: Mapping[str, Any]) -> Any:
        decisive = isinstance(node.op, ast.Or)
        value: Any = not decisive
        for part in node.values:
            value = self.value(part, local)
            if bool(value) is decisive:
                break
        return value

    def unary(self, node: ast.UnaryOp, local: Mapping[str, Any]) -> Any:
        value = self.value(node.operand, local)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub):
            return -value
        raise self.unreadable(node)

    def arguments(self, node: ast.Call, local: Mapping[str, Any]) -> list[Any]:
        return self.items(node.args, local)

    def keywords(self, node: ast.Call, local: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, local)
            result.update(value if keyword.arg is None else {keyword.arg: value})
        return result

    def call(self, node: ast.Call, local: Mapping[str, Any]) -> Any:
        function = ast.unparse(node.func)
        if function in MAKERS:
            return MAKERS[function](*self.arguments(node, local), **self.keywords(node, local))
        if function in COPIES and len(node.args) == 1:
            return copied(self.value(node.args[0], local))
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, local)
            if node.func.attr in METHODS.get(type(owner), ()):
                return getattr(owner, node.func.attr)(*self.arguments(node, local))
        raise self.unreadable(node)

    def rounds(
        self, generators: list[ast.comprehension], local: Mapping[str, Any], each: Callable[[Mapping[str, Any]], None]
    ) -> None:
        if not generators:
            each(local)
            return
        first, *rest = generators
        for count, item in enumerate(self.value(first.iter, local)):
            if count > MOST_ITEMS:
                raise Unreadable(f"{self.module.path}: a comprehension without end")
            inner = {**local, **self.unpacked(first.target, item)}
            if all(self.value(test, inner) for test in first.ifs):
                self.rounds(rest, inner, each)

    def unpacked(self, target: ast.expr, item: Any) -> dict[str, Any]:
        if isinstance(target, ast.Name):
            return {target.id: item}
        if isinstance(target, ast.Tuple | ast.List):
            result: dict[str, Any] = {}
            for part, value in zip(target.elts, item, strict=True):
                result |= self.unpacked(part, value)
            return result
        raise self.unreadable(target)

    def dict_rounds(self, node: ast.DictComp, local: Mapping[str, Any]) -> dict[Any, Any]:
        result: dict[Any, Any] = {}

        def each(inner: Mapping[str, Any]) -> None:
            result[self.value(node.key, inner)] = self.value(node.value, inner)

        self.rounds(node.generators, local, each)
        return result

    def list_rounds(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, local: Mapping[str, Any]) -> list[Any]:
        result: list[Any] = []
        self.rounds(node.generators, local, lambda inner: result.append(self.value(node.elt, inner)))
        return result

    def choice(self, node: ast.IfExp, local: Mapping[str, Any]) -> Any:
        return self.value(node.body if self.value(node.test, local) else node.orelse, local)

    def text(self, node: ast.JoinedStr, local: Mapping[str, Any]) -> str:
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        if any(
            isinstance(part, ast.FormattedValue) and (part.format_spec or part.conversion != -1) for part in node.values
        ):
            raise self.unreadable(node)
        return "".join(str(self.value(part, local)) for part in parts)


_HANDLERS: dict[type[ast.AST], Callable[[_Work, Any, Mapping[str, Any]], Any]] = {
    ast.Constant: lambda work, node, local: node.value,
    ast.Name: _Work.name,
    ast.Attribute: _Work.attribute,
    ast.Dict: _Work.mapping,
    ast.List: lambda work, node, local: work.items(node.elts, local),
    ast.Tuple: lambda work, node, local: tuple(work.items(node.elts, local)),
    ast.Set: lambda work, node, local: set(work.items(node.elts, local)),
    ast.BinOp: _Work.binary,
    ast.Compare: _Work.compare,
    ast.BoolOp: _Work.logic,
    ast.UnaryOp: _Work.unary,
    ast.Call: _Work.call,
    ast.Subscript: lambda work, node, local: work.value(node.value, local)[work.value(node.slice, local)],
    ast.DictComp: _Work.dict_rounds,
    ast.ListComp: _Work.list_rounds,
    ast.GeneratorExp: _Work.list_rounds,
    ast.SetComp: lambda work, node, local: set(work.list_rounds(node, local)),
    ast.IfExp: _Work.choice,
    ast.JoinedStr: _Work.text,
}
