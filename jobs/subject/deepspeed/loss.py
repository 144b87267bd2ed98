"""DeepSpeed's losses over a sequence that is split, and the ways that its documentation puts one together."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jobs.subject.base import RankContext, Unsupported
from jobs.subject.deepspeed.core import Core
from jobs.subject.operations.loss import Batch, Cut, Loss, Step

if TYPE_CHECKING:
    import torch

CROSS_ENTROPY = "deepspeed.sequence.cross_entropy"
ULYSSES = "deepspeed.runtime.sequence_parallel.ulysses_sp"
IGNORED = -100
COPY = "_like_nccl"
"""Behind the name of a module, that of its copy; see :func:`_module`."""


class Losses(Core):
    """The family ``loss``."""

    def token_losses(self, ctx: RankContext, *, how: str, strict: bool) -> Loss:
        """``vocab_sequence_parallel_cross_entropy``, and ``vocab_parallel_cross_entropy`` from 0.19.8 on."""
        module, group = _module(CROSS_ENTROPY, ctx, strict=strict), ctx.group
        if how == "gathered":
            gathered = _attribute(module, "vocab_sequence_parallel_cross_entropy")
            _check(gathered, "sp_group")
            return lambda logits, labels: gathered(logits, labels, group)
        function = _attribute(module, "vocab_parallel_cross_entropy")
        _check(function, "sp_group", "reduction", "gather_sequence_loss")
        gather = how == "summed"
        return lambda logits, labels: function(
            logits, labels, sp_group=group, reduction="none", gather_sequence_loss=gather
        )

    def aggregated_loss(self, ctx: RankContext, *, recipe: str, reduction: str) -> Loss:
        """The recipes of its documentation, and ``vocab_parallel_cross_entropy`` where it reduces by itself."""
        self.unit.context = ctx
        if recipe == "own":
            function = _attribute(_module(CROSS_ENTROPY, ctx, strict=True), "vocab_parallel_cross_entropy")
            _check(function, "sp_group", "reduction")
            group = ctx.group
            return lambda logits, labels: function(logits, labels, sp_group=group, reduction=reduction)
        group = importlib.import_module("deepspeed.utils.groups")._get_sequence_parallel_group()
        reduce = importlib.import_module("deepspeed.comm").all_reduce
        return RECIPES[recipe](_Group(group, ctx.sp_size, reduce), reduction)

    def sequence_shards(self, ctx: RankContext, *, strict: bool) -> Cut:
        """``UlyssesSPDataLoaderAdapter`` around a loader of one batch."""
        adapter = _attribute(_module(ULYSSES, ctx, strict=strict), "UlyssesSPDataLoaderAdapter")
        _check(adapter, "dl", "sp_rank", "sp_group", "sp_world_size", "device")

        return lambda batch: list(adapter([dict(batch)], ctx.sp_rank, ctx.group, ctx.sp_size, ctx.device))

    def sequence_step(self, ctx: RankContext, *, pieces: int, strict: bool) -> Step:
        """``UlyssesSPFwdLossBwdWithLogits.sp_fwd_loss_bwd``."""
        steps = _attribute(_module(ULYSSES, ctx, strict=strict), "UlyssesSPFwdLossBwdWithLogits")
        _check(steps, "model", "model_unwrapped", "device", "num_loss_logit_shards")
        self.unit.context = ctx

        def step(batch: Batch, logits_of: Callable[[torch.Tensor], torch.Tensor]) -> float:
            model = _Engine(logits_of, ctx.sp_size)
            bare = SimpleNamespace(loss_function=_loss_function, config=SimpleNamespace(vocab_size=None))
            return float(steps(model, bare, ctx.device, pieces).sp_fwd_loss_bwd(dict(batch)))

        return step


class _Engine:
    """What a training engine is to the step: a model, and a backward that means over the accumulated batches."""

    def __init__(self, logits_of: Callable[[torch.Tensor], torch.Tensor], batches: int) -> None:
        self._logits_of, self._batches = logits_of, batches

    def __call__(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self._logits_of(input_ids))

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Nothing is stepped here."""

    def backward(self, loss: torch.Tensor) -> None:
        """The backward of one of the accumulated batches."""
        (loss / self._batches).backward()


def _loss_function(logits: torch.Tensor, labels: None, vocab_size: Any, shift_labels: torch.Tensor) -> torch.Tensor:
    """What a model's own loss function does with labels that are shifted already."""
    return _cross_entropy(logits, shift_labels, "mean")


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    """Cross entropy of this rank's tokens."""
    import torch

    flat = _wide(logits).reshape(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction=reduction)


def _wide(logits: torch.Tensor) -> torch.Tensor:
    """Models convert sixteen bits to float32 before the loss."""
    return logits.float() if logits.itemsize == 2 else logits


class _Group:
    """The group that the library names as that of sequence parallelism, and its own sum, which has no derivative."""

    def __init__(self, group: Any, ranks: int, reduce: Callable[..., Any]) -> None:
        self.group, self.ranks, self._reduce = group, ranks, reduce

    def total(self, count: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' counts, through the library."""
        total = count.clone()
        self._reduce(total, group=self.group)
        return total


def _all_gather(over: _Group, reduction: str) -> Loss:
    """As the tutorial on long sequences: losses and counts gathered by torch, ranks without tokens left out."""
    from torch.distributed.nn.functional import all_gather

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        mine = _cross_entropy(logits, labels, "mean")
        losses = all_gather(mine, group=over.group)
        counts = all_gather((labels != IGNORED).sum(), group=over.group)
        terms = [losses[rank] * counts[rank] for rank in range(over.ranks) if counts[rank] > 0]
        total = sum(terms[1:], terms[0])
        return total if reduction == "sum" else total / max(sum(counts), 1)

    return loss


def _all_reduce(over: _Group, reduction: str) -> Loss:
    """Sums reduced with their derivative, counts by the library."""
    from torch.distributed.nn.functional import all_reduce

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = all_reduce(_cross_entropy(logits, labels, "sum"), group=over.group)
        return total if reduction == "sum" else total / over.total((labels != IGNORED).sum())

    return loss


def _weighted_all_reduce(over: _Group, reduction: str) -> Loss:
    """Means times counts reduced; a rank without tokens puts a zero that hangs on its logits in the mean's place."""
    from torch.distributed.nn.functional import all_reduce

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        count = (labels != IGNORED).sum()
        mine = _cross_entropy(logits, labels, "mean") * count if count > 0 else _wide(logits).sum() * 0.0
        total = all_reduce(mine, group=over.group)
        return total if reduction == "sum" else total / over.total(count)

    return loss


RECIPES: dict[str, Callable[[_Group, str], Loss]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "weighted_all_reduce": _weighted_all_reduce,
}


class _LikeNccl:
    """The library's communication, with gathers that compare no shapes.

    NCCL moves elements whatever shape they have, and where the ranks' sizes differ torch makes a broadcast of each;
    gloo refuses both.
    """

    def __init__(self, communication: Any, ctx: RankContext) -> None:
        self._communication, self._ctx = communication, ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communication, name)

    def all_gather(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None) -> None:
        """One broadcast from each rank."""
        for source, buffer in zip(self._ctx.ranks, tensor_list, strict=True):
            if source == self._ctx.rank:
                buffer.copy_(tensor.reshape(buffer.shape))
            self._communication.broadcast(buffer, source, group=group)

    def all_gather_into_tensor(self, output_tensor: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> None:
        """The same gather, of vectors."""
        self._communication.all_gather_into_tensor(output_tensor.view(-1), tensor.reshape(-1), group=group)


def _module(name: str, ctx: RankContext, *, strict: bool) -> Any:
    """The module of that name; where NCCL would be there but is not, a copy of it that gathers like NCCL.

    Raises Unsupported where there is no such module.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise
        raise Unsupported(f"there is no {name}") from error
    if strict or ctx.transport == "nccl":
        return module
    # Tracers look a function's module up by its name: the copy needs one of its own.
    spec = importlib.util.spec_from_file_location(f"{name}{COPY}", module.__file__)
    assert spec is not None and spec.loader is not None  # noqa: S101 - it has just been imported
    copy: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = copy
    spec.loader.exec_module(copy)
    copy.dist = _LikeNccl(copy.dist, ctx)
    return copy


def _attribute(module: Any, name: str) -> Any:
    """The module's attribute of that name. Raises Unsupported where there is none."""
    found = getattr(module, name, None)
    if found is None:
        raise Unsupported(f"{module.__name__.removesuffix(COPY)} has no {name}")
    return found


def _check(function: Any, *names: str) -> None:
    """Raise Unsupported, naming the signature, where a parameter that the call needs is not in it."""
    signature = inspect.signature(function)
    if missing := [name for name in names if name not in signature.parameters]:
        name = function.__name__
        raise Unsupported(f"{name}{signature} is a signature that is not known here: it lacks {', '.join(missing)}")
