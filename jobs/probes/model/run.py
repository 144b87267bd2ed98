"""Running the cases of family ``model``: the part that is traced, and one step of training around it.

The function under test is a part of the model (see :func:`jobs.probes.model.decoder.scopes`), so that a traced mode
traces just that; the model around it, the loss and the optimiser are ours and eager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes.attention.core import Core, CoreHF
from jobs.probes.case import has_difference
from jobs.probes.inputs import make
from jobs.probes.model import mutants
from jobs.probes.model.decoder import Attend, Decoding, Function, arguments, scopes, whole
from jobs.probes.model.shapes import FEATURES, TOKENS, Decoder, params_of
from jobs.probes.model.training import Trainer, loss_of, trained
from jobs.probes.passes import is_traced
from jobs.subject.base import RankContext, Subject

if TYPE_CHECKING:
    from jobs.probes import Emit


def build(case: CaseInfo, ctx: RankContext, subject: Subject) -> Function:
    """The part of the model that is traced, around the subject's attention. Raises Unsupported where it has none."""
    params = params_of(case)
    return scopes(params.traced, Decoding(params, ctx), attention_of(params, ctx, subject))


def attention_of(params: Decoder, ctx: RankContext, subject: Subject) -> Attend:
    """The subject's attention as the case calls it, [batch, tokens, heads, features] or tokens first both ways."""
    heads, kv_heads = params.heads(ctx.world_size)
    causal = params.mask == "causal"
    if params.via == "distributed":
        core = Core(params.layout, causal)
        return subject.distributed_attention(ctx, core=core, layout=params.layout, heads=heads, kv_heads=kv_heads)
    inner = subject.ulysses_attention(
        ctx,
        core=CoreHF(causal),
        heads=heads,
        kv_heads=kv_heads,
        features=FEATURES,
        batch=params.batch,
        tokens=TOKENS,
    )
    first = ctx.sp_rank * TOKENS
    positions = torch.arange(first, first + TOKENS, device=ctx.device).repeat(params.batch, 1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        joined = inner(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), positions)
        return joined.unflatten(-1, (-1, FEATURES))

    return attend


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's attention in the subject's place, or its trainer in ours."""
    return mutants.function(control, params_of(case), ctx)


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh tensors, forward, backward, and the optimiser's step."""
    params = params_of(case)
    decoding = Decoding(params, ctx)
    model = whole(params.traced, decoding, function)
    trainer: Trainer = getattr(function, "trainer", None) or Trainer()
    specs = params.tensors(ctx.world_size, ctx.sp_rank)
    made = make(case, ctx, specs)
    for n in params.batches():
        y = model(*arguments(made, f"x{n}", decoding.weights))
        emit("output", f"y{n}", y.detach().clone())
        if params.loss != "forward_only":
            loss_of(params, ctx.sp_size, y, made[f"w{n}"]).backward()
    for spec in specs:
        emit("cotangent" if spec.role == "cotangent" else "input", spec.name, made[spec.name])
    parameters = trained(decoding.weights, made)
    summed = trainer.total(ctx, parameters) if params.loss != "forward_only" else {}
    for spec in specs:
        if spec.role != "cotangent":
            gradient = summed.get(spec.name, made[spec.name].grad)
            emit("grad", spec.name, None if gradient is None else gradient.detach().clone())
    if params.step == "adam":
        everything = {name: made[name] for name in decoding.weights}
        for name, tensor in trainer.step(everything, summed).items():
            emit("grad", name, tensor)


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """This rank's part of [L(θ + v) - L(θ - v)] / 2, from the model's own forward, where the case has one."""
    params = params_of(case)
    if params.loss == "forward_only" or is_traced(function) or not has_difference(case):
        return
    model, losses = whole(params.traced, Decoding(params, ctx), function), []
    for step in (1, -1):
        made = make(case, ctx, params.tensors(ctx.world_size, ctx.sp_rank), step)
        with torch.no_grad():
            names = tuple(params.weights(ctx.world_size))
            parts = [
                loss_of(params, ctx.sp_size, model(*arguments(made, f"x{n}", names)).double(), made[f"w{n}"].double())
                for n in params.batches()
            ]
        losses.append(torch.stack(parts).sum())
    emit("fd", "loss", (losses[0] - losses[1]) / 2)
