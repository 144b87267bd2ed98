"""The truth about torch's own collectives: linear maps between what all ranks hold, and their transposes.

All ranks' inputs are put together in one process. Each collective is a linear map on that, so that the gradient of the
sum of all ranks' losses is its transpose, written down by hand beside it, applied to the ranks' incoming gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected
from jobs.oracle.drawn import Parts, direction, drawn
from jobs.probes.torch_itself.shapes import IGNORED, Aggregation, Collective, params_of
from jobs.values import dtype_of

Map = Callable[[Parts], Parts]


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``."""
    params = params_of(case)
    ranks = params.ranks(world_size)
    for first in range(0, world_size, ranks):
        yield from _group(case, params, world_size, range(first, first + ranks))


def _group(case: CaseInfo, params: Collective | Aggregation, world_size: int, members: range) -> Iterator[Expected]:
    specs = [params.tensors(world_size, place) for place in range(len(members))]
    named = {
        spec.name: [drawn(case, specs[place][index], rank) for place, rank in enumerate(members)]
        for index, spec in enumerate(specs[0])
    }
    if isinstance(params, Aggregation):
        forward, transpose = _aggregation(params, world_size)
    else:
        forward, transpose = MAPS[params.collective](params, world_size)
    outputs = forward(named["x"])
    gradients = transpose(_incoming(params.loss, outputs, named))
    for place, rank in enumerate(members):
        yield Expected(rank, "output", "y", outputs[place])
        yield Expected(rank, "grad", "x", gradients[place])
        for spec in specs[place]:
            same = named[spec.name][place].to(dtype_of(case.dtype))
            yield Expected(rank, "cotangent" if spec.role == "cotangent" else "input", spec.name, same)
            if spec.role == "input":
                yield Expected(rank, "fd", spec.name, direction(case, spec, rank))


def _incoming(loss: str, outputs: Parts, named: dict[str, Parts]) -> Parts:
    """The gradient of each rank's loss at its output."""
    if loss == "weighted":
        return named["w"]
    return [torch.ones_like(y) if loss == "sum" else 2 * y for y in outputs]


def _total(parts: Parts) -> torch.Tensor:
    return torch.stack(parts).sum(0)


def _all_reduce(params: Collective, world_size: int) -> tuple[Map, Map]:
    def everywhere(parts: Parts) -> Parts:
        return [_total(parts)] * len(parts)

    return everywhere, everywhere


def _joined(parts: Parts) -> Parts:
    return [torch.cat(parts)] * len(parts)


def _cut(parts: Parts) -> Parts:
    return list(_total(parts).tensor_split(len(parts)))


def _broadcast(params: Collective, world_size: int) -> tuple[Map, Map]:
    def from_first(parts: Parts) -> Parts:
        return [parts[0]] * len(parts)

    def to_first(parts: Parts) -> Parts:
        return [_total(parts), *(torch.zeros_like(part) for part in parts[1:])]

    return from_first, to_first


def _all_to_all(params: Collective, world_size: int) -> tuple[Map, Map]:
    """The rows that a rank sends are cut at its own counts, those that arrive at its partners'."""
    ranks = range(params.ranks(world_size))
    leaving = [params.counts(world_size, source) for source in ranks]
    arriving = [[leaving[source][target] for source in ranks] for target in ranks]

    def moved(parts: Parts, counts: list[list[int]] | list[tuple[int, ...]]) -> Parts:
        pieces = [part.split(list(cuts)) for part, cuts in zip(parts, counts, strict=True)]
        return [torch.cat([mine[target] for mine in pieces]) for target in ranks]

    return lambda parts: moved(parts, leaving), lambda parts: moved(parts, arriving)


MAPS: dict[str, Callable[[Collective, int], tuple[Map, Map]]] = {
    "all_reduce": _all_reduce,
    "all_gather": lambda params, world_size: (_joined, _cut),
    "reduce_scatter": lambda params, world_size: (_cut, _joined),
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
}
"""Per collective, the map and its transpose."""


def _aggregation(params: Aggregation, world_size: int) -> tuple[Map, Map]:
    """The token mean of the negative log-probabilities at the targets: linear in them, the same on every rank."""
    labels = torch.tensor([params.labels(world_size, place) for place in range(params.ranks(world_size))])
    live = labels != IGNORED

    def mean(parts: Parts) -> Parts:
        at_target = torch.stack(parts).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        return [-at_target[live].mean()] * len(parts)

    def back(incoming: Parts) -> Parts:
        gradient = torch.zeros(*labels.shape, params.tensors(world_size, 0)[0].shape[1], dtype=torch.float64)
        gradient[live, labels[live]] = -_total(incoming) / live.sum()
        return list(gradient.unbind(0))

    return mean, back
