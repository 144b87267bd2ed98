"""What of a package's source holds a collective: autograd functions and custom operators; and its public names.

On the straight line this is the first half of ``service.coverage``: source text in, names out; nothing is imported or
run. Pure. A definition holds a collective where its body names one, or names a function of the package that does, or an
operator that does. Naming counts, called or not: a collective may be handed on, and one too many in the list costs less
than one too few.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from service.source import Definition, Module, Scope, read

COLLECTIVES = frozenset({
    "all_gather", "all_gather_base", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "all_gather_object", "all_gather_single", "all_gather_tensor",
    "all_gather_tensor_autograd", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single",
    "all_to_all_single_autograd", "allgather_fn", "broadcast", "broadcast_object_list", "gather",
    "inference_all_reduce", "irecv", "isend", "recv", "reduce", "reduce_scatter", "reduce_scatter_base",
    "reduce_scatter_coalesced", "reduce_scatter_fn", "reduce_scatter_tensor", "reduce_scatter_tensor_autograd",
    "scatter", "send", "_all_gather_base", "_reduce_scatter_base",
})  # fmt: skip
"""Functions of torch.distributed and its kin, and of a package's own ``comm``, that move data between ranks."""
COLLECTIVE_OPERATOR = re.compile(r"all_?to_?all|all_?gather|reduce_?scatter|all_?reduce|reduce_grad|broadcast")
"""An operator that no Python of the package defines holds a collective where its name says so."""
OWN_OPERATORS = ("_c10d_functional", "c10d_functional", "c10d", "_c10d_functional_autograd", "aten", "prims", "mkldnn")
"""Torch's own namespaces: what is called there is a collective or is not, but is no operator of the package."""
FUNCTION = ("torch.autograd.Function", "torch.autograd.function.Function")
MAKES_OPERATOR = ("custom_op", "triton_op")
LIBRARY = ("torch.library", "torch._library", "torch._custom_ops", "torch._custom_op.impl")
REGISTERS = ("impl", "register_kernel", "register_autograd", "impl_backward", "impl_save_for_backward")
"""What makes a function part of an operator; its fake and its abstract do not run."""
ON_CALL = ("__init__", "__call__", "forward")
"""What naming a class that is no autograd function is taken to run."""


@dataclass(frozen=True)
class Held:
    """One definition that holds a collective, or a public name.

    kind         function (an autograd.Function), operator, native operator (not defined in Python), or name
    collectives  what it reaches, as they are written; empty for a public name that reaches none
    public       it is a public name of a module that was listed
    """

    module: str
    name: str
    kind: str
    line: int
    collectives: tuple[str, ...] = ()
    public: bool = False

    @property
    def key(self) -> str:
        """``module:name``."""
        return f"{self.module}:{self.name}"


@dataclass
class _Operator:
    module: str
    name: str
    line: int
    bodies: list[str] = field(default_factory=list)


def held(sources: Mapping[str, str], listed: Collection[str] = ()) -> tuple[Held, ...]:
    """Every autograd function and operator that holds a collective, and the public names of the files ``listed``.

    ``sources`` is text by path. A file that is not Python of this version is passed over: it cannot be imported either.
    """
    modules = {path: module for path, text in sorted(sources.items()) if (module := read(path, text))}
    package = _Package({module.name: module for module in modules.values()})
    found = {one.key: one for one in package.public(modules[path] for path in listed if path in modules)}
    for one in package.held():
        found[one.key] = replace(one, public=one.key in found)
    return tuple(sorted(found.values(), key=lambda one: (one.module, one.line, one.name)))


class _Package:
    """All modules together: what a name in one of them means in another."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self._modules = modules
        self._definitions: dict[str, tuple[Module, Definition]] = {
            f"{module.name}.{name}": (module, definition)
            for module in modules.values()
            for name, definition in module.definitions.items()
        }
        self._operators: dict[str, _Operator] = {}
        self._named_operators: dict[str, str] = {}
        for module in modules.values():
            self._find_operators(module)
        self._reached: dict[str, frozenset[str]] = {}

    def held(self) -> Iterator[Held]:
        """Functions, operators, and operators that are used and not defined here."""
        for full, (module, definition) in self._definitions.items():
            if self._is_function(full, set()) and (found := self._reach(full)):
                name = full.removeprefix(f"{module.name}.")
                yield Held(module.name, name, "function", definition.node.lineno, tuple(sorted(found)))
        for operator in self._operators.values():
            if reached := set[str]().union(*map(self._reach, operator.bodies)):
                yield Held(operator.module, operator.name, "operator", operator.line, tuple(sorted(reached)))
        yield from self._native()

    def public(self, modules: Iterable[Module]) -> Iterator[Held]:
        """The public classes and functions that these modules define, with the collectives that they reach."""
        for module in modules:
            for name, definition in module.definitions.items():
                if "." not in name and not name.startswith("_"):
                    reached = set[str]().union(*map(self._reach, self._run_by(f"{module.name}.{name}")))
                    yield Held(module.name, name, "name", definition.node.lineno, tuple(sorted(reached)), public=True)

    def _run_by(self, full: str) -> Iterator[str]:
        """What naming a definition may run, and every public method of a class."""
        yield from self._targets(full)
        for name in self._definitions[full][0].definitions:
            owner, _, method = f"{self._definitions[full][0].name}.{name}".rpartition(".")
            if owner == full and not method.startswith("_"):
                yield f"{owner}.{method}"

    def _native(self) -> Iterator[Held]:
        """Operators that are used here, are named like a collective, and are defined in no Python of the package."""
        seen: set[str] = set()
        for module in self._modules.values():
            for node, full in module.references(module.tree, Scope()):
                name = _operator_of(full)
                if name and name not in seen and name not in self._operators:
                    space, _, short = name.partition("::")
                    if space not in OWN_OPERATORS and COLLECTIVE_OPERATOR.search(short):
                        seen.add(name)
                        yield Held(module.name, name, "native operator", node.lineno, (short,))

    # -- what is what ------------------------------------------------------------------------------------------------

    def _is_function(self, full: str, seen: set[str]) -> bool:
        """Whether the class derives from torch.autograd.Function, perhaps through others of the package."""
        full = self._home(full)
        if full in FUNCTION:
            return True
        if full in seen or full not in self._definitions:
            return False
        module, definition = self._definitions[full]
        node = definition.node
        if not isinstance(node, ast.ClassDef):
            return False
        bases = [module.meaning(base, definition.scope) for base in node.bases]
        return any(self._is_function(base, seen | {full}) for base in bases if base)

    def _home(self, full: str, hops: int = 8) -> str:
        """Where a name that modules only hand on, by importing it, is defined."""
        if hops and full not in self._definitions:
            parts = full.split(".")
            for cut in range(len(parts) - 1, 0, -1):
                if (module := self._modules.get(".".join(parts[:cut]))) is None:
                    continue
                handed = self._handed_on(module, parts[cut])
                if handed and handed != ".".join(parts[: cut + 1]):
                    return self._home(".".join([handed, *parts[cut + 1 :]]), hops - 1)
                break
        return full

    def _handed_on(self, module: Module, name: str) -> str | None:
        """What a module calls ``name`` because it imported it, alone or with everything of another module."""
        if name in module.imports:
            return module.imports[name]
        for star in module.stars:
            other = self._modules.get(star)
            if other and (name in other.definitions or name in other.imports):
                return f"{star}.{name}"
        return None

    # -- operators ---------------------------------------------------------------------------------------------------

    def _find_operators(self, module: Module) -> None:
        for name, definition in module.definitions.items():
            for decorator in getattr(definition.node, "decorator_list", ()):
                if isinstance(decorator, ast.Call):
                    self._registration(module, decorator, definition.scope, [f"{module.name}.{name}"])
        for node, scope, target in module.calls():
            bodies = [
                self._home(meaning)
                for argument in (*node.args, *(keyword.value for keyword in node.keywords))
                if (meaning := module.meaning(argument, scope)) and self._home(meaning) in self._definitions
            ]
            self._registration(module, node, scope, bodies, target)

    def _registration(
        self, module: Module, call: ast.Call, scope: Scope, bodies: list[str], target: str | None = None
    ) -> None:
        """Take one call that may make an operator, or add a body to one."""
        meaning = module.meaning(call.func, scope) or ""
        owner, _, what = meaning.rpartition(".")
        of_library = owner in LIBRARY or owner.endswith(".Library")
        texts = [text for argument in call.args[:2] if (text := module.text(argument))]
        if of_library and what in MAKES_OPERATOR and texts:
            operator = self._operator(module, texts[0], call.lineno)
            operator.bodies += bodies
            for body in [*bodies, *([f"{module.name}.{target}"] if target else [])]:
                self._named_operators[body] = operator.name
        elif what in REGISTERS and owner in self._named_operators:
            self._operators[self._named_operators[owner]].bodies += bodies
        elif of_library and what in (*REGISTERS, "define"):
            space = module.library(call.func, call.args, scope)
            name = next((text.partition("(")[0] for text in texts), None)
            if name is not None:
                full = name if "::" in name else f"{space or '?'}::{name}"
                self._operator(module, full, call.lineno).bodies += bodies

    def _operator(self, module: Module, name: str, line: int) -> _Operator:
        return self._operators.setdefault(name, _Operator(module.name, name, line))

    # -- what a definition reaches -----------------------------------------------------------------------------------

    def _reach(self, full: str) -> frozenset[str]:
        """The collectives that the definition names itself, and that what it names reaches."""
        if full in self._reached:
            return self._reached[full]
        found: set[str] = set()
        seen, open_ = {full}, [full]
        while open_:
            here = open_.pop()
            for name in self._names_in(here):
                if (collective := self._collective(name)) is not None:
                    found.add(collective)
                    continue
                for further in self._targets(name):
                    if further not in seen:
                        seen.add(further)
                        open_.append(further)
        self._reached[full] = frozenset(found)
        return self._reached[full]

    def _names_in(self, full: str) -> Iterator[str]:
        module, definition = self._definitions[full]
        for _, name in module.references(definition.node, definition.scope):
            yield name

    def _targets(self, name: str) -> Iterator[str]:
        """The definitions and operators' bodies that naming ``name`` may run."""
        if (operator := _operator_of(name)) is not None:
            if operator in self._operators:
                yield from self._operators[operator].bodies
            return
        full = self._home(name)
        if full not in self._definitions and full.endswith(".apply"):
            full = self._home(full.removesuffix(".apply"))
        if full not in self._definitions:
            return
        if full in self._named_operators:
            yield from self._operators[self._named_operators[full]].bodies
        node = self._definitions[full][1].node
        if not isinstance(node, ast.ClassDef) or self._is_function(full, set()):
            yield full
        else:
            yield from (f"{full}.{method}" for method in ON_CALL if f"{full}.{method}" in self._definitions)

    def _collective(self, name: str) -> str | None:
        """The collective that ``name`` is, as people write it."""
        if (operator := _operator_of(name)) is not None:
            short = operator.partition("::")[2]
            named_so = COLLECTIVE_OPERATOR.search(short) is not None
            return short if named_so and operator not in self._operators else None
        if name.rpartition(".")[2] not in COLLECTIVES:
            return None
        place, _, short = self._home(name).rpartition(".")
        parts = place.split(".")
        return short if place.startswith("torch.distributed") or "comm" in parts[1:2] else None


def _operator_of(name: str) -> str | None:
    """``ns::op`` of ``torch.ops.ns.op``, with or without an overload."""
    parts = name.split(".")
    return f"{parts[2]}::{parts[3]}" if parts[:2] == ["torch", "ops"] and len(parts) >= 4 else None
