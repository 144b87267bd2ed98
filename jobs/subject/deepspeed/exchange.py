"""DeepSpeed's exchanges. Its sequence layer has changed shape several times: each shape is found by its names."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from jobs.subject.base import Operation, RankContext, Unsupported
from jobs.subject.deepspeed.core import LAYER, SHARD, Core

SCATTER_GATHER = {
    ("bshd", "heads"): (2, 1),
    ("bshd", "sequence"): (1, 2),
    ("sbhd", "heads"): (2, 0),
    ("sbhd", "sequence"): (0, 2),
}
"""The dimensions to scatter and to gather, as documented; some paths ignore the second, others obey it."""
BATCH_DIM = {"bshd": 0, "sbhd": 1}


class Exchanges(Core):
    """The family ``exchange``."""

    def dim0_exchange(self, ctx: RankContext) -> Operation:
        """``_dim_zero_all_to_all`` (an operator), else ``_DimZeroAllToAll`` (an autograd function)."""
        layer, group = self.layer(), ctx.group
        function, operator = getattr(layer, "_DimZeroAllToAll", None), getattr(layer, "_dim_zero_all_to_all", None)
        if operator is not None:
            return lambda x: operator(group, x)
        if function is not None:
            return lambda x: function.apply(group, x)
        raise Unsupported(f"{LAYER} has neither _dim_zero_all_to_all nor _DimZeroAllToAll")

    def seq_head_exchange(self, ctx: RankContext, *, layout: str, scatter: str, heads: int) -> Operation:
        """``_SeqAllToAll.apply``."""
        self.unit.context = ctx
        return _generation(self.layer())(self.layer(), ctx, layout, scatter, heads).differentiable()

    def single_all_to_all(
        self, ctx: RankContext, *, layout: str, scatter: str, heads: int, overlapped: bool
    ) -> Operation:
        """``single_all_to_all``, finished through its handle where ``overlapped``."""
        self.unit.context = ctx
        exchange = _generation(self.layer())(self.layer(), ctx, layout, scatter, heads)
        return exchange.overlapped() if overlapped else exchange.plain()


class GatherIndex:
    """Up to 0.14.4: the layout is known from the dimension to gather alone."""

    single: tuple[str, ...] = ("scatter_idx", "gather_idx", "group")
    function: tuple[str, ...] = ("scatter_idx", "gather_idx")
    """What single_all_to_all takes behind the tensor, and _SeqAllToAll.forward behind context, group and tensor."""

    def __init__(self, layer: Any, ctx: RankContext, layout: str, scatter: str, heads: int) -> None:
        self.layer, self.group, self.heads = layer, ctx.group, heads
        self.uneven, self.scatter = heads % ctx.sp_size != 0, scatter
        self.dims = self.arguments(layout, scatter)
        self.check()

    def arguments(self, layout: str, scatter: str) -> tuple[int, ...]:
        """What every call names after the tensor."""
        return SCATTER_GATHER[layout, scatter]

    def check(self) -> None:
        """Refuse what this generation has not."""
        if self.uneven:
            raise Unsupported(f"{LAYER} has no uneven_heads_all2all")

    def differentiable(self) -> Operation:
        """The exchange with a derivative."""
        apply, group, dims = self.layer._SeqAllToAll.apply, self.group, self.dims
        return lambda x: apply(group, x, *dims)

    def plain(self) -> Operation:
        """The exchange without one."""
        exchange, group, dims = self.layer.single_all_to_all, self.group, self.dims
        return lambda x: exchange(x, *dims, group)

    def overlapped(self) -> Operation:
        """The exchange without one, started and finished apart."""
        raise Unsupported(f"{LAYER}.single_all_to_all has no async_op")


class BatchDim(GatherIndex):
    """0.14.5 to 0.15.3: calls name the batch dimension, and can be asynchronous."""

    single = (*GatherIndex.function, "batch_dim_idx", "group", "async_op", "handle", "type")
    function = (*GatherIndex.function, "batch_dim_idx", "stream", "handle", "type", "is_fwd")

    def arguments(self, layout: str, scatter: str) -> tuple[int, ...]:
        """With the batch dimension."""
        return (*SCATTER_GATHER[layout, scatter], BATCH_DIM[layout])

    def overlapped(self) -> Operation:
        """Started with a handle, waited for, and finished by the function that the handle holds."""
        exchange, group, dims, more = self.layer.single_all_to_all, self.group, self.dims, self.keywords()

        def start_and_finish(x: Any) -> Any:
            handle: dict[str, Any] = {}
            exchange(x, *dims, group, async_op=True, handle=handle, type="dq", **more)
            handle["dq_work"].wait()
            return handle["dq_post_all2all_func"](handle["dq_grad"])

        return start_and_finish

    def keywords(self) -> dict[str, Any]:
        """What calls of ``single_all_to_all`` name besides."""
        return {}


class ProcessHeads(BatchDim):
    """0.15.4 to 0.19.6: uneven heads, whose number is one for the whole process.

    An exchange towards heads notes the number that it sees; one towards the sequence sees only its own share, and needs
    it noted before.
    """

    def check(self) -> None:
        """Nothing is missing."""

    def differentiable(self) -> Operation:
        """The exchange with a derivative."""
        return self._noting(super().differentiable())

    def plain(self) -> Operation:
        """The exchange without one."""
        return self._noting(super().plain())

    def _noting(self, exchange: Operation) -> Operation:
        if not (self.uneven and self.scatter == "sequence"):
            return exchange
        note = importlib.import_module(SHARD).set_num_kv_heads

        def noted(x: Any) -> Any:
            note(self.heads)
            return exchange(x)

        return noted


class KeywordHeads(BatchDim):
    """0.19.7 on: calls name the number of key/value heads, as DistributedAttention does on every call."""

    single, function = (*BatchDim.single, "num_kv_heads"), (*BatchDim.function, "num_kv_heads")

    def check(self) -> None:
        """Nothing is missing."""

    def keywords(self) -> dict[str, Any]:
        """The number of heads before they are shared out."""
        return {"num_kv_heads": self.heads}

    def differentiable(self) -> Operation:
        """The exchange with a derivative."""
        apply, group, dims, heads = self.layer._SeqAllToAll.apply, self.group, self.dims, self.heads
        # An autograd function takes no keywords: stream, handle, type and direction stand before the heads.
        return lambda x: apply(group, x, *dims, None, None, None, True, heads)

    def plain(self) -> Operation:
        """The exchange without one."""
        exchange, group, dims, heads = self.layer.single_all_to_all, self.group, self.dims, self.heads
        return lambda x: exchange(x, *dims, group, num_kv_heads=heads)


def _generation(layer: Any) -> type[GatherIndex]:
    """The shape of the sequence layer's API. Raises Unsupported for one that is none of those known."""
    for name in ("single_all_to_all", "_SeqAllToAll"):
        if not hasattr(layer, name):
            raise Unsupported(f"{LAYER} has no {name}")
    parameters = inspect.signature(layer.single_all_to_all).parameters
    found: type[GatherIndex] = BatchDim if "batch_dim_idx" in parameters else GatherIndex
    if "num_kv_heads" in parameters:
        found = KeywordHeads
    elif hasattr(layer, "uneven_heads_all2all"):
        found = ProcessHeads
    _check_signature("single_all_to_all", layer.single_all_to_all, 1, found.single)
    _check_signature("_SeqAllToAll.forward", layer._SeqAllToAll.forward, 3, found.function)
    return found


def _check_signature(name: str, function: Any, ahead: int, known: tuple[str, ...]) -> None:
    """Raise Unsupported, naming the signature, unless behind the first ``ahead`` it takes what is known.

    Calls are made by position. What comes after that may be new, where it need not be given.
    """
    signature = inspect.signature(function)
    taken = list(signature.parameters.values())[ahead:]
    more = [one for one in taken[len(known) :] if one.default is one.empty]
    if tuple(one.name for one in taken[: len(known)]) != known or more:
        raise Unsupported(f"{LAYER}.{name}{signature} is of no known signature; known is (…, {', '.join(known)})")
