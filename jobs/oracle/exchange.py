"""The truth about exchanges: they permute the whole tensor, so that outputs and gradients are slices of one.

All ranks' inputs are put together into the whole tensor (for a dim-0 exchange: the matrix of blocks), everything is
computed there in float64, and cut into what each rank must hold. The layer's factors and the losses are differentiated
by hand: with y = b·E(a·x) and a loss with gradient g at y, the gradient at x is a·b·E⁻¹(g).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected
from jobs.oracle.drawn import Parts, direction, drawn
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE, LOSS_SCALE
from jobs.probes.exchange.shapes import Exchange, params_of
from jobs.values import dtype_of


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``."""
    params = params_of(case)
    ranks = params.ranks(world_size)
    for first in range(0, world_size, ranks):
        yield from _group(case, params, world_size, tuple(range(first, first + ranks)))


def _group(case: CaseInfo, params: Exchange, world_size: int, members: tuple[int, ...]) -> Iterator[Expected]:
    specs = [params.tensors(world_size, place) for place in range(len(members))]
    named = {
        spec.name: [drawn(case, specs[place][index], rank) for place, rank in enumerate(members)]
        for index, spec in enumerate(specs[0])
    }
    exchange, inverse = _maps(params)
    factor = LAYER_BEFORE * LAYER_AFTER if params.wrap == "layer" else 1.0
    there = exchange([x + c for x, c in zip(named["x"], named["c"], strict=True)] if "c" in named else named["x"])
    outputs = [factor * part for part in there]
    gradients = LOSSES[params.loss](outputs, named)
    at_x = inverse(gradients) if gradients is not None else None
    for place, rank in enumerate(members):
        yield Expected(rank, "output", "y", outputs[place])
        if params.loss == "accumulate":
            yield Expected(rank, "output", "y2", outputs[place])
        for spec in specs[place]:
            same = named[spec.name][place].to(dtype_of(case.dtype))
            yield Expected(rank, "cotangent" if spec.role == "cotangent" else "input", spec.name, same)
            if spec.role == "input" and at_x is not None:
                yield Expected(rank, "grad", spec.name, factor * at_x[place])
                yield Expected(rank, "fd", spec.name, direction(case, spec, rank))
            elif spec.role != "cotangent":
                yield Expected(rank, "grad", spec.name, None)


def _square(outputs: Parts, named: dict[str, Parts]) -> Parts:
    return [2 * y for y in outputs]


LOSSES: dict[str, Callable[[Parts, dict[str, Parts]], Parts | None]] = {
    "square": _square,
    "frozen": _square,
    "scaled": lambda outputs, named: [2 * LOSS_SCALE * y for y in outputs],
    "weighted": lambda outputs, named: named["w"],
    "shared": lambda outputs, named: [2 * y + w for y, w in zip(outputs, named["w"], strict=True)],
    "accumulate": lambda outputs, named: [w + w2 for w, w2 in zip(named["w"], named["w2"], strict=True)],
    "forward_only": lambda outputs, named: None,
    "none": lambda outputs, named: None,
}
"""Per loss, its gradient at the output of each rank; None where no backward runs."""


def _maps(params: Exchange) -> tuple[Callable[[Parts], Parts], Callable[[Parts], Parts]]:
    """The exchange and its inverse, on what all ranks of a group hold."""
    if not params.layout:
        # The matrix of blocks [rank, block, …] is transposed, and a transposition undoes itself.
        def swap(parts: Parts) -> Parts:
            return list(torch.stack(parts).transpose(0, 1).unbind(0))

        return swap, swap
    sequence = 1 if params.layout == "bshd" else 0
    to_heads, to_sequence = _recut(sequence, 2), _recut(2, sequence)
    return (to_heads, to_sequence) if params.scatter == "heads" else (to_sequence, to_heads)


def _recut(joined: int, cut: int) -> Callable[[Parts], Parts]:
    """Join the parts along one dimension into the whole tensor, and cut that along another: first parts largest."""

    def recut(parts: Parts) -> Parts:
        return list(torch.cat(parts, joined).tensor_split(len(parts), cut))

    return recut
