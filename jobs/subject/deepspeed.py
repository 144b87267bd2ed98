"""DeepSpeed 0.14.2 and newer. Its API has changed shape several times: each shape is found by its names, never by
a version number, since a commit between two releases has whichever names it has.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.subject.base import Operation, RankContext, Subject, Unsupported

LAYER = "deepspeed.sequence.layer"
SHARD, KV_HEADS = "deepspeed.module_inject.tp_shard", "num_kv_heads"
SCATTER_GATHER = {
    ("bshd", "heads"): (2, 1),
    ("bshd", "sequence"): (1, 2),
    ("sbhd", "heads"): (2, 0),
    ("sbhd", "sequence"): (0, 2),
}
"""The dimensions to scatter and to gather, as documented; some paths ignore the second, others obey it."""
BATCH_DIM = {"bshd": 0, "sbhd": 1}


class SequenceUnit:
    """Stands in for Megatron's ``mpu``: where DeepSpeed learns this rank's place in its sequence-parallel group.

    Without it the exchange of uneven heads takes every rank for rank 0, silently.
    """

    def __init__(self) -> None:
        self.context: RankContext | None = None

    def get_sequence_parallel_rank(self) -> int:
        """This rank's place in the group in use."""
        return self._now().sp_rank

    def get_sequence_parallel_world_size(self) -> int:
        """The size of the group in use."""
        return self._now().sp_size

    def get_sequence_parallel_group(self) -> Any:
        """The group in use."""
        return self._now().group

    def _now(self) -> RankContext:
        if self.context is None:
            raise RuntimeError("no sequence-parallel group is in use")
        return self.context


class DeepSpeed(Subject):
    """The adapter: imports the library, makes it ready in a rank, and finds the operations that it has."""

    name = "deepspeed"

    def __init__(self) -> None:
        self._root = ""
        self._kv_heads: dict[str, Any] = {}
        self._unit = SequenceUnit()

    def prepare_import(self, root: str) -> None:
        """Choose the CPU where there is no GPU: otherwise the choice depends on what else is installed."""
        import torch

        self._root = root
        if "DS_ACCELERATOR" not in os.environ and not torch.cuda.is_available():
            os.environ["DS_ACCELERATOR"] = "cpu"

    def load(self, root: str) -> None:
        """Import the library and its sequence layer."""
        self._root = root
        with _quiet():
            importlib.import_module("deepspeed")
            layer = importlib.import_module(LAYER)
        shard = sys.modules.get(SHARD)
        self._kv_heads = {name: value for name, value in vars(shard).items() if name == KV_HEADS} if shard else {}
        if hasattr(layer, "_dim_zero_all_to_all"):
            # torch imports its tracer on the first call of a registered operator: once here, not in every rank.
            importlib.import_module("torch._dynamo")

    def version(self) -> str | None:
        """The version that it was packaged with, else the one that a checkout of its repository names."""
        packaged = getattr(sys.modules["deepspeed"], "__version__", None)
        if packaged not in (None, "0.0.0"):
            return str(packaged)
        stated = Path(self._root) / "version.txt"
        return stated.read_text().strip() if stated.is_file() else packaged

    def setup(self, contexts: Sequence[RankContext]) -> None:
        """Initialise its communication on top of torch's, and register every group where groups have names."""
        communication = importlib.import_module("deepspeed.comm.torch")
        if hasattr(communication, "build_shm_op"):
            # It would start a C++ build for an operation that no exchange uses.
            communication.build_shm_op = lambda: None  # type: ignore[attr-defined]
        backend = "nccl" if contexts[0].transport == "nccl" else "gloo"
        with _quiet():
            sys.modules["deepspeed"].init_distributed(backend, auto_mpi_discovery=False)
        groups = importlib.import_module("deepspeed.utils.groups")
        groups.mpu = self._unit  # type: ignore[attr-defined]
        register = getattr(self._layer(), "register_all_to_all_group", None)
        for context in contexts:
            self._unit.context = context
            if register is not None:
                register(context.group)

    def reset(self) -> None:
        """Forget the number of key/value heads, which from 0.15.4 to 0.19.6 is one for the whole process.

        As long as nobody sets it there is no such variable, and None is not the same: put back what the import left.
        """
        shard = sys.modules.get(SHARD)
        if shard is not None:
            vars(shard).pop(KV_HEADS, None)
            vars(shard).update(self._kv_heads)

    def dim0_exchange(self, ctx: RankContext) -> Operation:
        """``_dim_zero_all_to_all`` (an operator), else ``_DimZeroAllToAll`` (an autograd function)."""
        layer, group = self._layer(), ctx.group
        function, operator = getattr(layer, "_DimZeroAllToAll", None), getattr(layer, "_dim_zero_all_to_all", None)
        if operator is not None:
            return lambda x: operator(group, x)
        if function is not None:
            return lambda x: function.apply(group, x)
        raise Unsupported(f"{LAYER} has neither _dim_zero_all_to_all nor _DimZeroAllToAll")

    def seq_head_exchange(self, ctx: RankContext, *, layout: str, scatter: str, heads: int) -> Operation:
        """``_SeqAllToAll.apply``."""
        self._unit.context = ctx
        return _generation(self._layer())(self._layer(), ctx, layout, scatter, heads).differentiable()

    def single_all_to_all(
        self, ctx: RankContext, *, layout: str, scatter: str, heads: int, overlapped: bool
    ) -> Operation:
        """``single_all_to_all``, finished through its handle where ``overlapped``."""
        self._unit.context = ctx
        exchange = _generation(self._layer())(self._layer(), ctx, layout, scatter, heads)
        return exchange.overlapped() if overlapped else exchange.plain()

    def _layer(self) -> Any:
        return sys.modules[LAYER]


class GatherIndex:
    """Up to 0.14.4: the layout is known from the dimension to gather alone."""

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
    """The shape of the sequence layer's API."""
    for name in ("single_all_to_all", "_SeqAllToAll"):
        if not hasattr(layer, name):
            raise Unsupported(f"{LAYER} has no {name}")
    parameters = inspect.signature(layer.single_all_to_all).parameters
    if "num_kv_heads" in parameters:
        return KeywordHeads
    if hasattr(layer, "uneven_heads_all2all"):
        return ProcessHeads
    return BatchDim if "batch_dim_idx" in parameters else GatherIndex


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's remarks below a warning off stdout, where it sends them while it is imported and set up."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
