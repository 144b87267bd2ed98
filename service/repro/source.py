"""What a checkout's own source says about its API: names and signatures, read from its files and never imported.

On the straight line this stands in ``service.repro``: which generation of an API a script has to call is told by the
same names that the adapters in ``jobs`` look for, never by a version number.
"""

from __future__ import annotations

import ast
import tarfile
from functools import cached_property
from pathlib import Path

from service.errors import UsageError


class Source:
    """The files of one checkout, in the tar that the cache holds of it."""

    def __init__(self, tar: Path, label: str) -> None:
        self._tar, self._label = tar, label
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module ``name`` (``deepspeed.sequence.layer``), or None where the checkout has none.

        Raises UsageError where its files are not here.
        """
        if name not in self._modules:
            text = self._text(name.replace(".", "/"))
            self._modules[name] = None if text is None else Module(text)
        return self._modules[name]

    def has(self, module: str, name: str) -> bool:
        """Whether ``module`` is there and has ``name`` at its top."""
        found = self.module(module)
        return found is not None and name in found

    def _text(self, path: str) -> str | None:
        try:
            with tarfile.open(self._tar) as archive:
                for name in (f"{path}.py", f"{path}/__init__.py"):
                    if name in archive.getnames() and (file := archive.extractfile(name)) is not None:
                        return file.read().decode("utf-8", "replace")
        except (OSError, tarfile.TarError):
            raise UsageError(
                f"the files of {self._label} are not on this machine, and which calls it has is read from them: "
                f"gradmatrix run {self._label} … fetches them"
            ) from None
        return None


class Module:
    """What one file defines or imports at its top, under ``if`` and ``try`` too."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def parameters(self, name: str) -> tuple[str, ...]:
        """The names of the parameters of a function, or of ``Class.method``; nothing where there is none."""
        given = self._arguments(name)
        return () if given is None else tuple(arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs))

    def demanded(self, name: str) -> tuple[str, ...]:
        """Those of them that have no default."""
        given = self._arguments(name)
        if given is None:
            return ()
        first = (*given.posonlyargs, *given.args)
        bare = first[: len(first) - len(given.defaults)]
        named = [arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
        return tuple(arg.arg for arg in (*bare, *named))

    def _arguments(self, name: str) -> ast.arguments | None:
        owner, _, method = name.rpartition(".")
        node = self._names.get(owner or name)
        if owner and isinstance(node, ast.ClassDef):
            node = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == method), None)
        return node.args if isinstance(node, ast.FunctionDef) else None

    @cached_property
    def _names(self) -> dict[str, ast.stmt]:
        found: dict[str, ast.stmt] = {}
        try:
            waiting: list[ast.stmt] = list(ast.parse(self.text).body)
        except (SyntaxError, ValueError):
            return found
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found.update({(alias.asname or alias.name).partition(".")[0]: node for alias in node.names})
            elif isinstance(node, ast.Assign):
                found.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
            elif isinstance(node, ast.If | ast.Try):
                waiting += [*node.body, *node.orelse]
        return found
