"""An engine's modules as syntax trees, and what each name in them is bound to. Reads through a Source; runs nothing."""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .engine_source import Source
from .plan import VoicesError
from .source_conditions import decide

PACKAGES = ("vllm", "transformers")
"""Packages that are looked into; every other one is known by name only."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

Kind = Literal["class", "def", "import", "value", "change", "unknown"]


@dataclass(frozen=True)
class Step:
    """One statement that binds or changes a name. ``guard`` is the condition that the text could not decide."""

    kind: Kind
    node: ast.AST
    line: int
    module: str = ""
    attribute: str = ""
    guard: str = ""


@dataclass
class Scope:
    """What the names of a module's or a class's body are bound to, in order."""

    steps: dict[str, list[Step]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    def add(self, name: str, step: Step) -> None:
        self.steps.setdefault(name, []).append(step)

    def bound(self, name: str) -> list[Step]:
        """The last binding of ``name`` and the changes after it; empty when it has none."""
        return in_force(self.steps.get(name, []))


def in_force(steps: Sequence[Step]) -> list[Step]:
    """The last binding among ``steps`` and the changes after it; empty when there is none."""
    start = max((at for at, step in enumerate(steps) if step.kind != "change"), default=-1)
    return list(steps[start:]) if start >= 0 else []


@dataclass(frozen=True)
class Module:
    """One file. ``package``: it is an ``__init__.py``."""

    name: str
    path: str
    package: bool
    tree: ast.Module
    scope: Scope
    text: str = field(repr=False)


class Tree:
    """The modules of a source, each parsed once. ``used`` has the sha256 of every file that an answer rests on."""

    def __init__(self, source: Source, platform: str) -> None:
        self.source = source
        self.platform = platform
        self.used: dict[str, str] = {}
        self._modules: dict[str, Module | None] = {}
        self._scopes: dict[int, Scope] = {}

    def text(self, path: str) -> str | None:
        """A file's text, noted as used; None (noted too) when there is none."""
        content = self.source.read(path)
        self.used[path] = "" if content is None else hashlib.sha256(content).hexdigest()
        return None if content is None else content.decode(errors="replace")

    def module(self, name: str) -> Module | None:
        """A module by its dotted name, None when the source has none of that name."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> Module | None:
        if not _MODULE.fullmatch(name) or name.partition(".")[0] not in PACKAGES:
            return None
        base = name.replace(".", "/")
        for path, package in ((f"{base}.py", False), (f"{base}/__init__.py", True)):
            text = self.text(path)
            if text is not None:
                tree = parse(text, f"{self.source.where}: {path}")
                return Module(name, path, package, tree, self._scope(name, package, tree.body), text)
        return None

    def class_scope(self, module: Module, node: ast.ClassDef) -> Scope:
        """The scope of a class's body."""
        if id(node) not in self._scopes:
            self._scopes[id(node)] = self._scope(module.name, module.package, node.body, module.scope)
        return self._scopes[id(node)]

    def _scope(self, name: str, package: bool, body: Iterable[ast.stmt], outer: Scope | None = None) -> Scope:
        scope = Scope()
        _Reader(self, name, package, scope, outer or scope).read(body, "")
        return scope


def parse(text: str, where: str) -> ast.Module:
    """The syntax tree. Raises VoicesError for a text that is no Python of this interpreter."""
    try:
        with collection_paused():
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise VoicesError(f"{where}{f' line {line}' if line else ''} is no Python that can be read: {error}") from None


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Trees are millions of objects that all stay: collecting while they grow takes longer than parsing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def absolute(module: str, package: bool, node: ast.ImportFrom) -> str:
    """The dotted name that a ``from ... import`` in ``module`` names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


class _Reader:
    """Reads the statements of one body into a scope."""

    def __init__(self, tree: Tree, module: str, package: bool, scope: Scope, outer: Scope) -> None:
        self.tree, self.module, self.package, self.scope, self.outer = tree, module, package, scope, outer

    def read(self, body: Iterable[ast.stmt], guard: str) -> None:
        for statement in body:
            self.statement(statement, guard)

    def statement(self, node: ast.stmt, guard: str) -> None:
        if isinstance(node, ast.ClassDef):
            self.add(node.name, "class", node, guard)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.add(node.name, "def", node, guard)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                self.add(name, "import", node, guard, module=alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom):
            self.import_from(node, guard)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Delete):
            self.assignment(node, guard)
        elif isinstance(node, ast.If):
            self.branch(node, guard)
        elif isinstance(node, ast.Try):
            self.attempt(node, guard)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self.read(node.body, guard)
        elif isinstance(node, ast.For | ast.While | ast.Match):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    self.add(inner.id, "unknown", node, guard)

    def add(self, name: str, kind: Kind, node: ast.stmt, guard: str, module: str = "", attribute: str = "") -> None:
        self.scope.add(name, Step(kind, node, node.lineno, module, attribute, guard))

    def import_from(self, node: ast.ImportFrom, guard: str) -> None:
        target = absolute(self.module, self.package, node)
        for alias in node.names:
            if alias.name == "*":
                self.scope.stars.append(target)
            else:
                self.add(alias.asname or alias.name, "import", node, guard, target, alias.name)

    def assignment(self, node: ast.stmt, guard: str) -> None:
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                targets += target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            # X.update(...) and the like change X.
            function = node.value.func
            targets = [function.value] if isinstance(function, ast.Attribute) else []
        for target in targets:
            changed = isinstance(node, ast.AugAssign | ast.Expr) or isinstance(target, ast.Subscript)
            unpacked = isinstance(node, ast.Delete) or (
                isinstance(node, ast.Assign) and any(isinstance(one, ast.Tuple | ast.List) for one in node.targets)
            )
            named = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(named, ast.Name | ast.Attribute):
                kind: Kind = "change" if changed else "unknown" if unpacked else "value"
                self.add(ast.unparse(named), kind, node, guard)

    def branch(self, node: ast.If, guard: str) -> None:
        found = decide(node.test, self.tree.platform, self.lookup)
        if found is not None:
            self.read(node.body if found else node.orelse, guard)
            return
        text = ast.unparse(node.test)
        self.read(node.orelse, guard or f"not ({text})")
        self.read(node.body, guard or text)

    def lookup(self, name: str) -> ast.expr | None:
        steps = self.scope.bound(name) or self.outer.bound(name)
        if len(steps) == 1 and isinstance(steps[0].node, ast.Assign):
            return steps[0].node.value
        return None

    def attempt(self, node: ast.Try, guard: str) -> None:
        """The body, or the handlers when it imports what this source does not have."""
        if any(self.missing(one) for one in node.body):
            for handler in node.handlers:
                self.read(handler.body, guard)
        else:
            self.read([*node.body, *node.orelse], guard)
        self.read(node.finalbody, guard)

    def missing(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.ImportFrom):
            return False
        target = absolute(self.module, self.package, node)
        return target.partition(".")[0] == "vllm" and self.tree.module(target) is None
