"""The cases of family ``autosp`` as data. Nothing here imports torch.

Each row of a table below is one case, and says only what differs from the defaults. What a compiler pass rewrites is
traced whatever the mode is, so that its cases are eager ones that say what runs the graph.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.autosp.shapes import KINDS, Params, Rewritten
from jobs.probes.case import ALL, EAGER, TRACED, Values, case_id, case_of

FAMILY = "autosp"
VERSION = 1

Rows = tuple[tuple[str, tuple[str, ...], Values], ...]
"""Suite, modes, and what differs from the defaults."""

TO_HEADS, TO_SEQUENCE, WEIGHTED = {"scatter": "heads"}, {"scatter": "sequence"}, {"loss": "weighted"}
ALL_TO_ALL: Rows = (
    ("default", TRACED, {**TO_HEADS, **WEIGHTED}),
    ("default", EAGER, {**TO_SEQUENCE, "heads": "squared", **WEIGHTED, "cotangent": "transposed"}),
    ("default", EAGER, {**TO_SEQUENCE, **WEIGHTED, "sp": 2, "dtype": "float64", "batch": 1}),
    ("full", ALL, {**TO_HEADS, "heads": "squared", "wrap": "layer"}),
    ("full", ALL, {**TO_SEQUENCE, "wrap": "layer", **WEIGHTED, "dtype": "bfloat16"}),
    ("full", TRACED, {**TO_SEQUENCE, "heads": "ranks", "batch": 3}),
    ("full", TRACED, {**TO_HEADS, "sp": 2, "loss": "accumulate"}),
    ("full", EAGER, {**TO_HEADS, "input": "transposed", "loss": "shared", "dtype": "float64"}),
    ("full", EAGER, {**TO_HEADS, "input": "expanded", "loss": "frozen", "heads": "ranks"}),
    ("full", EAGER, {**TO_SEQUENCE, "input": "offset", "loss": "scaled", "dtype": "float16"}),
    ("full", EAGER, {**TO_HEADS, "cotangent": "expanded", **WEIGHTED, "batch": 1}),
    ("full", EAGER, {**TO_SEQUENCE, "sp": 4, **WEIGHTED, "heads": "squared"}),
    ("full", EAGER, {**TO_HEADS, "loss": "forward_only", "dtype": "bfloat16"}),
    ("full", EAGER, {**TO_HEADS, "heads": "uneven"}),
)
SEQUENCE: Rows = (
    ("default", EAGER, {"dim": 1, **WEIGHTED}),
    ("full", TRACED, {"dim": 2, "wrap": "layer"}),
    ("full", TRACED, {"dim": 2, "sp": 2, **WEIGHTED, "dtype": "float64"}),
    ("full", EAGER, {"dim": 1, "input": "transposed", "cotangent": "transposed", **WEIGHTED, "batch": 3}),
    ("full", EAGER, {"dim": 2, "loss": "accumulate", "dtype": "bfloat16", "batch": 1}),
    ("full", EAGER, {"dim": 1, "loss": "forward_only", "input": "expanded"}),
    ("full", EAGER, {"way": "scatter", "loss": "none", "dim": 1}),
    ("full", EAGER, {"way": "scatter", "loss": "none", "dim": 2, "sp": 2, "dtype": "float64"}),
)
PASS: Rows = (
    ("default", EAGER, {}),
    ("full", EAGER, {"names": "hf"}),
    ("full", EAGER, {"names": "hf", "then": "aot_eager", "loss": "square"}),
    ("full", EAGER, {"then": "aot_eager", "dtype": "float64", "heads": "squared"}),
    ("full", EAGER, {"then": "inductor", "heads": "ranks"}),
    ("full", EAGER, {"names": "hf", "mask": "rows"}),
    ("full", EAGER, {"mask": "rows", "batch": 2}),
    ("full", EAGER, {"mask": "rows", "then": "aot_eager", "loss": "square"}),
    ("full", EAGER, {"sp": 2, "batch": 2, "dtype": "bfloat16"}),
    ("full", EAGER, {"sp": 4, "then": "aot_eager", "loss": "scaled"}),
    ("full", EAGER, {"loss": "forward_only"}),
)
PROBES: dict[str, tuple[tuple[str, ...], Rows]] = {
    "all_to_all": (("scatter", "heads", "dtype", "loss"), ALL_TO_ALL),
    "sequence": (("way", "dim", "dtype", "loss"), SEQUENCE),
    "pass": (("names", "then", "mask", "dtype", "loss"), PASS),
}
"""Per probe: the parameters that its ids always show, and its cases."""

SUMMARY = {
    "all_to_all": "The operator autosp::all_to_all, between sequence and heads",
    "sequence": "The operators that gather a sequence's parts, or add them up and cut the sum",
    "pass": "A model of two layers after AutoSP's pass, every rank with the whole sequence",
}
API = {
    "all_to_all": "torch.ops.autosp.all_to_all, which only the pass calls: an operator of its own, not documented",
    "sequence": "torch.ops.autosp.all_gather_sequence and reduce_scatter_sequence, which only the pass calls",
    "pass": "prepare_autosp_inputs as documented, and apply_autosp as the engine's compile() calls it",
}
UNEVEN = "; heads that the ranks do not divide: outside the contract"


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    return tuple(
        _info(probe, suite, modes, KINDS[probe](**values))
        for probe, (_, rows) in PROBES.items()
        for suite, modes, values in rows
    )


def id_of(probe: str, params: Params) -> str:
    """The id of the case with these parameters."""
    return case_id(FAMILY, probe, params, PROBES[probe][0])


def _info(probe: str, suite: str, modes: tuple[str, ...], params: Params) -> CaseInfo:
    outside = getattr(params, "heads", "") == "uneven"
    then = getattr(params, "then", "")
    return case_of(
        id_of(probe, params),
        VERSION,
        params,
        modes,
        outside=outside,
        exact=probe == "all_to_all",
        dims=_dims(params),
        suite=suite,
        api=API[probe],
        summary=f"{SUMMARY[probe]}{UNEVEN if outside else ''}.",
        # A graph that runs as it was captured went through the tracer's front end all the same.
        compiles="inductor" if then == "inductor" else "aot_eager" if then else "",
    )


def _dims(params: Params) -> dict[str, tuple[str, ...]]:
    if not isinstance(params, Rewritten):
        middle = ("head", "sequence") if hasattr(params, "scatter") else ("first", "second")
        dims = ("batch", *middle, "feature")
        return dict.fromkeys(("x", "c", "w", "w2", "y", "y2"), dims)
    wide: dict[str, tuple[str, ...]] = dict.fromkeys(params.weights(params.sp or 2), ("output", "input"))
    return wide | {"symbols": ("symbol", "hidden"), "places": ("place", "hidden"), "y": ("token",), "w": ("token",)}
