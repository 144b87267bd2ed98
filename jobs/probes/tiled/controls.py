"""The controls of family ``tiled`` as data: implementations of ours whose verdict is known beforehand.

References must agree, mutants must be caught, each on the inputs and the oracle of one case. If one misbehaves, the
family's cells say nothing about the subject. Few stand beside every run; the others, every mutant in every type, are
for the self-test. The implementations are in ``mutants``; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from jobs.contract import SUITES, ControlInfo
from jobs.probes.case import EAGER, FLOATS, Values
from jobs.probes.control import RIGHT, TRACED, Wrong, control, mark_of, rounded
from jobs.probes.tiled.cases import catalogue, id_of
from jobs.probes.tiled.shapes import PARAMS

MUTANTS: dict[str, Wrong] = {
    "zeroed": Wrong(("zero_gradient",), "the gradient of the activation is zero"),
    "block_zeroed": Wrong(("partial_zero",), "the gradient of the activation is zero in the last shard"),
    "parameter_zeroed": Wrong(("zero_gradient",), "the gradient of one parameter is zero"),
    "times_ranks": Wrong(("scaled",), "gradients are multiplied by the number of ranks"),
    "over_ranks": Wrong(("scaled",), "gradients are divided by the number of ranks"),
    "over_shards": Wrong(("scaled",), "gradients of parameters are divided by the number of shards"),
    "swapped": Wrong(("permuted",), "tokens and features of the gradient are swapped"),
    "part_dropped": Wrong(("mismatch",), "the last shard's part of the parameters' gradients is lost"),
    "rank_dropped": Wrong(("partial_zero",), "the last rank's gradient is zero, the others' are right"),
    "stale": Wrong(("mismatch",), "the gradient is what a buffer held before"),
    "not_a_number": Wrong(("mismatch",), "one element of the gradient is NaN"),
    "detached": Wrong(("no_gradient",), "the output is detached from the activation"),
    "wrong_shape": Wrong(("wrong_shape",), "the output has its first two dimensions merged"),
    "forward_permuted": Wrong(("forward_mismatch",), "the output's tokens are in reverse order"),
    "input_mutated": Wrong(("mutated",), "the activation is changed in place"),
    "cotangent_mutated": Wrong(("mutated",), "the incoming gradient is changed in place"),
    "left_behind": Wrong(("mismatch",), "the forward leaves gradients at the parameters"),
    # One factor per rank: with few bits two of them may pass for the same.
    "scale_forgotten": Wrong(("mismatch", "scaled"), "gradients of parameters do not see the incoming gradient"),
}

SUM_WEIGHTED: Values = {"reduction": "sum", "loss": "weighted"}
ELSEWHERE: dict[str, tuple[str, Values]] = {
    "wrong_shape": ("mlp", {"loss": "square"}),
    "left_behind": ("mlp", {"loss": "forward_only", "bias": "present"}),
    "scale_forgotten": ("compute_loss", SUM_WEIGHTED),
}
"""The probes and parameters of mutants that do not stand on mlp with a random incoming gradient."""
BESIDE_EVERY_RUN = (
    "zeroed", "block_zeroed", "times_ranks", "swapped", "part_dropped", "cotangent_mutated", "scale_forgotten",
)  # fmt: skip
OTHER_REFERENCES: tuple[tuple[str, Values], ...] = (
    ("compute", {"entry": "function", "batch": 2, "bias": "present"}),
    ("fused_logits_loss", {"reduction": "sum", "labels": "shard", "mask": "given"}),
    ("loss", {"labels": "shard"}),
    ("fpdt_ffn", {"bias": "returned", "batch": 2, "wrap": "layer"}),
    ("fpdt_logits_loss", {"labels": "uneven"}),
)
"""Probes of which a right implementation, and no mutant, stands beside every run."""
ROUNDED_AWAY = {"swapped": ("mismatch",)}
"""What else a mutant may be called in 16 bits: sorted values that were rounded apart are no longer the same values."""
IN_ONE_TYPE = ("left_behind",)


def _rows() -> Iterator[tuple[str, str, Values, tuple[str, ...]]]:
    """Probe, implementation, the parameters of the case that it stands on, modes."""
    yield "mlp", "traced_reference", {}, TRACED
    for probe, values in OTHER_REFERENCES:
        yield probe, "reference", values, EAGER
    for dtype in FLOATS:
        yield "mlp", "reference", {"dtype": dtype}, EAGER
        yield "compute_loss", "reference", {**SUM_WEIGHTED, "dtype": dtype}, EAGER
        for name in MUTANTS:
            if dtype == "float32" or name not in IN_ONE_TYPE:
                probe, values = ELSEWHERE.get(name, ("mlp", {}))
                yield probe, name, {**values, "dtype": dtype}, EAGER


def _suite(probe: str, name: str, values: Values) -> str:
    """Of each probe and mode one right implementation, and a few mutants in float32, stand beside every run."""
    beside = (*BESIDE_EVERY_RUN, "reference", "traced_reference")
    in_default = name in beside and values.get("dtype", "float32") == "float32"
    return SUITES[0] if in_default else SUITES[-1]


def _wrong(name: str, dtype: str) -> Wrong:
    return rounded(MUTANTS.get(name, RIGHT), dtype, ROUNDED_AWAY.get(name, ()))


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    made = []
    for probe, name, values, modes in _rows():
        case, suite = id_of(probe, PARAMS[probe](**values)), _suite(probe, name, values)
        wrong = _wrong(name, values.get("dtype", "float32"))
        made.append(control(probe, name, mark_of(values, ("dtype",)), case, known, modes, wrong, suite))
    return tuple(made)
