"""The controls of family ``engine`` as data: an engine of ours, right, and wrong in one way at a time.

The implementations are in ``mutants``; nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache

from jobs.contract import ControlInfo
from jobs.probes.case import EAGER, Values
from jobs.probes.control import RIGHT, Wrong, control
from jobs.probes.engine.cases import catalogue, id_of
from jobs.probes.engine.shapes import Training

# Without its tokens a rank has no part in some weights, and in sixteen bits what the others add may cancel to zero.
SOME_LOST = ("mismatch", "partial_zero")
# In sixteen bits the rounding hides that the values are the right ones in another order.
MOVED = ("permuted", "mismatch")
OF_GRADIENTS: dict[str, Wrong] = {
    "times_ranks": Wrong(("scaled",), "gradients are multiplied by the number of ranks"),
    "over_ranks": Wrong(("scaled",), "gradients are divided by the number of ranks", everywhere=True),
    "weight_zeroed": Wrong(("zero_gradient",), "one weight's gradient is zero", everywhere=True),
    "block_zeroed": Wrong(("partial_zero",), "half of one weight's gradient is zero"),
    "rank_dropped": Wrong(SOME_LOST, "the last rank adds nothing to the sum", everywhere=True),
    "own_alone": Wrong(SOME_LOST, "each rank keeps its own gradients"),
    "shifted": Wrong(MOVED, "one weight's gradient starts one element late, as from a wrong partition"),
    "stale": Wrong(("mismatch",), "one weight's gradient is what the buffer held before: the weight"),
    "not_a_number": Wrong(("mismatch",), "one element of one weight's gradient is NaN"),
    "none": Wrong(("no_gradient",), "one weight has no gradient"),
}
OF_STEPS: dict[str, Wrong] = {
    "not_stepped": Wrong(("zero_gradient",), "one weight is not moved though its gradient is right", everywhere=True),
    "moments_lost": Wrong(("zero_gradient",), "one weight's moments are zero though it is moved"),
    "decayed": Wrong(("mismatch",), "weights decay besides"),
    # With one gradient g twice, the step is 2 times, the first moment 1 + β₁ times, what it is after one step.
    "stepped_twice": Wrong(("scaled",), "two steps are made of one"),
}
MUTANTS = OF_GRADIENTS | OF_STEPS
OURS = dataclasses.replace(RIGHT, summary="an attention and an engine of ours that are right")

GRADIENT: dict[str, Values] = {
    "float32": {"stage": 0, "recipe": "all_gather"},
    "bfloat16": {"stage": 0, "wiring": "state", "dtype": "bfloat16", "recipe": "all_reduce"},
}
"""Per type, the case that mutants of gradients stand on."""
STEPPED: Values = {"stage": 0, "recipe": "all_reduce", "look": "step"}


def _rows() -> Iterator[tuple[str, str, Values, tuple[str, ...], str]]:
    """Implementation, its mark in the id, the parameters of the case that it stands on, modes, suite."""
    yield "reference", "", GRADIENT["float32"], EAGER, "default"
    yield "reference", "step", STEPPED, EAGER, "default"
    yield "traced_reference", "step", STEPPED, ("aot_eager",), "default"
    yield "reference", "sp=2", {"stage": 0, "recipe": "all_reduce", "sp": 2}, EAGER, "full"
    yield "reference", "bfloat16", GRADIENT["bfloat16"], EAGER, "full"
    for name, wrong in OF_GRADIENTS.items():
        yield name, "", GRADIENT["float32"], EAGER, "default" if wrong.everywhere else "full"
        yield name, "bfloat16", GRADIENT["bfloat16"], EAGER, "full"
    for name, wrong in OF_STEPS.items():
        yield name, "step", STEPPED, EAGER, "default" if wrong.everywhere else "full"


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    return tuple(
        control("training", name, mark, id_of(Training(**values)), known, modes, MUTANTS.get(name, OURS), suite)
        for name, mark, values, modes, suite in _rows()
    )
