"""The controls of family ``model`` as data: an attention and a training step of ours, right, and wrong in one way each.

The implementations are in ``mutants``; nothing here imports torch. Few stand beside every run; all of them in each of
the four types are a self-test's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache

from jobs.contract import ControlInfo
from jobs.probes.case import EAGER, Values
from jobs.probes.control import RIGHT, Wrong, control, rounded
from jobs.probes.model.cases import PROBE, catalogue, id_of
from jobs.probes.model.shapes import Decoder

OF_ATTENTION: dict[str, Wrong] = {
    "detached": Wrong(("no_gradient",), "what attention returns is detached from what it was given"),
    "zeroed": Wrong(("zero_gradient",), "no gradient comes back through attention", everywhere=True),
    "q_zeroed": Wrong(("partial_zero",), "none comes back to the queries; their gate has its own"),
    "k_zeroed": Wrong(("zero_gradient",), "none comes back to the keys"),
    "v_zeroed": Wrong(("zero_gradient",), "none comes back to the values"),
    "head_zeroed": Wrong(("partial_zero",), "none comes back to one head of the queries on every rank"),
    "part_dropped": Wrong(("partial_zero",), "what the last rank sends back to the values never arrives"),
    "rank_dropped": Wrong(("mismatch",), "what comes back to the last rank is zero", everywhere=True),
    "swapped": Wrong(("mismatch",), "tokens and heads are swapped in what comes back to the values", everywhere=True),
    "times_ranks": Wrong(("mismatch",), "what comes back through attention is multiplied by the ranks"),
    "over_ranks": Wrong(("mismatch",), "what comes back through attention is divided by the ranks"),
    "stale": Wrong(("mismatch",), "what comes back to the values is what the buffer held before"),
    "not_a_number": Wrong(("mismatch",), "one element of what comes back to the keys is NaN"),
    "forward_permuted": Wrong(("forward_mismatch",), "the heads of the result are in another order"),
}
OF_TRAINING: dict[str, Wrong] = {
    "averaged": Wrong(("scaled",), "gradients are averaged over the group instead of summed", everywhere=True),
    "unsummed": Wrong(("mismatch",), "the last rank adds nothing to the sum"),
    "not_stepped": Wrong(
        ("zero_gradient",), "one parameter is not moved though its gradient is right", everywhere=True
    ),
    "moments_lost": Wrong(("zero_gradient",), "one parameter's moments are zero though it is moved"),
    "decayed": Wrong(("mismatch",), "parameters decay besides"),
}
MUTANTS = OF_ATTENTION | OF_TRAINING
OURS = dataclasses.replace(RIGHT, summary="an attention and a step of ours that are right")

STEPPED: dict[str, Values] = {
    "float32": {"step": "adam", "traced": "attention"},
    "float64": {"step": "adam", "dtype": "float64"},
    "bfloat16": {"step": "adam", "dtype": "bfloat16", "frozen": "embed"},
    "float16": {"step": "adam", "dtype": "float16", "kv": "same", "batch": 2},
}
"""Per type, the case that most mutants stand on."""
UNSTEPPED: dict[str, Values] = {
    "float32": {"layout": "sbhd", "kv": "same", "mask": "full", "loss": "accumulate", "batch": 2},
    "float64": {"dtype": "float64", "loss": "scaled", "frozen": "embed"},
    "bfloat16": {"dtype": "bfloat16", "loss": "weighted", "rotary": "yes", "bias": "qkv", "batch": 3},
    "float16": {"dtype": "float16", "layout": "sbhd", "loss": "shared", "gate": "no"},
}
"""The same for one whose factor a step would hide: a step is no multiple of the gradient."""


def _wrong(name: str, dtype: str) -> Wrong:
    wrong = MUTANTS.get(name, OURS)
    # A small sum may cancel to zero: then one element of a norm's eight may name the whole.
    return rounded(wrong, dtype, ("partial_zero",) if "mismatch" in wrong.expected else ())


def _rows() -> Iterator[tuple[str, str, Values, tuple[str, ...], str]]:
    """Implementation, its mark in the id, the parameters of the case that it stands on, modes, suite."""
    yield "reference", "", STEPPED["float32"], EAGER, "default"
    yield "traced_reference", "", STEPPED["float32"], ("aot_eager",), "default"
    yield "traced_reference", "inductor", {}, ("inductor",), "full"
    for dtype in STEPPED:
        if dtype != "float32":
            yield "reference", dtype, STEPPED[dtype], EAGER, "full"
        yield "reference", f"{dtype},unstepped", UNSTEPPED[dtype], EAGER, "full"
        for name, wrong in MUTANTS.items():
            values = (UNSTEPPED if name == "averaged" else STEPPED)[dtype]
            suite = "default" if wrong.everywhere and dtype == "float32" else "full"
            yield name, "" if dtype == "float32" else dtype, values, EAGER, suite


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    return tuple(
        control(PROBE, name, mark, id_of(Decoder(**values)), known, modes, _wrong(name, values.get("dtype", "")), suite)
        for name, mark, values, modes, suite in _rows()
    )
