"""The truth about a function of a rank's tensors whose dense form is known: that form, differentiated by autograd.

A family hands in its dense form once, in torch's plain operations: from what every rank of one group holds to what
each of them gets. It runs in float64, which is the truth, and once more in the case's own type, whose error is the
noise floor that a subject is measured against. The form itself is checked elsewhere, by finite differences and by a
second formulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected
from jobs.oracle.drawn import direction, drawn
from jobs.probes.case import LOSS_SCALE, Params, TensorSpec, has_difference
from jobs.values import dtype_of

Holding = dict[str, torch.Tensor]
"""What one rank holds, by name."""
Form = Callable[[Sequence[Holding]], Sequence[torch.Tensor]]
"""From what every rank of a group hands in to each rank's output."""

NOISE = "dense:"
"""Before the name of a tensor of the dense run in the case's own type: the noise floor, not truth."""


def expected(case: CaseInfo, world_size: int, params: Params, form: Form) -> Iterator[Expected]:
    """What every rank must hold after ``case``, group by group, and the noise floor beside it."""
    ranks = case.sp or world_size
    for first in range(0, world_size, ranks):
        members = range(first, first + ranks)
        specs = [params.tensors(world_size, place) for place in range(ranks)]
        wide = _run(case, params, specs, members, form, torch.float64)
        own = _run(case, params, specs, members, form, dtype_of(case.dtype))
        for place, rank in enumerate(members):
            yield from _of_rank(case, params, specs[place], rank, wide[place])
            # In float64 the truth itself would be the floor, and say that nothing is ever rounded.
            for role, name, tensor in own[place] if case.dtype != "float64" else ():
                if tensor is not None:
                    yield Expected(rank, role, NOISE + name, tensor)


Said = list[tuple[str, str, "torch.Tensor | None"]]


def _of_rank(case: CaseInfo, params: Params, specs: Sequence[TensorSpec], rank: int, said: Said) -> Iterator[Expected]:
    for role, name, tensor in said:
        yield Expected(rank, role, name, tensor)
    for spec in specs:
        values = drawn(case, spec, rank)
        same = values if spec.integers else values.to(dtype_of(case.dtype))
        yield Expected(rank, "cotangent" if spec.role == "cotangent" else "input", spec.name, same)
        differs = params.loss not in ("forward_only", "none") and has_difference(case)
        if spec.role == "input" and differs:
            yield Expected(rank, "fd", spec.name, direction(case, spec, rank))


def _run(
    case: CaseInfo,
    params: Params,
    specs: Sequence[Sequence[TensorSpec]],
    members: Sequence[int],
    form: Form,
    dtype: torch.dtype,
) -> list[Said]:
    """Outputs and gradients of each rank, all of it in ``dtype``."""
    held = [{spec.name: _leaf(case, spec, rank, dtype) for spec in specs[place]} for place, rank in enumerate(members)]
    outputs = form(held)
    total = sum(loss(params.loss, y, held[place]) for place, y in enumerate(outputs))
    if isinstance(total, torch.Tensor) and total.requires_grad:
        total.backward()
    said: list[Said] = []
    for place, y in enumerate(outputs):
        mine: Said = [("output", "y", y.detach())]
        if params.loss == "accumulate":
            mine.append(("output", "y2", y.detach()))
        mine += [("grad", spec.name, held[place][spec.name].grad) for spec in specs[place] if spec.role != "cotangent"]
        said.append(mine)
    return said


def _leaf(case: CaseInfo, spec: TensorSpec, rank: int, dtype: torch.dtype) -> torch.Tensor:
    values = drawn(case, spec, rank).clone()
    if spec.integers:
        return values
    # First what the rank is given, in the case's type; then what is calculated in.
    return values.to(dtype_of(case.dtype)).to(dtype).requires_grad_(spec.role == "input")


def loss(name: str, y: torch.Tensor, held: Holding) -> torch.Tensor | float:
    """The loss of one rank; see :class:`jobs.probes.case.Params`. 0 where no backward runs."""
    if name in ("forward_only", "none"):
        return 0.0
    if name == "sum":
        return y.sum()
    if name == "weighted":
        return (y * held["w"]).sum()
    if name == "accumulate":
        return (y * held["w"]).sum() + (y * held["w2"]).sum()
    square = (y * y).sum()
    if name == "shared":
        return square + (y * held["w"]).sum()
    return square * LOSS_SCALE if name == "scaled" else square
