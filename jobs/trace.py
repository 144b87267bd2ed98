"""Tracing a function under test, and what the tracer made of it: graphs, breaks, recompiles, collectives in graphs."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

COLLECTIVE = re.compile(r"all_?to_?all|all_?gather|reduce_?scatter|all_?reduce|broadcast_|c10d|isend|irecv")
BACKWARD_MODULES = ("torch.fx.experimental.symbolic_shapes",)
"""What the first backward imports, traced or not: seconds, which no case's deadline should have to hold."""
TRACER_MODULES = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "sympy",
    # What the tracer imports when it meets its first collective.
    "torch.distributed.tensor.experimental",
    "torch.distributed._symmetric_memory",
)
VECTOR_MODULES = ("torch._inductor.cpu_vec_isa", "torch._inductor.codecache")
"""Where inductor keeps the sets of instructions that it knows: the first, or where there is none yet the second."""
TEXT_LIMIT = 500


def warm(modes: tuple[str, ...]) -> None:
    """Import what backwards need, and the tracer where there are ``modes``: one small function compiled in each.

    Forward only and under no_grad: after a backward in this process, autograd refuses to run in forked children.
    """
    import importlib

    import torch

    for name in BACKWARD_MODULES + (TRACER_MODULES if modes else ()):
        with contextlib.suppress(ImportError):  # not every torch has every one of them
            importlib.import_module(name)
    if modes:
        _leave_guards_untimed()
    for mode in modes:
        if mode == "inductor":
            _take_one_instruction_set()
        with torch.no_grad(), _self_tests_in_forks():
            torch.compile(_small, backend=_backend(mode))(torch.ones(4))
        torch._dynamo.reset()


def _leave_guards_untimed() -> None:
    """Spare each compilation the measurement of its guards, for a log line: it flushes the caches of the processor."""
    import torch._dynamo.guards as guards

    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0


def _take_one_instruction_set() -> None:
    """Have inductor write vector code for AVX2 whatever more the processor has.

    So the same cell is the same program on every host; and inductor would compile a test for each set that there is,
    which took longer than all of its cases.
    """
    import importlib

    for name in VECTOR_MODULES:
        with contextlib.suppress(ImportError):
            module: Any = importlib.import_module(name)
            if hasattr(module, "supported_vec_isa_list"):
                module.supported_vec_isa_list = [s for s in module.supported_vec_isa_list if str(s) == "avx2"]


@contextlib.contextmanager
def _self_tests_in_forks() -> Iterator[None]:
    """Inductor loads a library per set of instructions in a new Python with torch, to see whether the processor has it.

    There are up to ten, and each imports torch, which takes seconds; in a fork of this process that is done already.
    """
    original = subprocess.check_call

    def check_call(command: Any, *args: Any, **kwargs: Any) -> int:
        if list(command[:2]) != [sys.executable, "-c"]:
            return original(command, *args, **kwargs)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                exec(command[2], {})  # noqa: S102 - inductor's own few lines
                status = 0
            finally:
                os._exit(status)
        if ended := os.waitpid(pid, 0)[1]:
            raise subprocess.CalledProcessError(ended, command)
        return 0

    subprocess.check_call = check_call  # type: ignore[assignment]
    try:
        yield
    finally:
        subprocess.check_call = original


def _small(x: Any) -> Any:
    return (x * 2 + 1).sin()


def _backend(mode: str) -> Any:
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(mode)


class Recorder:
    """Compiles one function in one traced mode and keeps what the tracer did with it."""

    def __init__(self, mode: str) -> None:
        import torch

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self._compile = _backend(mode)
        self._graphs = 0
        self._differentiates = False
        self._collectives: set[str] = set()
        self.fullgraph: str | None = None
        self._counted: dict[str, Any] = {}

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, traced when it is first called."""
        import torch

        traced = torch.compile(function, backend=self._record)

        @functools.wraps(traced)
        def called(*inputs: Any) -> Any:
            self._differentiates = torch.is_grad_enabled()
            return traced(*inputs)

        return called

    def _record(self, graph: Any, inputs: list[Any]) -> Any:
        import torch

        self._graphs += 1
        if self._differentiates and not torch.is_grad_enabled():
            # The inside of an autograd.Function that itself is in no graph: what is differentiated was never traced.
            return self._compile(graph, inputs)
        for module in graph.modules():
            for node in getattr(getattr(module, "graph", None), "nodes", ()):
                if node.op in ("call_function", "call_method", "call_module"):
                    name = _name(node.target)
                    if COLLECTIVE.search(name):
                        self._collectives.add(name)
        return self._compile(graph, inputs)

    def is_whole(self) -> bool:
        """Whether what was captured is one graph, with no break and nothing captured again."""
        counted = self._count()
        return counted["graphs"] == 1 and not counted["breaks"] and not counted["recompiles"]

    def try_fullgraph(self, function: Callable[..., Any], use: Callable[[Callable[..., Any]], None]) -> None:
        """Keep in ``fullgraph`` whether ``function`` can be one graph; where it was not, capture it without breaks.

        The graph is run as it was captured: whether there can be one graph is a matter of the front end alone.
        """
        import torch

        if self.is_whole():
            self.fullgraph = "ok"
            return
        self._counted = self._count()  # before this attempt adds to the tracer's counters
        torch._dynamo.reset()
        try:
            use(torch.compile(function, backend="eager", fullgraph=True))
            self.fullgraph = "ok"
        except Exception as error:  # noqa: BLE001 - whatever the tracer raises is the answer
            first = next(iter(str(error).strip().splitlines()), "")
            self.fullgraph = f"{type(error).__name__}: {first}"[:TEXT_LIMIT]

    def facts(self) -> dict[str, Any]:
        """The ``trace`` field of a ``case`` event."""
        return {**(self._counted or self._count()), "fullgraph": self.fullgraph}

    def _count(self) -> dict[str, Any]:
        import torch

        counters = torch._dynamo.utils.counters
        breaks = [{"reason": str(reason)[:TEXT_LIMIT], "where": ""} for reason in counters.get("graph_break", {})]
        unique = int(counters.get("stats", {}).get("unique_graphs", self._graphs))
        return {
            "graphs": self._graphs,
            "breaks": breaks,
            "recompiles": max(0, self._graphs - unique),
            "collective_in_graph": bool(self._collectives),
            "collectives": sorted(self._collectives),
        }


def _name(target: Any) -> str:
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    return str(target) if "OpOverload" in type(target).__name__ else f"{module}.{getattr(target, '__name__', target)}"
