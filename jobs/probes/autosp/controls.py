"""The controls of family ``autosp`` as data: operators of ours whose verdict is known beforehand.

They stand on the exchange and the gathering, in each of the four types, and on the model that the compiler pass
rewrites: there it is the model as a right pass leaves it, written by hand. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache

from jobs.contract import ControlInfo
from jobs.probes.autosp.cases import TO_HEADS, TO_SEQUENCE, WEIGHTED, catalogue, id_of
from jobs.probes.autosp.shapes import KINDS
from jobs.probes.case import EAGER, Values
from jobs.probes.control import RIGHT, Wrong, control

MUTANTS: dict[str, Wrong] = {
    "zeroed": Wrong(("zero_gradient",), "the gradient is zero", everywhere=True),
    "block_zeroed": Wrong(
        ("partial_zero",), "one token or head of the gradient is zero on every rank", everywhere=True
    ),
    "times_ranks": Wrong(("scaled",), "the gradient is multiplied by the number of ranks"),
    "over_ranks": Wrong(("scaled",), "the gradient is divided by the number of ranks", everywhere=True),
    "swapped": Wrong(("permuted",), "heads and tokens of the gradient are swapped", everywhere=True),
    "rank_dropped": Wrong(("zero_gradient", "partial_zero"), "the last rank's gradient is zero", everywhere=True),
    "not_sent_back": Wrong(("permuted",), "the backward keeps what it was given instead of exchanging it"),
    "stale": Wrong(("mismatch",), "the gradient is what the receive buffer held before"),
    "detached": Wrong(("no_gradient",), "the output is detached from the input"),
    "own_part": Wrong(("mismatch",), "the gradient of a gathered part is its own rank's alone", everywhere=True),
}
OURS = dataclasses.replace(RIGHT, summary="an operator of ours, or a model on it, that is right")
OF_GATHER = ("zeroed", "times_ranks", "own_part")

EXCHANGES: dict[str, Values] = {
    "float32": {**TO_HEADS, **WEIGHTED},
    "float64": {**TO_HEADS, "input": "transposed", "loss": "shared", "dtype": "float64"},
    "bfloat16": {**TO_SEQUENCE, "wrap": "layer", **WEIGHTED, "dtype": "bfloat16"},
    "float16": {**TO_SEQUENCE, "input": "offset", "loss": "scaled", "dtype": "float16"},
}
"""Per type, the case that a mutant of the exchange stands on."""
GATHERS: dict[str, Values] = {
    "float32": {"dim": 1, **WEIGHTED},
    "bfloat16": {"dim": 2, "loss": "accumulate", "dtype": "bfloat16", "batch": 1},
}
MODELS: dict[str, Values] = {"float32": {}, "bfloat16": {"sp": 2, "batch": 2, "dtype": "bfloat16"}}
OF_MODEL: dict[str, Wrong] = {
    "zeroed": Wrong(("zero_gradient",), "no gradient comes back to the values", everywhere=True),
    "times_ranks": Wrong(("mismatch",), "what comes back to the values is multiplied by the number of ranks"),
    "swapped": Wrong(("mismatch",), "heads and tokens are swapped in what comes back to the values"),
    "detached": Wrong(("no_gradient",), "the values are detached from what they are made of"),
}
BY_INPUT = ("stale",)
"""Beside Σy² these would pass for a factor."""


def _rows() -> Iterator[tuple[str, str, str, Values, tuple[str, ...], str]]:
    """Probe, implementation, its mark in the id, the parameters of its case, modes, suite."""
    yield "all_to_all", "traced_reference", "", EXCHANGES["float32"], ("aot_eager",), "default"
    layer = {**TO_HEADS, "heads": "squared", "wrap": "layer"}
    yield "all_to_all", "traced_reference", "inductor", layer, ("inductor",), "full"
    for probe, cases in (("all_to_all", EXCHANGES), ("sequence", GATHERS)):
        for dtype, values in cases.items():
            mark, is_first = ("", True) if dtype == "float32" else (dtype, False)
            yield probe, "reference", mark, values, EAGER, "default" if is_first else "full"
            for name, wrong in MUTANTS.items():
                if (name in OF_GATHER) if probe == "sequence" else (name != "own_part"):
                    if name in BY_INPUT and values["loss"] == "scaled":
                        continue
                    suite = "default" if wrong.everywhere and is_first else "full"
                    yield probe, name, mark, values, EAGER, suite
    for dtype, values in MODELS.items():
        mark, is_first = ("", True) if dtype == "float32" else (dtype, False)
        for name in ("reference", *OF_MODEL):
            everywhere = name == "reference" or OF_MODEL[name].everywhere
            yield "pass", name, mark, values, EAGER, "default" if everywhere and is_first else "full"


def _wrong(probe: str, name: str) -> Wrong:
    return (OF_MODEL if probe == "pass" else MUTANTS).get(name, OURS)


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    return tuple(
        control(probe, name, mark, id_of(probe, KINDS[probe](**values)), known, modes, _wrong(probe, name), suite)
        for probe, name, mark, values, modes, suite in _rows()
    )
