"""DeepSpeed's training engine: ``deepspeed.initialize``, and the public helpers that put together what ZeRO spreads."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobs.subject.base import RankContext, Unsupported
from jobs.subject.deepspeed.core import Core, SequenceUnit, quiet
from jobs.subject.operations.engine import Engine, Make, MakeOptimiser

if TYPE_CHECKING:
    import torch

GROUPS = "deepspeed.utils.groups"
STATE = "deepspeed.runtime.sequence_parallel.parallel_state_sp"
HELPERS = ("safe_get_full_grad", "safe_get_full_fp32_param", "safe_get_full_optimizer_state")
LACKS = re.compile(r"(?:\bbackend )?\S*gloo does not support \w+", re.IGNORECASE)
"""What torch says where the transport has no such collective."""
ELEMENTS = 2**16
"""Of a buffer: the default is 2 GB, which takes longer to clear than a step takes."""
LOCAL_RANK = "LOCAL_RANK"
NAMES = ("_SEQUENCE_PARALLEL_GROUP", "_SEQUENCE_DATA_PARALLEL_GROUP")
"""Where the library's own module of groups keeps them: it makes them once for the process."""


class ParallelUnit(SequenceUnit):
    """The whole of Megatron's ``mpu``, as the engine asks it: sequence, data and (nothing of it) model parallelism."""

    def __init__(self, ctx: RankContext) -> None:
        import torch.distributed as dist

        super().__init__()
        self.context = ctx
        size, world = ctx.sp_size, range(ctx.world_size)
        # Every rank makes every group, in the same order.
        replicas = [dist.new_group([rank for rank in world if rank % size == place]) for place in range(size)]
        alone = [dist.new_group([rank]) for rank in world]
        self._data, self._model = replicas[ctx.sp_rank], alone[ctx.rank]

    def get_data_parallel_rank(self) -> int:
        """Which of the sequence-parallel groups this rank is in."""
        return self._now().rank // self._now().sp_size

    def get_data_parallel_world_size(self) -> int:
        """The number of sequence-parallel groups."""
        return self._now().world_size // self._now().sp_size

    def get_data_parallel_group(self) -> Any:
        """The ranks at this rank's place in every sequence-parallel group."""
        return self._data

    def get_sequence_data_parallel_rank(self) -> int:
        """This rank's place in the world."""
        return self._now().rank

    def get_sequence_data_parallel_world_size(self) -> int:
        """The size of the world."""
        return self._now().world_size

    def get_sequence_data_parallel_group(self) -> Any:
        """The world: ranks that share the weights."""
        import torch.distributed as dist

        return dist.group.WORLD

    def get_model_parallel_rank(self) -> int:
        """The weights are not split."""
        return 0

    def get_model_parallel_world_size(self) -> int:
        """The weights are not split."""
        return 1

    def get_model_parallel_group(self) -> Any:
        """This rank alone."""
        return self._model


class Engines(Core):
    """The family ``engine``."""

    def __init__(self) -> None:
        super().__init__()
        self._units: dict[int, ParallelUnit] = {}
        self._states: dict[int, dict[str, Any]] = {}

    def engine(
        self,
        ctx: RankContext,
        *,
        make: Make,
        optimiser: MakeOptimiser,
        stage: int,
        wiring: str,
        scatter: bool,
        partitioned: bool,
        passes: int,
        dtype: str,
    ) -> Engine:
        """``deepspeed.initialize``."""
        deepspeed = sys.modules["deepspeed"]
        if missing := [name for name in HELPERS if not hasattr(deepspeed.utils, name)]:
            raise Unsupported(f"deepspeed.utils has no {missing[0]}")
        config = _config(stage, scatter, passes, dtype)
        # Launchers say so which device is a rank's; the engine asks for it until its step.
        os.environ.setdefault(LOCAL_RANK, str(ctx.rank))
        with quiet():
            told = {"unit": self._unit, "state": self._state, "mesh": self._mesh}[wiring](ctx, deepspeed)
            with _partitioned(deepspeed, config, told) if partitioned else contextlib.nullcontext():
                model = make()
            asked = {"model": model, "optimizer": optimiser(model.parameters()), "config": config, **told}
            try:
                inspect.signature(deepspeed.initialize).bind(**asked)
            except TypeError as error:
                raise Unsupported(f"deepspeed.initialize is of no known signature: {error}") from None
            engine = deepspeed.initialize(**asked)[0]
        return _Engine(deepspeed.utils, engine, model, lambda recipe: self._loss(ctx, recipe))

    def reset(self) -> None:
        """Have the library ask the unit of all other families again."""
        super().reset()
        groups = sys.modules.get(GROUPS)
        if groups is not None:
            groups.__dict__["mpu"] = self.unit
            if hasattr(groups, "mesh_device"):
                groups.__dict__["mesh_device"] = None

    def _unit(self, ctx: RankContext, _: Any) -> dict[str, Any]:
        """An object as Megatron has it."""
        if ctx.sp_size not in self._units:
            self._units[ctx.sp_size] = ParallelUnit(ctx)
        return {"mpu": self._units[ctx.sp_size]}

    def _state(self, ctx: RankContext, _: Any) -> dict[str, Any]:
        """The library's own module, as ``UlyssesSPAttentionHF.register_with_transformers`` returns it."""
        try:
            state = importlib.import_module(STATE)
        except ModuleNotFoundError as error:
            if error.name is None or not STATE.startswith(error.name):
                raise
            raise Unsupported(f"there is no module {STATE}") from None
        made = self._states.get(ctx.sp_size)
        vars(state).update(made or dict.fromkeys(NAMES))
        if made is None:
            state.initialize_sequence_parallel(ctx.sp_size)
            self._states[ctx.sp_size] = {name: getattr(state, name) for name in NAMES}
        return {"mpu": state}

    def _mesh(self, ctx: RankContext, deepspeed: Any) -> dict[str, Any]:
        """Sizes alone, as its own test of this has it: nobody else is asked about groups then."""
        if "mesh_param" not in inspect.signature(deepspeed.initialize).parameters:
            raise Unsupported("deepspeed.initialize has no mesh_param")
        importlib.import_module(GROUPS).__dict__["mpu"] = None
        return {"mesh_param": (ctx.world_size // ctx.sp_size, ctx.sp_size)}

    def _loss(self, ctx: RankContext, recipe: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        return self.aggregated_loss(ctx, recipe=recipe, reduction="mean")


class _Engine:
    """One engine, asked through the library's helpers; what they do not answer is where torch has it."""

    def __init__(self, utils: Any, engine: Any, model: Any, losses: Callable[[str], Any]) -> None:
        self.model, self._engine, self._losses = model, engine, losses
        self._gradient, self._value, self._state = (getattr(utils, name) for name in HELPERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self._engine(x)
        return output

    def loss(self, recipe: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        made: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = self._losses(recipe)
        return made

    def backward(self, loss: torch.Tensor) -> None:
        try:
            self._engine.backward(loss)
        except RuntimeError as error:
            if (lack := LACKS.search(str(error))) is None:
                raise
            raise Unsupported(f"torch refuses: {lack[0]}") from error
        if not self._engine.is_gradient_accumulation_boundary():
            # The engine counts micro-batches by steps: this one steps nothing.
            self._engine.step()

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        whole: torch.Tensor | None = self._gradient(parameter)
        return whole

    def step(self) -> None:
        self._engine.step()

    def value(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        whole: torch.Tensor | None = self._value(parameter)
        return self._stepped(parameter).detach() if whole is None else whole

    def moment(self, parameter: torch.nn.Parameter, name: str) -> torch.Tensor | None:
        whole: torch.Tensor | None = self._state(parameter, name)
        if whole is None:
            whole = getattr(self._engine.optimizer, "state", {}).get(self._stepped(parameter), {}).get(name)
        return whole

    def _stepped(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """What the optimiser steps: the wide copy of a narrow weight, where an optimiser without ZeRO keeps one."""
        groups = (getattr(self._engine.optimizer, name, ()) for name in ("fp16_groups", "fp32_groups"))
        for narrow, wide in zip(*groups, strict=True):
            for own, copy in zip(narrow, wide, strict=True):
                if own is parameter:
                    return copy
        return parameter

    def close(self) -> None:
        if hasattr(self._engine, "destroy"):
            self._engine.destroy()


def _config(stage: int, scatter: bool, passes: int, dtype: str) -> dict[str, Any]:
    """What the engine is asked for: nothing that is not about gradients, and small buffers."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": passes,
        # Gradients are read before it, and moments behind it: some releases clip unless they are told not to.
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "reduce_scatter": scatter,
            "reduce_bucket_size": ELEMENTS,
            "allgather_bucket_size": ELEMENTS,
        },
    }
    if stage == 3:
        # None is small enough to be kept whole by every rank.
        config["zero_optimization"] |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    return config


def _partitioned(deepspeed: Any, config: dict[str, Any], told: dict[str, Any]) -> Any:
    """The context in which models are made that no rank could hold whole."""
    unit = told.get("mpu")
    if unit is None:
        raise Unsupported("deepspeed.zero.Init is not told of a mesh")
    return deepspeed.zero.Init(
        data_parallel_group=unit.get_sequence_data_parallel_group(), config_dict_or_path=config, mpu=unit
    )
