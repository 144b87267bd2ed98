"""DeepSpeed's ``DistributedAttention``. What its constructor and its forward are given is decided by their names."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from jobs.subject.base import RankContext, Unsupported
from jobs.subject.deepspeed.core import LAYER, SHARD, Core
from jobs.subject.deepspeed.exchange import BATCH_DIM, SCATTER_GATHER
from jobs.subject.deepspeed.streams import StandInAccelerator, StandInStream
from jobs.subject.operations.attention import Attend

CLASS = "DistributedAttention"
ACCELERATOR = "get_accelerator"


class DistributedAttentions(Core):
    """The first probe of family ``attention``."""

    def __init__(self) -> None:
        super().__init__()
        self._replaced: dict[str, Any] = {}

    def distributed_attention(
        self,
        ctx: RankContext,
        *,
        core: Any,
        layout: str,
        heads: int,
        kv_heads: int,
        rotary: bool = False,
        gather: str = "layout",
        told: bool = False,
        overlap: str = "no",
    ) -> Attend:
        """``DistributedAttention``, made once and called as its documentation says."""
        self.unit.context = ctx
        layer = self.layer()
        scatter_idx, gather_idx = SCATTER_GATHER[layout, "heads"]
        if kv_heads % ctx.sp_size and kv_heads > ctx.sp_size and not hasattr(layer, "uneven_heads_all2all"):
            raise Unsupported(f"{LAYER} has no uneven_heads_all2all")
        made = {"scatter_idx": scatter_idx, "gather_idx": 0 if gather == "zero" else gather_idx}
        stream = _stream(overlap)
        if stream is not None:
            made["sp_stream"] = stream
        note = self._note_of(layer, told, kv_heads, made)
        attention = _made(layer, core, ctx, made)
        call = _call_of(attention, BATCH_DIM[layout], rotary)
        if overlap == "stand_in":
            call = self._with_stand_ins(layer, attention, call)
        if note is None:
            return call
        noted = note

        def after_note(*tensors: Any) -> Any:
            noted(kv_heads)
            return call(*tensors)

        return after_note

    def _note_of(self, layer: Any, told: bool, kv_heads: int, made: dict[str, Any]) -> Any:
        """How the number of key/value heads is stated: an argument of the constructor, or one call for the process."""
        if not told:
            return None
        if "num_kv_heads" in inspect.signature(_class(layer)).parameters:
            made["num_kv_heads"] = kv_heads
            return None
        if hasattr(layer, "set_num_kv_heads"):
            return importlib.import_module(SHARD).set_num_kv_heads
        raise Unsupported(f"{LAYER}.{CLASS} has no num_kv_heads, and {LAYER} no set_num_kv_heads")

    def _with_stand_ins(self, layer: Any, attention: Any, call: Attend) -> Attend:
        """Give the layer an accelerator with streams, from a call on until :meth:`reset`: backwards ask for it too."""
        accelerator = getattr(layer, ACCELERATOR)()
        stand_in = StandInAccelerator(accelerator)
        for name in ("default_stream", "dafult_stream"):  # as it is spelt up to 0.17
            if hasattr(attention, name):
                setattr(attention, name, stand_in.default_stream())
        self._replaced.setdefault(ACCELERATOR, getattr(layer, ACCELERATOR))

        def overlapped(*tensors: Any) -> Any:
            setattr(layer, ACCELERATOR, lambda: stand_in)
            return call(*tensors)

        return overlapped

    def reset(self) -> None:
        """Give the layer its own accelerator back."""
        super().reset()
        for name, original in self._replaced.items():
            setattr(self.layer(), name, original)


def _class(layer: Any) -> Any:
    attention = getattr(layer, CLASS, None)
    if attention is None:
        raise Unsupported(f"{LAYER} has no {CLASS}")
    return attention


def _stream(overlap: str) -> Any:
    """What is handed in as ``sp_stream``."""
    if overlap == "no":
        return None
    if overlap == "stand_in":
        return StandInStream()
    import torch

    if not torch.cuda.is_available():
        raise Unsupported("there is no CUDA device to make a stream on")
    return torch.cuda.Stream()


def _made(layer: Any, core: Any, ctx: RankContext, made: dict[str, Any]) -> Any:
    attention = _class(layer)
    signature = inspect.signature(attention)
    if "sp_stream" in made and "sp_stream" not in signature.parameters:
        raise Unsupported(f"{LAYER}.{CLASS} has no sp_stream: it does not overlap exchanges with calculation")
    try:
        signature.bind(core, ctx.group, **made)
    except TypeError as error:
        raise Unsupported(f"{LAYER}.{CLASS}{signature} is of no known signature: {error}") from None
    return attention(core, ctx.group, **made)


def _call_of(attention: Any, batch_dim: int, rotary: bool) -> Attend:
    """How its forward is called: with the batch dimension and a rotary embedding where it asks for them."""
    signature = inspect.signature(attention.forward)
    if rotary and "rotary_pos_emb" not in signature.parameters:
        raise Unsupported(f"{LAYER}.{CLASS}.forward has no rotary_pos_emb")
    more = (batch_dim,) if "batch_dim_idx" in signature.parameters else ()
    try:
        signature.bind("q", "k", "v", *more)
    except TypeError as error:
        raise Unsupported(f"{LAYER}.{CLASS}.forward{signature} is of no known signature: {error}") from None
    if rotary:
        return lambda q, k, v, cos, sin: attention(q, k, v, *more, (cos, sin))
    return lambda q, k, v: attention(q, k, v, *more)
