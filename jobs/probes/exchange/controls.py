"""The controls of family ``exchange`` as data: implementations of ours whose verdict is known beforehand.

References must agree, mutants must be caught, each on the inputs and the oracle of one case. If one misbehaves, the
family's cells say nothing about the subject. The implementations are in ``mutants``; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jobs.contract import DTYPES, ControlInfo
from jobs.probes.exchange.cases import FAMILY, catalogue, id_of
from jobs.probes.exchange.shapes import Exchange


@dataclass(frozen=True)
class Wrong:
    """One mutant: the verdicts that are right for it, and what it does."""

    expected: tuple[str, ...]
    summary: str


AGREE = ("agree",)
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

Values = dict[str, Any]
WEIGHTED: Values = {"loss": "weighted"}
TO_HEADS: Values = {"layout": "bshd", "scatter": "heads", "heads": "squared", "batch": 2}
TO_HEADS_STRIDED: Values = {**TO_HEADS, **WEIGHTED, "cotangent": "transposed"}
TO_SEQUENCE_UNEVEN: Values = {"layout": "sbhd", "scatter": "sequence", "heads": "uneven", "batch": 3}
TO_HEADS_PLAIN: Values = {"layout": "bshd", "scatter": "heads", "heads": "double"}
IN_EVERY_TYPE = ("zeroed", "block_zeroed", "times_ranks", "swapped")
"""Mutants that are tried in each of the four types, as the reference is."""
OF_SEQ_HEAD = ("block_zeroed", "over_ranks", "swapped", "part_dropped", "not_sent_back", "forward_permuted")
FLOATS = tuple(name for name in DTYPES if "float" in name)
IN_ID = ("dtype", "layout", "scatter", "sp")
EAGER, TRACED = ("eager",), ("aot_eager", "inductor")


def _rows() -> Iterator[tuple[str, str, Values, tuple[str, ...]]]:
    """Probe, implementation, the parameters of the case that it stands on, modes."""
    for dtype in FLOATS:
        for name in ("reference", *IN_EVERY_TYPE):
            yield "dim0", name, {"dtype": dtype}, EAGER
    yield "dim0", "reference", {"sp": 2}, EAGER
    yield "dim0", "traced_reference", {}, TRACED
    for name in MUTANTS:
        if name not in IN_EVERY_TYPE:
            # Most take a random incoming gradient: beside Σy², whose gradient is 2x, a stale x would pass for a factor.
            yield "dim0", name, {} if name == "wrong_shape" else WEIGHTED, EAGER
    yield "seq_head", "reference", TO_SEQUENCE_UNEVEN, EAGER
    yield "seq_head", "traced_reference", TO_HEADS_PLAIN, TRACED
    for name in ("reference", *OF_SEQ_HEAD):
        yield "seq_head", name, TO_HEADS_STRIDED, EAGER


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    made = []
    for probe, name, values, modes in _rows():
        case = id_of(probe, Exchange(**values))
        if case not in known:
            raise ValueError(f"control {probe}.{name} stands on a case that does not exist: {case}")
        wrong = MUTANTS.get(name)
        suffix = ",".join(f"{key}={values[key]}" for key in IN_ID if key in values)
        made.append(
            ControlInfo(
                id=f"{FAMILY}/{probe}.{name}" + (f"[{suffix}]" if suffix else ""),
                family=FAMILY,
                case=case,
                modes=modes,
                expected=wrong.expected if wrong else AGREE,
                summary=wrong.summary if wrong else "an implementation of ours that is right",
            )
        )
    return tuple(made)


def implementation_of(control: ControlInfo) -> str:
    """The name of the control's implementation in ``mutants``."""
    return control.id.partition(".")[2].partition("[")[0]
