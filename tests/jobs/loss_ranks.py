"""Runs inside a runtime: loss cases on forked ranks, compared with the oracle; prints JSON.

    python loss_ranks.py WORLD_SIZE loops|reference|mutants|gathers [MODE]

``loops`` compares the oracle with a formulation in plain loops and Python's own arithmetic, whose gradient is the
closed form (softmax minus one at the label), and that with central differences; it forks nothing. ``reference`` runs
our own right loss on every case in float32 and float64, ``mutants`` every control of the mode; ``gathers`` the
stand-in for NCCL's gathers. The answer maps a case or control to what was wrong; see ``forked``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from jobs import oracle, probes, trace
from jobs.contract import CaseInfo, ControlInfo
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE, LOSS_SCALE, input_key
from jobs.probes.loss import run as family
from jobs.probes.loss.shapes import IGNORED, Aggregate, Loss, Shards, Tokens, params_of
from jobs.subject.base import RankContext
from jobs.subject.deepspeed.loss import _LikeNccl
from jobs.values import dyadic
from tests.jobs.forked import Build, run
from tests.jobs.slopes import SLOPES


def main() -> None:
    world_size, what, *rest = sys.argv[1:]
    mode = rest[0] if rest else "eager"
    cases = [case for case in probes.catalogue() if case.family == "loss" and case.runs_at(int(world_size))]
    right = [case for case in cases if case.expect == "values" and case.accepts == "oracle"]
    if what == "loops":
        answer: dict[str, Any] = {case.id: loops(case, int(world_size)) for case in right}
    else:
        trace.warm(() if mode == "eager" else (mode,))
        torch.set_num_threads(1)
        units = plan(what, cases if what == "mutants" else right, mode)
        answer = dict(zip(units, run(int(world_size), units.values(), mode=mode), strict=True))
    sys.stdout.write(json.dumps(answer))


def plan(what: str, cases: list[CaseInfo], mode: str) -> dict[str, tuple[CaseInfo, Build]]:
    known = {case.id: case for case in cases}
    controls = [one for one in probes.controls() if one.family == "loss" and one.case in known]
    if what == "gathers":
        case = next(iter(cases))
        return {case.id: (case, gathering)}
    if what == "mutants":

        def build_of(control: ControlInfo) -> Build:
            return lambda case, ctx: family.build_control(control, case, ctx)

        return {one.id: (known[one.case], build_of(one)) for one in controls if mode in one.modes}
    reference = next(one for one in controls if ".reference" in one.id)

    def build(case: CaseInfo, ctx: RankContext) -> Any:
        return family.build_control(dataclasses.replace(reference, case=case.id), case, ctx)

    return {case.id: (case, build) for case in cases if case.dtype in ("float32", "float64")}


def gathering(case: CaseInfo, ctx: RankContext) -> Any:
    """Raises what it found: tensors whose shapes differ, and on each rank another number of them, all gathered."""
    like = _LikeNccl(dist, ctx)
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(ctx.sp_size)]
    like.all_gather(counts, torch.tensor(ctx.sp_rank + 5), group=ctx.group)
    sizes = [torch.zeros(2, place + 1) for place in range(ctx.sp_size)]
    like.all_gather(sizes, torch.full((2, ctx.sp_rank + 1), float(ctx.rank)), group=ctx.group)
    whole = torch.empty(3 * ctx.sp_size, 2)
    like.all_gather_into_tensor(whole, torch.full((6,), float(ctx.rank)), group=ctx.group)
    rows = whole.reshape(ctx.sp_size, 6)[:, 0].tolist()
    raise RuntimeError(json.dumps([[int(count) for count in counts], [part.sum().item() for part in sizes], rows]))


# -- plain loops -----------------------------------------------------------------------------------------------------


class Token(NamedTuple):
    """One token: whose it is, where its logits lie in that rank's tensors, and its label."""

    rank: int
    at: tuple[int, ...]
    label: int


Weights = list[dict[int, float]]
"""Per element of an output: the coefficient of each token's cross entropy."""
HEIGHTS: dict[str, Callable[[float, dict[str, float]], float]] = {
    "sum": lambda y, w: y,
    "weighted": lambda y, w: w["w"] * y,
    "square": lambda y, w: y * y,
    "frozen": lambda y, w: y * y,
    "scaled": lambda y, w: y * y * LOSS_SCALE,
    "shared": lambda y, w: y * y + w["w"] * y,
    "accumulate": lambda y, w: (w["w"] + w["w2"]) * y,
}
"""The losses themselves, of one element."""


def loops(case: CaseInfo, world_size: int) -> list[str]:
    params, wrong = params_of(case), []
    truth = {(one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size)}
    size = case.sp or world_size
    for first in range(0, world_size, size):
        given = {
            (place, spec.name): dyadic(input_key(case, spec, first + place), spec.drawn, torch.float64)
            .mul(spec.factor)
            .expand(spec.shape)
            for place in range(size)
            for spec in params.tensors(world_size, place)
            if not spec.integers
        }
        group = Group(case, params, world_size, given)
        for place in range(size):
            y = truth[first + place, "output", "y"]
            assert y is not None
            if not near(y.flatten().tolist(), group.output(place), case):
                wrong.append(f"output {first + place}")
            gradient = truth[first + place, "grad", "x"]
            expected = group.gradient(place)
            if (gradient is None) != (expected is None):
                wrong.append(f"a gradient where there is none, or none where there is one, on {first + place}")
            elif gradient is not None and expected is not None:
                if not near(gradient.flatten().tolist(), expected.flatten().tolist(), case):
                    wrong.append(f"grad {first + place}")
                if first == 0 and place < 2:
                    wrong += group.differences(place, gradient)
    return wrong


class Group:
    """One group of ranks in plain arithmetic."""

    def __init__(self, case: CaseInfo, params: Loss, world_size: int, given: dict[tuple[int, str], Any]) -> None:
        self.params, self.given = params, given
        self.size = case.sp or world_size
        self.before, self.after = (
            (LAYER_BEFORE, LAYER_AFTER) if getattr(params, "wrap", "call") == "layer" else (1.0, 1.0)
        )
        self.tokens = tokens_of(params, world_size, self.size)
        self.weights = [weights_of(params, world_size, self.size, place, self.tokens) for place in range(self.size)]
        self.share = 1 / self.size if params.once else 1.0

    def each(self, name: str) -> list[float]:
        """The cross entropy of every token."""
        losses = []
        for rank, at, label in self.tokens:
            row = [self.before * value for value in self.given[rank, name][at].tolist()]
            top = max(row)
            total = top + math.log(sum(math.exp(value - top) for value in row))
            losses.append(0.0 if label == IGNORED else total - row[label])
        return losses

    def output(self, place: int) -> list[float]:
        losses = self.each("x")
        if self.params.loss == "frozen":
            losses = [a + b for a, b in zip(losses, self.each("c"), strict=True)]
        return [
            self.after * sum(factor * losses[token] for token, factor in row.items()) for row in self.weights[place]
        ]

    def incoming(self, place: int, element: int) -> dict[str, float]:
        """The cotangents of one element of one rank's output."""
        return {
            name: float(self.given[place, name].flatten()[element])
            for name in ("w", "w2")
            if (place, name) in self.given
        }

    def gradient(self, place: int) -> Any:
        slope = SLOPES.get(self.params.loss)
        if slope is None:
            return None
        x = self.given[place, "x"]
        found = torch.zeros_like(x)
        at_token = [0.0] * len(self.tokens)
        for other in range(self.size):
            for element, (y, made_of) in enumerate(zip(self.output(other), self.weights[other], strict=True)):
                for token, factor in made_of.items():
                    at_token[token] += slope(y, self.incoming(other, element)) * factor
        for (rank, at, label), height in zip(self.tokens, at_token, strict=True):
            if rank == place and label != IGNORED:
                row = [math.exp(self.before * value) for value in x[at].tolist()]
                scale = self.share * height * self.before * self.after
                for index, value in enumerate(row):
                    found[at][index] += scale * (value / sum(row) - (index == label))
        return found

    def total(self) -> float:
        """The loss whose gradient is meant."""
        height = HEIGHTS[self.params.loss]
        return self.share * sum(
            height(y, self.incoming(place, element))
            for place in range(self.size)
            for element, y in enumerate(self.output(place))
        )

    def differences(self, place: int, gradient: Any) -> list[str]:
        """Where a central difference of the loss is not the oracle's gradient."""
        wrong, x, step = [], self.given[place, "x"].clone(), 2.0**-12
        self.given[place, "x"] = x
        for index in (0, x.numel() // 3, x.numel() - 1):
            at, losses = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), x.shape)), []
            before = float(x[at])
            for sign in (1, -1):
                x[at] = before + sign * step
                losses.append(self.total())
            x[at] = before
            slope = (losses[0] - losses[1]) / (2 * step)
            if abs(slope - float(gradient[at])) > 1e-5 * max(1.0, abs(slope), abs(losses[0])):
                wrong.append(f"difference {place} {at}: {slope} and not {float(gradient[at])}")
        return wrong


def tokens_of(params: Loss, world_size: int, size: int) -> list[Token]:
    """Every token of the group, the sequence's order within each rank."""
    tokens = []
    for rank in range(size):
        specs = params.tensors(world_size, rank)
        if isinstance(params, Tokens | Aggregate):
            _, columns = specs[1].shape
            tokens += [Token(rank, divmod(at, columns), label) for at, label in enumerate(specs[1].integers)]
            continue
        for sequence in range(size):
            _, ids, labels = params.tensors(world_size, sequence)[:3]
            length = ids.shape[1]
            shard = length // size
            for at, row in enumerate(ids.integers):
                if at % length // shard == rank:
                    follows = labels.integers[at + 1] if (at + 1) % length else IGNORED
                    tokens.append(Token(rank, (row,), follows))
    return tokens


def weights_of(params: Loss, world_size: int, size: int, place: int, tokens: list[Token]) -> Weights:
    """What each element of the rank's output is made of."""
    if isinstance(params, Tokens):
        return [{index: 1.0} for index, token in enumerate(tokens) if params.how != "local" or token.rank == place]
    live = [index for index, token in enumerate(tokens) if token.label != IGNORED]
    if isinstance(params, Aggregate):
        return [dict.fromkeys(live, 1.0 / len(live) if params.reduction == "mean" else 1.0)]
    rows = [params.first_row(world_size, sequence) for sequence in range(size + 1)]
    of = [[index for index in live if rows[m] <= tokens[index].at[0] < rows[m + 1]] for m in range(size)]
    if not isinstance(params, Shards) or not params.one_number:
        return [{index: 1.0 for index in mine if tokens[index].rank == place} for mine in of]
    return [{index: 1.0 / (len(mine) * size) for mine in of for index in mine}]


def near(got: list[float], expected: list[float], case: CaseInfo) -> bool:
    top = max(map(abs, expected), default=0.0)
    return len(got) == len(expected) and all(
        abs(a - b) <= 1e-13 * max(top, 1.0) for a, b in zip(got, expected, strict=True)
    )


if __name__ == "__main__":
    main()
