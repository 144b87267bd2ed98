"""The cases of family ``engine`` as data. Nothing here imports torch.

The set that runs by default has every stage with every wiring, every recipe and every way to deal out labels at least
once; the full one has all stages with all recipes and all ways to deal out labels, and traced layers.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.case import EAGER, TRACED, Rows, case_id, case_of
from jobs.probes.engine.shapes import LIVE, RECIPES, Training

FAMILY = "engine"
VERSION = 2

STATE, MESH, STEP, ULYSSES = {"wiring": "state"}, {"wiring": "mesh"}, {"look": "step"}, {"via": "ulysses"}
DEFAULT: Rows = (
    (EAGER, {"stage": 0, "recipe": "all_gather"}),
    (EAGER, {"stage": 0, **STATE, "recipe": "local", "tokens": "one_empty"}),
    (EAGER, {"stage": 1, "recipe": "in_place", "tokens": "one_empty"}),
    (EAGER, {"stage": 2, **STATE, "recipe": "weighted_all_reduce", "tokens": "one_empty", "scatter": "on"}),
    (EAGER, {"stage": 2, "recipe": "all_gather", "tokens": "even"}),
    (EAGER, {"stage": 3, **STATE, "recipe": "local"}),
    (EAGER, {"stage": 3, **STATE, "recipe": "all_reduce", "scatter": "on"}),
    (EAGER, {"stage": 3, "recipe": "weighted_all_reduce"}),
    (EAGER, {"stage": 2, **MESH, "recipe": "all_reduce"}),
    (EAGER, {"stage": 2, **STATE, "recipe": "in_place", "sp": 2, "passes": "two"}),
    (EAGER, {"stage": 1, **STATE, "recipe": "all_gather", **STEP}),
    (EAGER, {"stage": 3, **STATE, "recipe": "all_gather", **STEP}),
    (EAGER, {"stage": 3, "made": "partitioned", "recipe": "all_reduce"}),
    (TRACED, {"stage": 2, **STATE, **ULYSSES, "recipe": "all_gather", **STEP}),
)
FULL: Rows = (
    # First: of two rows with one id the first one counts.
    *(
        (TRACED, {"stage": stage, **wiring, "recipe": "all_reduce", **more})
        for stage in range(4)
        for wiring, more in (({}, {}), (STATE, STEP))
    ),
    (TRACED, {"stage": 0, "recipe": "all_reduce", **STEP}),
    (TRACED, {"stage": 2, "recipe": "all_reduce", **STEP}),
    (EAGER, {"stage": 0, "recipe": "all_reduce", "sp": 2}),
    (EAGER, {"stage": 3, **STATE, "recipe": "local", "sp": 2, "tokens": "one_empty"}),
    *(
        (EAGER, {"stage": stage, **STATE, "recipe": recipe, "tokens": tokens})
        for stage in range(4)
        for recipe in RECIPES
        for tokens in LIVE
    ),
    *(
        (EAGER, {"stage": stage, **wiring, "recipe": "all_reduce", "scatter": scatter})
        for stage in range(4)
        for wiring in ({}, MESH, STATE)
        for scatter in ("off", "on")
    ),
    *((EAGER, {"stage": stage, **STATE, "passes": "two", "recipe": "weighted_all_reduce"}) for stage in range(4)),
    *((EAGER, {"stage": stage, **STATE, "passes": "two", "recipe": "local", **STEP}) for stage in range(4)),
    *(
        (EAGER, {"stage": stage, **STATE, "dtype": "bfloat16", "recipe": "all_reduce", **look})
        for look in ({}, STEP)
        for stage in range(4)
    ),
    *((EAGER, {"stage": stage, **STATE, "sp": 2, "recipe": "in_place", **STEP}) for stage in range(4)),
    *((EAGER, {"stage": stage, "sp": 4, "recipe": "weighted_all_reduce"}) for stage in range(4)),
    *((TRACED, {"stage": stage, **STATE, **ULYSSES, "recipe": "all_reduce"}) for stage in range(4)),
    *((TRACED, {"stage": stage, **STATE, **ULYSSES, "recipe": "all_reduce", **STEP}) for stage in (0, 1, 3)),
    (EAGER, {"stage": 3, "made": "partitioned", **STATE, "recipe": "local", **STEP}),
    (EAGER, {"stage": 3, "made": "partitioned", "recipe": "in_place", "sp": 2, "passes": "two"}),
)

SHOWN = ("stage", "wiring", "recipe", "tokens")
HIDDEN = ("look",)
WIRINGS = {
    "unit": "deepspeed.initialize with an mpu object as Megatron has it",
    "state": "deepspeed.initialize with deepspeed.runtime.sequence_parallel.parallel_state_sp as its mpu, the "
    "documented way",
    "mesh": "deepspeed.initialize with mesh_param=(replicas, ranks); the documented way is mpu=",
}
CONVENTION = (
    "The engine divides what it sums over all ranks by the number of sequence-parallel groups: a sum over the ranks of "
    "a group, a mean over groups"
)
SCATTERED = (
    "; except that stage 3 with a reduce-scatter, DeepSpeed's default, divides by the ranks of a group as well: its "
    "gradients are as many times smaller than those of the other stages, for one and the same loss"
)
AGAINST = {
    1: "multiplied by the ranks of a group",
    0: "as it is",
    -1: "divided by the ranks of a group",
}
"""What the dense model's gradient is, by the recipe's factor and the path's divisor as powers of the ranks."""
PUT_TOGETHER = {"off": "reduce_scatter off (DeepSpeed's default is on)", "on": "reduce_scatter on, DeepSpeed's default"}


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    made: dict[str, CaseInfo] = {}
    for suite, rows in (("default", DEFAULT), ("full", FULL)):
        for modes, values in rows:
            case = _info(modes, suite, Training(**values))
            made.setdefault(case.id, case)  # the full set is made of products, some of which run by default
    return tuple(made.values())


def id_of(params: Training) -> str:
    """The id of the case with these parameters."""
    return case_id(FAMILY, params.look, params, SHOWN, HIDDEN)


def _info(modes: tuple[str, ...], suite: str, params: Training) -> CaseInfo:
    recipe = RECIPES[params.recipe]
    what = "One step of Adam without weight decay" if params.look == "step" else "Every weight's gradient"
    scale = f"{CONVENTION}{SCATTERED if params.scattered else ''}"
    against = f"The dense model's gradient stands beside it {AGAINST[int(recipe.whole) - int(params.scattered)]}"
    return case_of(
        id_of(params),
        VERSION,
        params,
        modes,
        exact=False,
        dims=params.dims(params.sp or 2),
        suite=suite,
        api=f"{WIRINGS[params.wiring]}; {PUT_TOGETHER[params.scatter]}; gradients, weights and moments through "
        "deepspeed.utils.safe_get_full_*",
        summary=f"{what} in the training engine, ZeRO {params.stage}: {recipe.summary}. {scale}. {against}.",
    )
