"""DeepSpeed's AutoSP: operators of its own, a registry of groups that they look into, and a pass over a graph."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import Any

from jobs.subject.base import Operation, RankContext, Unsupported
from jobs.subject.deepspeed.core import Core, quiet
from jobs.subject.operations.autosp import Model

OPERATORS = "deepspeed.compile.custom_ops.all_to_all"
REGISTRY = "deepspeed.compile.custom_ops.sp_dp_registry"
COMPATIBILITY, CHECK = "deepspeed.compile.custom_ops.sp_compat", "_check_autosp_compatibility"
REWRITING = "deepspeed.compile.passes.sp_compile"
MODULES = (OPERATORS, REGISTRY, COMPATIBILITY, REWRITING)
NAMESPACE, EXCHANGE = "autosp", "all_to_all"
SCATTER_GATHER = {"heads": (1, 2), "sequence": (2, 1)}
"""The dimensions to scatter and to gather, as the pass names them."""
SEQUENCE = {"gather": "all_gather_sequence", "scatter": "reduce_scatter_sequence"}


class AutoSequenceParallel(Core):
    """The family ``autosp``."""

    def __init__(self) -> None:
        super().__init__()
        self._autosp_meshes: dict[int, dict[Any, Any]] = {}

    def load(self, root: str) -> None:
        """Import its modules and the tracer, so that not every rank has to. What they raise, whoever asks will see."""
        super().load(root)
        for name in MODULES:
            with contextlib.suppress(Exception), quiet():
                importlib.import_module(name)
                importlib.import_module("torch._dynamo")

    def autosp_all_to_all(self, ctx: RankContext, *, scatter: str) -> Operation:
        """``torch.ops.autosp.all_to_all``, named as the pass names the exchange of a query."""
        operator = self._autosp_operator(ctx, EXCHANGE)
        dims, name = SCATTER_GATHER[scatter], "q" if scatter == "heads" else "o"
        return lambda x: operator(x, *dims, name)

    def autosp_sequence(self, ctx: RankContext, *, dim: int, way: str) -> Operation:
        """``torch.ops.autosp.all_gather_sequence``, or its opposite."""
        operator = self._autosp_operator(ctx, SEQUENCE[way])
        return lambda x: operator(x, dim)

    def autosp_pass(self, ctx: RankContext, *, model: Model, then: str) -> Model:
        """``model`` compiled with a backend that applies the pass, as the engine's is; inputs are tagged first."""
        import torch

        self._autosp_mesh(ctx)
        module = _module(REWRITING)
        prepare, apply = (_of(module, name) for name in ("prepare_autosp_inputs", "apply_autosp"))
        try:
            inspect.signature(prepare).bind("ids", "labels", "positions", attention_mask=None)
            inspect.signature(apply).bind("graph", "inputs", debug=False, sp_size=1, dp_size=1)
        except TypeError as error:
            raise Unsupported(f"{REWRITING} has a pass of no known signature: {error}") from None
        sp_size, dp_size = ctx.sp_size, ctx.world_size // ctx.sp_size

        def backend(graph: Any, inputs: Any) -> Any:
            apply(graph, inputs, debug=False, sp_size=sp_size, dp_size=dp_size)
            if then == "graph":
                return graph.forward
            from torch._dynamo.backends.registry import lookup_backend

            return lookup_backend(then)(graph, inputs)

        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend)

        def prepared(ids: Any, labels: Any, positions: Any, keys: Any, *weights: Any) -> Any:
            prepare(ids, labels, positions, attention_mask=keys)
            return compiled(ids, labels, positions, keys, *weights)

        return prepared

    def _autosp_operator(self, ctx: RankContext, name: str) -> Any:
        """The operator of that name, with the groups of ``ctx`` in the registry that it looks into."""
        import torch

        self._autosp_mesh(ctx)
        if not hasattr(_module(OPERATORS), name):
            raise Unsupported(f"{OPERATORS} has no {name}: there is no operator {NAMESPACE}::{name}")
        return getattr(getattr(torch.ops, NAMESPACE), name)

    def _autosp_mesh(self, ctx: RankContext) -> None:
        """Have its registry hold the groups of ``ctx``. It is one for the process, made for a single size of group.

        The groups of each size are made once, by its own function, on every rank of the world.
        """
        registry = _module(REGISTRY)
        if (check := getattr(_optional(COMPATIBILITY), CHECK, None)) is not None:
            try:
                check()
            except RuntimeError as error:
                raise Unsupported(f"{COMPATIBILITY}.{CHECK} says: {error}") from None
        groups, populate = _of(registry, "GROUP_REGISTRY"), _of(registry, "populate_registry")
        groups.clear()
        if ctx.sp_size not in self._autosp_meshes:
            populate(ctx.sp_size, ctx.world_size // ctx.sp_size)
            self._autosp_meshes[ctx.sp_size] = dict(groups)
        groups.update(self._autosp_meshes[ctx.sp_size])


def _module(name: str) -> Any:
    module = _optional(name)
    if module is None:
        raise Unsupported(f"there is no {name}")
    return module


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        return None


def _of(module: Any, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise Unsupported(f"{module.__name__} has no {name}")
    return found
