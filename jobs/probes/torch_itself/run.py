"""Running the cases of family ``torch-itself``: the collective under test, and one complete pass over it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes import passes
from jobs.probes.inputs import make
from jobs.probes.lacking import as_lacking
from jobs.probes.passes import Function
from jobs.probes.torch_itself import apis, mutants, recipes
from jobs.probes.torch_itself.cases import AUTOGRAD, FUNCTIONAL
from jobs.probes.torch_itself.shapes import Aggregation, Collective, params_of
from jobs.subject.base import RankContext, Subject

if TYPE_CHECKING:
    from jobs.probes import Emit

RACING = {("all_gather", FUNCTIONAL), ("all_gather", AUTOGRAD)}
"""Collective and way of which, in some versions, gloo's own thread comes before autograd's bookkeeping or after it."""
TRIES = 24
SAID = 1000
"""Bytes of an error that the ranks tell each other."""


def build(case: CaseInfo, ctx: RankContext, subject: Subject | None = None) -> Function:
    """Torch's operation as the case calls it; there is no subject. Raises Unsupported where this torch has none."""
    params = params_of(case)
    return recipes.operation(params, ctx) if isinstance(params, Aggregation) else apis.operation(params, ctx)


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's implementation in its place."""
    return mutants.operation(control, params_of(case), ctx)


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward; nothing is kept.

    Raises Unsupported where the transport lacks a collective that the call or its derivative is made of.
    """
    with _answering(case, ctx, function) as steady:
        passes.exercise(case, ctx, params_of(case), steady, emit)


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """What a small step changes the loss by. Raises Unsupported as :func:`exercise` does."""
    with _answering(case, ctx, function) as steady:
        passes.difference(case, ctx, params_of(case), steady, emit)


@contextlib.contextmanager
def _answering(case: CaseInfo, ctx: RankContext, function: Function) -> Iterator[Function]:
    """``function``, which answers alike in every run while this lasts; one that is to be traced is left alone."""
    params = params_of(case)
    with as_lacking(ctx):
        if passes.is_traced(function):
            yield function
            return
        with _unwritten_is_nan():
            if isinstance(params, Collective) and (params.collective, params.api) in RACING:
                function = _steady(case, ctx, params, function)
            yield function


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


def _steady(case: CaseInfo, ctx: RankContext, params: Collective, function: Function) -> Function:
    """``function``, which raises on every rank of the world what it raises some of the time on some rank.

    A race shows itself when it is called often enough, and the answer is then the same in every run. Every call goes
    through the same messages whether it raises or not, so that the ranks stay together. If none raises, each call to
    come is asked about too. What some ranks always raise and the others never is left for the pass itself to raise.
    """
    tally = _Tally()
    for _ in range(TRIES):
        tally.call(function, make(case, ctx, params.tensors(ctx.world_size, ctx.sp_rank))["x"])
    if _share(ctx, tally):
        return function

    def together(x: torch.Tensor) -> torch.Tensor:
        y = tally.call(function, x)
        # After quiet calls, one that raised is a race, and is raised here.
        _share(ctx, tally)
        return cast("torch.Tensor", y)

    return together


class _Tally:
    """How often one rank called, how often that raised, and what it was at first."""

    def __init__(self) -> None:
        self.calls = self.raised = 0
        self.first: RuntimeError | None = None

    def call(self, function: Function, x: torch.Tensor) -> torch.Tensor | None:
        """What ``function`` returns, or None where it raised."""
        self.calls += 1
        try:
            y = function(x)
            # What is still on its way may raise only when it is looked at.
            y.detach().clone()
        except RuntimeError as error:
            self.raised += 1
            self.first = self.first or error
            return None
        return y


def _share(ctx: RankContext, tally: _Tally) -> bool:
    """Whether a call raised anywhere. Where one did that raises here and there, raise it on every rank alike."""
    mine = torch.zeros(SAID, dtype=torch.uint8)
    said = "" if tally.first is None else f" {type(tally.first).__name__} {tally.first}"
    sent = f"{tally.raised}{said}".encode()[:SAID]
    mine[: len(sent)] = torch.tensor(list(sent), dtype=torch.uint8)
    mine = mine.to(ctx.device)
    world = [torch.empty_like(mine) for _ in range(ctx.world_size)]
    dist.all_gather(world, mine)
    told = [bytes(part.tolist()).rstrip(b"\0").decode(errors="ignore").partition(" ") for part in world]
    times = [int(count) for count, _, _ in told]
    if set(times) <= {0} or set(times) == {0, tally.calls}:
        return any(times)
    kind, _, text = next(error for _, _, error in told if error).partition(" ")
    total = tally.calls * ctx.world_size
    # Numbers are no part of an error's name, nor is a second line: close to every call raises, or just every one.
    race = "" if sum(times) == total else "\nThis is a race: the calls are equal, and some raise while others do not."
    raise type(kind, (RuntimeError,), {})(f"in {sum(times)} of {total} equal calls: {text}{race}")
