"""The controls of family ``loss`` as data: implementations of ours whose verdict is known beforehand.

References must agree, mutants must be caught, each on the inputs and the oracle of one case. If one misbehaves, the
family's cells say nothing about the subject. The implementations are in ``mutants``; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from jobs.contract import ControlInfo
from jobs.probes.case import EAGER, FLOATS, Values
from jobs.probes.control import RIGHT, TRACED, Wrong, control, mark_of
from jobs.probes.loss.cases import (
    EMPTY,
    GATHER,
    INNER,
    LARGE,
    REDUCE,
    UNEVEN,
    catalogue,
    id_of,
)

MUTANTS: dict[str, Wrong] = {
    "zeroed": Wrong(("zero_gradient",), "the gradient is zero"),
    "block_zeroed": Wrong(("partial_zero",), "one block of the gradient is zero on every rank"),
    "times_ranks": Wrong(("scaled",), "the gradient is multiplied by the number of ranks"),
    "over_ranks": Wrong(("scaled",), "the gradient is divided by the number of ranks"),
    # Where sixteen bits cannot tell an order, tokens that have others' zeros for a gradient still show.
    "swapped": Wrong(("permuted", "partial_zero"), "tokens and batch of the gradient are swapped"),
    "rank_dropped": Wrong(("zero_gradient", "partial_zero"), "the last rank's gradient is zero, the others' are right"),
    "stale": Wrong(("mismatch",), "the gradient is what a buffer held before"),
    "not_a_number": Wrong(("mismatch",), "one element of the gradient is NaN"),
    "detached": Wrong(("no_gradient",), "the output is detached from the logits"),
    "input_mutated": Wrong(("mutated",), "the logits are changed in place"),
    "wrong_shape": Wrong(("wrong_shape",), "the output has one dimension more"),
    "ignored_counted": Wrong(("mismatch",), "tokens that do not count send a gradient, as if their label were a class"),
    "last_left_out": Wrong(("forward_mismatch",), "the last rank's losses are left out"),
    # In sixteen bits the loss itself may be near enough; the gradient is not.
    "mean_of_means": Wrong(
        ("forward_mismatch", "mismatch"), "every rank's mean counts alike, however many tokens it has"
    ),
    "own_mean_backward": Wrong(("mismatch",), "the loss is right, the gradient that of every rank's own mean"),
    "own_loss_alone": Wrong(("scaled",), "each rank's loss counts alone in the gradient, not all of them"),
    "boundary_dropped": Wrong(
        ("forward_mismatch",), "labels are shifted in each shard, so that its last token has none"
    ),
    "unshifted": Wrong(("forward_mismatch",), "labels are not shifted"),
}

VOCAB: Values = {**LARGE, "ignored": "uneven"}
SUMS: Values = {**REDUCE, **UNEVEN}
WHOLE: Values = {"batch": 2}
STEP: Values = {"labels": "uneven"}
ON: dict[str, tuple[Values, tuple[str, ...]]] = {
    "vocab_cross_entropy": (
        VOCAB,
        ("reference", "zeroed", "block_zeroed", "times_ranks", "over_ranks", "swapped", "rank_dropped", "stale",
         "not_a_number", "detached", "input_mutated", "ignored_counted"),
    ),
    "aggregate": (
        SUMS,
        ("reference", "zeroed", "block_zeroed", "over_ranks", "rank_dropped", "last_left_out", "mean_of_means",
         "own_mean_backward", "own_loss_alone"),
    ),
    "loader": (WHOLE, ("reference", "boundary_dropped", "unshifted", "detached")),
    "fwd_loss_bwd": (STEP, ("reference", "own_mean_backward", "mean_of_means", "over_ranks")),
}  # fmt: skip
"""Per probe: the case that implementations stand on, in each type, and the implementations."""
BESIDE_EVERY_RUN = {
    ("vocab_cross_entropy", "reference"),
    ("vocab_cross_entropy", "zeroed"),
    ("vocab_cross_entropy", "ignored_counted"),
    ("aggregate", "reference"),
    ("aggregate", "own_loss_alone"),
    ("aggregate", "mean_of_means"),
    ("loader", "boundary_dropped"),
    ("fwd_loss_bwd", "own_mean_backward"),
}
"""In float32; everything else is a self-test's."""
Row = tuple[str, str, Values, tuple[str, ...], str]
"""Probe, implementation, the case that it stands on, modes, suite."""
OTHERS: tuple[Row, ...] = (
    ("vocab_cross_entropy", "wrong_shape", {"ignored": "one_empty", "loss": "square"}, EAGER, "full"),
    ("vocab_cross_entropy", "traced_reference", {}, TRACED[:1], "default"),
    ("aggregate", "traced_reference", SUMS, TRACED[:1], "full"),
    ("vocab_cross_entropy", "traced_reference", {"wrap": "layer"}, TRACED[1:], "full"),
    ("vocab_cross_entropy", "reference", {"sp": 2, "loss": "square"}, EAGER, "full"),
    ("aggregate", "reference", {**GATHER, **EMPTY, "loss": "frozen"}, EAGER, "full"),
    ("fwd_loss_bwd", "reference", INNER, EAGER, "full"),
)
IN_ID = ("dtype", "sp", "labels", "tokens", "wrap")


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    return tuple(
        control(
            probe, name, mark_of(values, IN_ID), id_of(probe, values), known, modes, MUTANTS.get(name, RIGHT), suite
        )
        for probe, name, values, modes, suite in (*_in_each_type(), *OTHERS)
    )


def _in_each_type() -> Iterator[Row]:
    for probe, (values, names) in ON.items():
        for dtype in FLOATS:
            for name in names:
                usual = dtype == "float32" and (probe, name) in BESIDE_EVERY_RUN
                yield probe, name, {**values, "dtype": dtype}, EAGER, "default" if usual else "full"
