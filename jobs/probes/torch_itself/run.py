"""Running the cases of family ``torch-itself``: the collective under test, and one complete pass over it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes import passes
from jobs.probes.inputs import make
from jobs.probes.passes import Function
from jobs.probes.torch_itself import apis, mutants, recipes
from jobs.probes.torch_itself.cases import AUTOGRAD, FUNCTIONAL
from jobs.probes.torch_itself.shapes import Aggregation, Collective, params_of
from jobs.subject.base import RankContext, Subject, Unsupported

if TYPE_CHECKING:
    from jobs.probes import Emit

LACKS = re.compile(r"(?:\bbackend )?\S*gloo does not support \w+", re.IGNORECASE)
"""What torch says where the transport has no such collective: that is no fault of the derivative."""
RACING = {("all_gather", FUNCTIONAL), ("all_gather", AUTOGRAD)}
"""Collective and way of which, in some versions, gloo's own thread comes before autograd's bookkeeping or after it."""
TRIES = 24


def build(case: CaseInfo, ctx: RankContext, subject: Subject | None = None) -> Function:
    """Torch's operation as the case calls it; there is no subject. Raises Unsupported where this torch has none."""
    params = params_of(case)
    return recipes.operation(params, ctx) if isinstance(params, Aggregation) else apis.operation(params, ctx)


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's implementation in its place."""
    return mutants.operation(control, params_of(case), ctx)


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward, central difference; nothing is kept.

    Raises Unsupported where the transport lacks a collective that the call or its derivative is made of.
    """
    params = params_of(case)
    try:
        if passes.is_traced(function):
            passes.exercise(case, ctx, params, function, emit)
            return
        with _unwritten_is_nan():
            if isinstance(params, Collective) and (params.collective, params.api) in RACING:
                _raise_together(case, ctx, params, function)
            passes.exercise(case, ctx, params, function, emit)
    except Exception as error:
        if (lack := LACKS.search(str(error))) is None:
            raise
        raise Unsupported(f"over {ctx.transport}, torch refuses: {lack[0]}") from error


@contextlib.contextmanager
def _unwritten_is_nan() -> Iterator[None]:
    """Have torch fill new memory with NaN: who reads what nobody wrote then reads the same in every run.

    It does so where only deterministic algorithms are asked for, which changes nothing else about a collective.
    """
    before = torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


def _raise_together(case: CaseInfo, ctx: RankContext, params: Collective, function: Function) -> None:
    """Raise on every rank what a call that races raises on some ranks, some of the time.

    Called often enough it shows itself, and the answer is then the same in every run. Every call goes through the same
    messages whether it raises or not, so that the ranks stay together. Traced, nothing of the kind happens.
    """
    met: Exception | None = None
    for _ in range(TRIES):
        made = make(case, ctx, params.tensors(ctx.world_size, ctx.sp_rank))
        try:
            function(made["x"]).detach().clone()
        except RuntimeError as error:
            met = error
    anywhere = torch.tensor(float(met is not None), device=ctx.device)
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=ctx.group)
    if anywhere:
        raise met or RuntimeError(f"raised on another rank of the group in {TRIES} calls, and not on this one")
