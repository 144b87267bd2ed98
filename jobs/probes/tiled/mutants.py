"""The implementations behind the controls: tiled functions of ours, right, or with what ``wrongs`` makes of them.

They stand in the subject's place, and know nothing of the oracle: they call the same functions shard by shard, once in
the forward and again in the backward, where torch differentiates them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from jobs.contract import ControlInfo
from jobs.probes.control import implementation_of
from jobs.probes.tiled.base import IGNORED
from jobs.probes.tiled.functions import Module
from jobs.probes.tiled.wrongs import BACKWARDS, FORWARDS, Gradients, Scene, right, right_gradients
from jobs.subject.base import RankContext, Subject

Call = Callable[..., torch.Tensor]


class _Tiled(torch.autograd.Function):
    """``evaluate`` without a graph; the backward evaluates it again, differentiates that, and mutates the outcome."""

    @staticmethod
    def forward(
        ctx: Any, evaluate: Call, name: str, shards: int, place: RankContext, *tensors: torch.Tensor
    ) -> torch.Tensor:
        kept = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
        ctx.evaluate, ctx.name, ctx.shards, ctx.place, ctx.kept = evaluate, name, shards, place, kept
        return FORWARDS.get(name, right)(evaluate(*tensors), tensors)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        live = [tensor for tensor in ctx.kept if tensor.requires_grad]

        def again(incoming: torch.Tensor) -> Gradients:
            with torch.enable_grad():
                y = ctx.evaluate(*ctx.kept)
            found = iter(torch.autograd.grad(y, live, incoming.reshape(y.shape)))
            return [next(found) if tensor.requires_grad else None for tensor in ctx.kept]

        scene = Scene(again(grad), grad, again, ctx.kept, ctx.shards, ctx.place)
        return (None, None, None, None, *BACKWARDS.get(ctx.name, right_gradients)(scene))


class Ours(Subject):
    """A library of our own, under the name of a control."""

    def __init__(self, name: str) -> None:
        if name not in ("reference", "traced_reference", "detached", *FORWARDS, *BACKWARDS):
            raise LookupError(f"no implementation is called {name}")
        self.name = name

    def _run(
        self, ctx: RankContext, shards: int, evaluate: Call, x: torch.Tensor, *others: torch.Tensor
    ) -> torch.Tensor:
        if self.name == "traced_reference":
            return evaluate(x, *others)
        x = x.detach() if self.name == "detached" else x
        return _Tiled.apply(evaluate, self.name, shards, ctx, x, *others)

    def tiled_mlp(self, ctx: RankContext, function: Call, *, shards: int) -> Call:
        """Shards are cut along the tokens."""

        def call(module: Module, x: torch.Tensor, parameters: Any) -> torch.Tensor:
            names = module.names

            def evaluate(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
                own = Module(names, weights)
                return torch.cat([function(own, part) for part in _cut(x, shards, -2)], -2)

            return self._run(ctx, shards, evaluate, x, *module.tensors)

        return call

    def tiled_compute(
        self, ctx: RankContext, function: Call, *, shards: int, unshard: int, reduction: str | None, wrapper: bool
    ) -> Call:
        """Every sharded tensor is cut alike."""

        def call(sharded: dict[str, Any], passed: dict[str, Any], key: str, parameters: Any) -> torch.Tensor:
            module = passed.get("module")
            names, weights = (
                (tuple(passed), tuple(passed.values())) if module is None else (module.names, module.tensors)
            )
            still = {name: _cut(tensor, shards, 1) for name, tensor in sharded.items() if name != key}

            def evaluate(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
                own = dict(zip(names, tensors, strict=True))
                given = own if module is None else {"module": Module(names, tensors)}
                parts = []
                for i, part in enumerate(_cut(x, shards, 1)):
                    beside = {name: cut[i] for name, cut in still.items()}
                    parts.append(function(**{key: part}, **beside, **given))
                whole = torch.stack(parts) if unshard == 0 else torch.cat(parts, unshard)
                return whole if reduction is None else _reduced(whole, reduction)

            return self._run(ctx, shards, evaluate, sharded[key], *weights)

        return call

    def tiled_fused_logits_loss(self, ctx: RankContext, function: Call, *, shards: int, reduction: str) -> Call:
        """Shards are cut from the tokens of all rows in one line."""

        def call(
            module: Module, x: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None, parameters: Any
        ) -> torch.Tensor:
            names = module.names
            still = [_cut(tensor.flatten(), shards, 0) for tensor in (labels, mask) if tensor is not None]

            def evaluate(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
                own, rows = Module(names, weights), _cut(x.reshape(-1, x.shape[-1]), shards, 0)
                return _reduced(
                    torch.stack([function(own, *parts) for parts in zip(rows, *still, strict=True)]), reduction
                )

            return self._run(ctx, shards, evaluate, x, *module.tensors)

        return call

    def tiled_loss(self, ctx: RankContext, function: Call, *, shards: int, vocabulary: int) -> Call:
        """Each shard's mean counts as often as it has live tokens; of none at all the mean is zero."""

        def call(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            cuts = _cut(labels, shards, 1)

            def evaluate(logits: torch.Tensor) -> torch.Tensor:
                total, live = logits.sum().float() * 0, (labels != IGNORED).sum()
                for part, wanted in zip(_cut(logits, shards, 1), cuts, strict=True):
                    if (count := (wanted != IGNORED).sum()) > 0:
                        total = total + function(part, None, vocabulary, wanted) * count
                return total / live.clamp(min=1)

            return self._run(ctx, shards, evaluate, logits)

        return call

    def chunked_feed_forward(self, ctx: RankContext, *, chunk: int, add_bias: bool) -> Callable[..., Any]:
        """The second bias is added, or handed back."""

        def evaluate(x: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
            _refuse_a_rest(len(x), chunk)
            parts = [F.gelu(part @ w[0].T + w[1], approximate="tanh") @ w[2].T for part in x.split(chunk)]
            return torch.cat(parts) + w[3] if add_bias else torch.cat(parts)

        def call(x: torch.Tensor, *w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            used = w if add_bias else w[:3]
            return self._run(ctx, len(x) // chunk, evaluate, x, *used), None if add_bias else w[3]

        return call

    def chunked_logits_loss(self, ctx: RankContext, *, chunks: int) -> Call:
        """The losses of the other ranks arrive without a derivative."""

        def call(x: torch.Tensor, labels: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
            _refuse_a_rest(len(x), len(x) // chunks, chunks)

            def evaluate(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
                wide = torch.promote_types(x.dtype, torch.float32)
                parts = zip(x.chunk(chunks), labels.T.chunk(chunks), strict=True)
                rows = [((part @ head.T).to(wide).permute(0, 2, 1), wanted) for part, wanted in parts]
                own = torch.cat([F.cross_entropy(*row, ignore_index=IGNORED, reduction="none") for row in rows])
                every = [torch.empty_like(own) for _ in range(ctx.sp_size)]
                dist.all_gather(every, own.detach().contiguous(), group=ctx.group)
                return torch.cat([own if place == ctx.sp_rank else other for place, other in enumerate(every)])

            return self._run(ctx, chunks, evaluate, x, head)

        return call


def implementation(control: ControlInfo) -> Subject:
    """The implementation that ``control`` names."""
    return Ours(implementation_of(control))


def _cut(tensor: torch.Tensor, shards: int, dim: int) -> Sequence[torch.Tensor]:
    """At most ``shards`` parts, none of them empty, the last one the smallest."""
    return tensor.split(-(-tensor.shape[dim] // shards), dim)


def _reduced(whole: torch.Tensor, reduction: str) -> torch.Tensor:
    return whole.mean() if reduction == "mean" else whole.sum()


def _refuse_a_rest(tokens: int, chunk: int, chunks: int | None = None) -> None:
    if chunk * (chunks or tokens // chunk) != tokens:
        raise ValueError(f"chunks of {chunk} do not divide {tokens} tokens")
