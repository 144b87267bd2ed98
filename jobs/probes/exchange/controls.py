"""The controls of family ``exchange`` as data: implementations of ours whose verdict is known beforehand.

References must agree, mutants must be caught, each on the inputs and the oracle of one case. If one misbehaves, the
family's cells say nothing about the subject. Few stand beside every run; the others, every mutant in every type, are
for the self-test. The implementations are in ``mutants``; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from jobs.contract import SUITES, ControlInfo
from jobs.probes.case import EAGER, FLOATS, Values
from jobs.probes.control import RIGHT, TRACED, Wrong, control, mark_of
from jobs.probes.exchange.cases import catalogue, id_of
from jobs.probes.exchange.shapes import Exchange

MUTANTS: dict[str, Wrong] = {
    "zeroed": Wrong(("zero_gradient",), "the gradient is zero"),
    "block_zeroed": Wrong(("partial_zero",), "one block of the gradient is zero on every rank"),
    "times_ranks": Wrong(("scaled",), "the gradient is multiplied by the number of ranks"),
    "over_ranks": Wrong(("scaled",), "the gradient is divided by the number of ranks"),
    "swapped": Wrong(("permuted",), "two dimensions of the gradient are swapped"),
    "part_dropped": Wrong(("partial_zero",), "what the last rank sends back never arrives"),
    "rank_dropped": Wrong(("zero_gradient", "partial_zero"), "the last rank's gradient is zero, the others' are right"),
    "not_sent_back": Wrong(("permuted",), "the backward keeps what it was given instead of exchanging it"),
    "stale": Wrong(("mismatch",), "the gradient is what the receive buffer held before"),
    "not_a_number": Wrong(("mismatch",), "one element of the gradient is NaN"),
    "detached": Wrong(("no_gradient",), "the output is detached from the input"),
    "wrong_shape": Wrong(("wrong_shape",), "the output has its first two dimensions merged"),
    "forward_permuted": Wrong(("forward_mismatch",), "the output is permuted, the gradient right"),
    "input_mutated": Wrong(("mutated",), "the input is changed in place"),
    "cotangent_mutated": Wrong(("mutated",), "the incoming gradient is changed in place"),
}

ON_SQUARES = ("zeroed", "block_zeroed", "times_ranks", "swapped", "wrong_shape", "detached", "input_mutated")
"""Mutants of dim0 that stand on the loss Σy², and not on a random incoming gradient."""

BSHD: Values = {"layout": "bshd", "heads": "squared"}
SBHD: Values = {"layout": "sbhd", "heads": "squared"}
TO_HEADS: Values = {"scatter": "heads"}
TO_SEQUENCE: Values = {"scatter": "sequence"}
WEIGHTED: Values = {"loss": "weighted"}
TO_SEQUENCE_UNEVEN: Values = {"layout": "sbhd", "scatter": "sequence", "heads": "uneven", "batch": 3}
TO_HEADS_PLAIN: Values = {"layout": "bshd", "scatter": "heads", "heads": "double"}
RANDOM: dict[str, Values] = {
    "float64": {**WEIGHTED, "dtype": "float64", "cotangent": "transposed"},
    "float32": WEIGHTED,
    "float16": {"loss": "accumulate", "dtype": "float16", "sp": 2, "input": "transposed"},
    "bfloat16": {**WEIGHTED, "dtype": "bfloat16", "input": "transposed"},
}
"""Per type, a dim-0 case whose incoming gradient is random: beside Σy² a stale x would pass for a factor of 2x."""
STRIDED: dict[str, Values] = {
    "float64": {**SBHD, **TO_HEADS, "batch": 2, "dtype": "float64", "input": "transposed"},
    "float32": {**BSHD, **TO_HEADS, "batch": 2, **WEIGHTED, "cotangent": "transposed"},
    "float16": {**BSHD, **TO_SEQUENCE, "batch": 3, "loss": "scaled", "dtype": "float16"},
    "bfloat16": {**BSHD, **TO_SEQUENCE, "input": "offset", "dtype": "bfloat16"},
}
"""Per type, a case between sequence and heads; both layouts and both directions."""
OF_SEQ_HEAD = ("block_zeroed", "over_ranks", "swapped", "part_dropped", "not_sent_back", "forward_permuted")
BESIDE_EVERY_RUN = {
    "dim0": ("zeroed", "block_zeroed", "times_ranks", "swapped", "rank_dropped", "stale", "detached", "input_mutated"),
    "seq_head": ("part_dropped", "not_sent_back", "forward_permuted"),
}
"""Per probe, the mutants that every run has to catch, in float32; those of seq_head are what it has besides."""
IN_ID = ("dtype", "layout", "scatter", "sp")


def _rows() -> Iterator[tuple[str, str, Values, tuple[str, ...]]]:
    """Probe, implementation, the parameters of the case that it stands on, modes."""
    yield "dim0", "reference", {"sp": 2}, EAGER
    yield "dim0", "traced_reference", {}, TRACED
    yield "seq_head", "reference", TO_SEQUENCE_UNEVEN, EAGER
    yield "seq_head", "traced_reference", TO_HEADS_PLAIN, TRACED
    for dtype in FLOATS:
        yield "dim0", "reference", {"dtype": dtype}, EAGER
        yield "seq_head", "reference", STRIDED[dtype], EAGER
        for name in MUTANTS:
            yield "dim0", name, {"dtype": dtype} if name in ON_SQUARES else RANDOM[dtype], EAGER
        for name in OF_SEQ_HEAD:
            # Only where the incoming gradient does not come from the output does a wrong one leave the gradient right.
            if name != "forward_permuted" or dtype == "float32":
                yield "seq_head", name, STRIDED[dtype], EAGER


def _suite(probe: str, name: str, values: Values) -> str:
    """Every right implementation in float32, and dim0's in every type, stands beside every run."""
    if name not in MUTANTS:
        beside = probe == "dim0" or values.get("dtype", "float32") == "float32"
    else:
        beside = values.get("dtype", "float32") == "float32" and name in BESIDE_EVERY_RUN[probe]
    return SUITES[0] if beside else SUITES[-1]


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    made = []
    for probe, name, values, modes in _rows():
        case, suite = id_of(probe, Exchange(**values)), _suite(probe, name, values)
        mark = mark_of(values, IN_ID)
        made.append(control(probe, name, mark, case, known, modes, MUTANTS.get(name, RIGHT), suite))
    return tuple(made)
