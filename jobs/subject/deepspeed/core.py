"""DeepSpeed as a whole: importing it, making it ready in a rank, and forgetting what it keeps between cases."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.subject.base import RankContext, Subject

LAYER = "deepspeed.sequence.layer"
SHARD, KV_HEADS = "deepspeed.module_inject.tp_shard", "num_kv_heads"


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


class Core(Subject):
    """What every family's part stands on."""

    name = "deepspeed"

    def __init__(self) -> None:
        self._root = ""
        self._kv_heads: dict[str, Any] = {}
        self.unit = SequenceUnit()

    def prepare_import(self, root: str) -> None:
        """Choose the CPU where there is no GPU: otherwise the choice depends on what else is installed."""
        import torch

        self._root = root
        if "DS_ACCELERATOR" not in os.environ and not torch.cuda.is_available():
            os.environ["DS_ACCELERATOR"] = "cpu"

    def load(self, root: str) -> None:
        """Import the library and its sequence layer."""
        self._root = root
        with quiet():
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
        with quiet():
            sys.modules["deepspeed"].init_distributed(backend, auto_mpi_discovery=False)
        groups = importlib.import_module("deepspeed.utils.groups")
        groups.mpu = self.unit  # type: ignore[attr-defined]
        register = getattr(self.layer(), "register_all_to_all_group", None)
        for context in contexts:
            self.unit.context = context
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

    def layer(self) -> Any:
        """The module of its exchanges."""
        return sys.modules[LAYER]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's remarks below a warning off stdout, where it sends them while it is imported and set up."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
