"""A module's source as names: what it defines, what its names mean in full, and what a body refers to.

On the straight line a part of ``service.coverage``, under :mod:`service.holding`. Pure; the source is read as a syntax
tree and never run.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Scope:
    """Where a piece of source stands.

    path    the names of the definitions around it, outermost first
    owner   the class whose method it is part of, "" outside any
    hidden  names that are parameters here, and so mean nothing of the module's
    local   what an import inside a function calls by which name
    """

    path: tuple[str, ...] = ()
    owner: str = ""
    hidden: frozenset[str] = frozenset()
    local: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Definition:
    """A class or function, and the scope that its body has."""

    node: ast.ClassDef | Function
    scope: Scope


@dataclass
class Module:
    """One module.

    imports      the full name of what each imported name stands for
    stars        the modules of which it imports everything
    definitions  classes and functions by their dotted name within the module, also those inside others
    """

    name: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    definitions: dict[str, Definition] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)

    def meaning(self, node: ast.expr, scope: Scope, depth: int = 4) -> str | None:
        """The full dotted name that an expression such as ``dist.all_reduce`` or ``self.step`` stands for."""
        if isinstance(node, ast.Call):  # torch.ops.x.y(...).z and Library("x", "DEF").impl stand for what is called
            return self.meaning(node.func, scope, depth)
        if isinstance(node, ast.Attribute):
            inner = self.meaning(node.value, scope, depth)
            return None if inner is None else f"{inner}.{node.attr}"
        if not isinstance(node, ast.Name):
            return None
        if node.id in ("self", "cls") and scope.owner:
            return f"{self.name}.{scope.owner}"
        local = dict(scope.local)
        if node.id in local:
            return local[node.id]
        if node.id in scope.hidden:
            return None
        for cut in range(len(scope.path), -1, -1):
            inside = ".".join((*scope.path[:cut], node.id))
            if inside in self.definitions:
                return f"{self.name}.{inside}"
        if node.id in self.imports:
            return self.imports[node.id]
        if node.id in self.libraries:
            return "torch.library.Library"
        if depth and node.id in self.aliases:
            return self.meaning(self.aliases[node.id], scope, depth - 1)
        return f"{self.name}.{node.id}" if node.id in self.aliases else None

    def text(self, node: ast.expr) -> str | None:
        """The text that an expression is, written there or in a constant of the module."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        return self.texts.get(node.id) if isinstance(node, ast.Name) else None

    def library(self, function: ast.expr, arguments: Sequence[ast.expr], scope: Scope) -> str | None:
        """The namespace of the Library that a call is made on or is given first."""
        owner = function.value if isinstance(function, ast.Attribute) else None
        for node in (owner, *arguments[:1]):
            if isinstance(node, ast.Name) and node.id in self.libraries:
                return self.libraries[node.id]
            if isinstance(node, ast.Call) and node.args and (self.meaning(node, scope) or "").endswith(".Library"):
                return self.text(node.args[0])
        return None

    def references(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, str]]:
        """Every name in a body, in full, that means something; the longest dotted form of each, once per place."""
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            pieces: list[ast.AST] = list(node.body) if isinstance(node.body, list) else [node.body]
        else:
            pieces = list(ast.iter_child_nodes(node))
        for piece in pieces:
            if isinstance(piece, Function | ast.ClassDef):
                inner = self.definitions.get(".".join((*scope.path, piece.name)))
                yield from self.references(piece, inner.scope if inner else scope)
                for decorator in piece.decorator_list:
                    yield from self._inside(decorator, scope)
            else:
                yield from self._inside(piece, scope)

    def _inside(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, str]]:
        if isinstance(node, ast.Name | ast.Attribute):
            meaning = self.meaning(node, scope)
            if meaning is not None:
                yield node, meaning
                return
        yield from self.references(node, scope)

    def calls(self) -> Iterator[tuple[ast.Call, Scope, str | None]]:
        """Every call outside decorators, its scope, and the module's name that its result is given."""
        yield from self._calls(self.tree, Scope())

    def _calls(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope, str | None]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.ClassDef):
                inner = self.definitions.get(".".join((*scope.path, child.name)))
                for piece in child.body:
                    wrapped = ast.Module(body=[piece], type_ignores=[])
                    yield from self._calls(wrapped, inner.scope if inner else scope)
                continue
            if isinstance(child, ast.Call):
                target = None
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    target = node.targets[0].id
                yield child, scope, target
            yield from self._calls(child, scope)


def module_name(path: str) -> str:
    """The dotted name of the module at ``path``, relative to the root of the tree."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(path: str, text: str) -> Module | None:
    """The module, or None where its text is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a stranger's escapes in strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    module = Module(module_name(path), tree)
    package = module.name if path.endswith("__init__.py") else module.name.rpartition(".")[0]
    for node in _statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module.imports.update(_imported(node, package))
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                module.stars.append(_source(node, package))
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            _assigned(module, node.targets[0].id, node.value)
    _define(module, tree, Scope(), package)
    return module


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a body, also those under if, try and with, but not those of definitions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _statements(child)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, str]:
    if isinstance(node, ast.Import):
        # ``import a.b`` gives the name a; ``import a.b as c`` gives c.
        return {alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else
                alias.name.partition(".")[0] for alias in node.names}  # fmt: skip
    source = _source(node, package)
    return {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names if alias.name != "*"}


def _source(node: ast.ImportFrom, package: str) -> str:
    """The module that names are imported from, in full."""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def _assigned(module: Module, name: str, value: ast.expr) -> None:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        module.texts[name] = value.value
    elif isinstance(value, ast.Call) and (module.meaning(value, Scope()) or "").endswith("torch.library.Library"):
        module.libraries[name] = (module.text(value.args[0]) if value.args else None) or "?"
    elif isinstance(value, ast.Name | ast.Attribute | ast.Call):
        module.aliases[name] = value


def _define(module: Module, node: ast.AST, scope: Scope, package: str) -> None:
    """Take down every class and function below ``node``, with the scope of its body."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef):
            _define(module, child, scope, package)
            continue
        path = (*scope.path, child.name)
        if isinstance(child, ast.ClassDef):
            inner = Scope(path, ".".join(path), scope.hidden, scope.local)
        else:
            local = dict(scope.local)
            for statement in _statements(child):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    local |= _imported(statement, package)
            arguments = child.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            hidden = scope.hidden | {argument.arg for argument in every if argument is not None}
            inner = Scope(path, scope.owner, hidden, tuple(local.items()))
        module.definitions[".".join(path)] = Definition(child, inner)
        _define(module, child, inner, package)
