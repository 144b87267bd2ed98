"""The controls of family ``torch-itself`` as data: implementations of ours whose verdict is known beforehand.

References must agree, mutants must be caught, each on the inputs and the oracle of one case. If one misbehaves, the
family's cells say nothing about torch. Few stand beside every run; the others, every mutant in both types that the
family has, are for the self-test. The implementations are in ``mutants``; nothing here imports torch.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import SUITES, ControlInfo
from jobs.probes.case import EAGER, Values
from jobs.probes.control import RIGHT, TRACED, Wrong, control, mark_of
from jobs.probes.torch_itself.cases import (
    AUTOGRAD,
    BUFFER,
    FUNCTIONAL,
    INSIDE,
    NN,
    STRIDED_GRADIENT,
    SUBGROUP,
    WEIGHTED,
    catalogue,
    id_of,
)
from jobs.probes.torch_itself.shapes import AGGREGATION

MUTANTS: dict[str, Wrong] = {
    "zeroed": Wrong(("zero_gradient",), "the gradient is zero"),
    "times_ranks": Wrong(("scaled",), "the gradient is multiplied by the number of ranks"),
    "over_ranks": Wrong(("scaled",), "the gradient is divided by the number of ranks"),
    "own_alone": Wrong(("mismatch",), "the backward forgets the other ranks: each keeps its part of its own gradient"),
    "last_left_out": Wrong(("mismatch",), "what the last rank sends back is left out of the sum"),
    "last_part_zeroed": Wrong(("partial_zero",), "the part of the gradient that belongs to the last rank is zero"),
    "on_every_rank": Wrong(("mismatch",), "the source's gradient is there on every rank"),
    "swapped": Wrong(("permuted",), "two dimensions of the gradient are swapped"),
    "stale": Wrong(("mismatch",), "the gradient is what a buffer held before"),
    "not_a_number": Wrong(("mismatch",), "one element of the gradient is NaN"),
    "detached": Wrong(("no_gradient",), "the output is detached from the input"),
    "averaged": Wrong(("forward_mismatch",), "the output is divided by the number of ranks"),
    "wrong_shape": Wrong(("wrong_shape",), "the output has its first two dimensions merged"),
    "input_mutated": Wrong(("mutated",), "the input is changed in place"),
    "cotangent_mutated": Wrong(("mutated",), "the incoming gradient is changed in place"),
    "own_loss_alone": Wrong(("scaled",), "each rank's loss counts alone in the gradient, not all of them"),
    "mean_of_means": Wrong(("forward_mismatch",), "every rank's mean counts alike, however many tokens it has"),
}

DIM0: Values = {"api": BUFFER}
UNEVEN: Values = {"api": AUTOGRAD, **WEIGHTED, "splits": "uneven"}
UNEVEN_LOSS: Values = {"recipe": "all_reduce", "tokens": "uneven", "dtype": "float32"}
WIDE: Values = {**STRIDED_GRADIENT, "dtype": "float64"}
EMPTY_LOSS: Values = {"recipe": "all_gather", "tokens": "one_empty", "dtype": "float32", **WEIGHTED}

IN_ID = ("api", "recipe", "dtype", "sp")
Rows = tuple[tuple[str, Values, tuple[str, ...], tuple[str, ...]], ...]
"""Probe, the parameters of the case that they stand on, modes, implementations."""

BESIDE_EVERY_RUN: Rows = (
    ("dim0", DIM0, TRACED, ("traced_reference",)),
    ("dim0", {**DIM0, **STRIDED_GRADIENT}, EAGER, ("reference", "zeroed", "swapped")),
    ("all_to_all", UNEVEN, EAGER, ("reference",)),
    ("all_reduce", DIM0, ("aot_eager",), ("traced_reference",)),
    (
        "all_reduce",
        {"api": FUNCTIONAL, **STRIDED_GRADIENT, "input": "offset"},
        EAGER,
        ("reference", "own_alone", "times_ranks", "detached"),
    ),
    ("all_gather", {"api": NN, **STRIDED_GRADIENT}, EAGER, ("reference", "last_left_out", "stale")),
    ("all_gather", {"api": AUTOGRAD, **WEIGHTED, **SUBGROUP}, EAGER, ("reference",)),
    ("reduce_scatter", {"api": NN, **WIDE}, EAGER, ("reference", "last_part_zeroed")),
    ("broadcast", {"api": NN, **WIDE}, EAGER, ("reference", "on_every_rank")),
    (AGGREGATION, EMPTY_LOSS, EAGER, ("reference",)),
    (AGGREGATION, UNEVEN_LOSS, EAGER, ("own_loss_alone", "mean_of_means")),
)
IN_A_SELF_TEST: Rows = (
    ("dim0", {**DIM0, **STRIDED_GRADIENT}, EAGER, ("cotangent_mutated",)),
    ("dim0", {"api": INSIDE, **WIDE}, EAGER, ("reference", "zeroed", "swapped", "cotangent_mutated")),
    ("all_to_all", {**UNEVEN, **SUBGROUP}, EAGER, ("reference",)),
    ("all_reduce", {"api": FUNCTIONAL, **STRIDED_GRADIENT, "input": "offset"}, EAGER, ("averaged",)),
    (
        "all_reduce",
        {"api": NN, **WIDE},
        EAGER,
        ("reference", "own_alone", "times_ranks", "detached", "averaged"),
    ),
    ("all_gather", {"api": NN, **STRIDED_GRADIENT}, EAGER, ("over_ranks", "not_a_number")),
    ("all_gather", {"api": AUTOGRAD, **WEIGHTED, **SUBGROUP}, EAGER, ("own_alone",)),
    (
        "all_gather",
        {"api": NN, **WEIGHTED, "input": "expanded", "dtype": "float64"},
        EAGER,
        ("reference", "last_left_out", "stale", "over_ranks", "not_a_number"),
    ),
    ("all_gather", {"api": FUNCTIONAL, **WEIGHTED, **SUBGROUP, "dtype": "float64"}, EAGER, ("reference", "own_alone")),
    ("reduce_scatter", {"api": NN, **WIDE}, EAGER, ("input_mutated",)),
    (
        "reduce_scatter",
        {"api": AUTOGRAD, **STRIDED_GRADIENT, "input": "transposed"},
        EAGER,
        ("reference", "last_part_zeroed", "input_mutated"),
    ),
    ("broadcast", {"api": NN}, EAGER, ("wrong_shape",)),
    ("broadcast", {"api": NN, **WEIGHTED, **SUBGROUP}, EAGER, ("reference", "on_every_rank")),
    (AGGREGATION, {**EMPTY_LOSS, "recipe": "all_reduce"}, EAGER, ("reference",)),
    (
        AGGREGATION,
        {"recipe": "all_reduce", "tokens": "one_empty", "dtype": "float64"},
        EAGER,
        ("reference", "own_loss_alone"),
    ),
    (
        AGGREGATION,
        # With tokens on one of two ranks alone, a mean of means is the mean.
        {"recipe": "all_reduce", "tokens": "uneven", "dtype": "float64", **WEIGHTED, **SUBGROUP},
        EAGER,
        ("reference", "mean_of_means"),
    ),
)


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    return tuple(
        control(
            probe, name, mark_of(values, IN_ID), id_of(probe, values), known, modes, MUTANTS.get(name, RIGHT), suite
        )
        for suite, rows in zip(SUITES, (BESIDE_EVERY_RUN, IN_A_SELF_TEST), strict=True)
        for probe, values, modes, names in rows
        for name in names
    )
