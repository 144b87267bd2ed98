"""Running the cases of family ``engine``: a layer around the subject's attention, and one step of an engine on top.

The function under test is one layer, so that a traced mode traces just that. The engine itself, whose hooks and buffers
are made anew for each pass, hangs on the function under the name :data:`START`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes.engine import mutants
from jobs.probes.engine.network import Network, weights_of
from jobs.probes.engine.recipes import loss_of
from jobs.probes.engine.shapes import params_of
from jobs.probes.inputs import make
from jobs.probes.model.decoder import Decoding, Function, scopes
from jobs.probes.model.run import attention_of
from jobs.probes.model.shapes import ADAM_EPS, BETAS, LEARNING_RATE, MOMENT, ROOT, STEP
from jobs.subject.base import RankContext, Subject
from jobs.subject.operations.engine import Engine, Make

if TYPE_CHECKING:
    from jobs.probes import Emit

START = "start"


def build(case: CaseInfo, ctx: RankContext, subject: Subject) -> Function:
    """One layer around the subject's attention. Raises Unsupported where the subject has none."""
    params = params_of(case)

    def start(make_model: Make) -> Engine:
        return subject.engine(
            ctx,
            make=make_model,
            optimiser=adam,
            stage=params.stage,
            wiring=params.wiring,
            scatter=params.scatter == "on",
            partitioned=params.made == "partitioned",
            passes=len(params.decoder().batches()),
            dtype=params.dtype,
        )

    model = params.decoder()
    return _with(scopes(model.traced, Decoding(model, ctx), attention_of(model, ctx, subject)), start)


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with an attention and an engine of ours in the subject's place."""
    params = params_of(case)
    return _with(mutants.layer(control, params, ctx), lambda made: mutants.engine(control, params, ctx, made, adam))


def _with(layer: Function, start: Callable[[Make], Engine]) -> Function:
    # A tracer's wrapper around the function has the same attributes.
    setattr(layer, START, start)
    return layer


def adam(parameters: Any) -> torch.optim.Optimizer:
    """Torch's own, without weight decay."""
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, betas=BETAS, eps=ADAM_EPS)


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: a fresh model and engine, forward, loss, backward, and gradients or the optimiser's step."""
    params = params_of(case)
    made = make(case, ctx, params.tensors(ctx.world_size, ctx.sp_rank))
    weights = {name: made[name] for name in params.decoder().weights(ctx.world_size)}
    engine: Engine = getattr(function, START)(lambda: Network(function, weights))
    try:
        loss = loss_of(params.recipe, ctx, engine)
        for n in params.decoder().batches():
            y = engine.forward(made[f"x{n}"])
            emit("output", f"y{n}", y.detach().clone())
            number = loss(y, made["labels"])
            emit("output", f"loss{n}", number.detach().clone())
            engine.backward(number)
        parameters = weights_of(engine.model)
        if params.look == "step":
            engine.step()
            _look_after(engine, parameters, weights, emit)
        else:
            for name in weights:
                gradient = engine.gradient(parameters[name])
                emit("grad", name, None if gradient is None else gradient.detach().clone())
        for name, tensor in made.items():
            if name not in weights:
                emit("input", name, tensor)
    finally:
        engine.close()


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """None here: the parts that make up a step have theirs in the other families."""


def _look_after(
    engine: Engine, parameters: dict[str, torch.nn.Parameter], before: dict[str, torch.Tensor], emit: Emit
) -> None:
    """What the step added to every weight, and its moments: zero where the optimiser has none."""
    for name, start in before.items():
        parameter, wide = parameters[name], start.detach()
        emit("grad", STEP + name, engine.value(parameter) - wide)
        moments = [engine.moment(parameter, key) for key in ("exp_avg", "exp_avg_sq")]
        first, second = (torch.zeros_like(wide) if moment is None else moment.detach() for moment in moments)
        emit("grad", MOMENT + name, first.clone())
        # In the gradient's own unit, where what is noise in one is noise in the other.
        emit("grad", ROOT + name, second.sqrt())
