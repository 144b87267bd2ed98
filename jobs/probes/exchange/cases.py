"""The cases of family ``exchange`` as data. Nothing here imports torch.

The axes are covered in pairs, not exhausted: each row of a table below is one case, and says only what differs from
the defaults of :class:`Exchange`.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.case import ALL, EAGER, TRACED, Rows, case_id, case_of
from jobs.probes.exchange.shapes import Exchange

FAMILY = "exchange"
VERSION = 1

DIM0: Rows = (
    (ALL, {}),
    (TRACED, {"dtype": "float64"}),
    (TRACED, {"dtype": "bfloat16"}),
    (TRACED, {"dtype": "float16"}),
    (ALL, {"loss": "weighted"}),
    (TRACED, {"loss": "weighted", "cotangent": "expanded"}),
    (EAGER, {"loss": "weighted", "dtype": "float64", "cotangent": "transposed"}),
    (EAGER, {"loss": "weighted", "dtype": "bfloat16", "input": "transposed"}),
    (TRACED, {"loss": "scaled"}),
    (EAGER, {"loss": "scaled", "dtype": "float16", "input": "offset"}),
    (TRACED, {"loss": "shared"}),
    (EAGER, {"loss": "shared", "dtype": "float64", "input": "transposed"}),
    (TRACED, {"loss": "accumulate"}),
    (EAGER, {"loss": "accumulate", "dtype": "bfloat16", "cotangent": "transposed"}),
    (TRACED, {"loss": "frozen"}),
    (EAGER, {"loss": "frozen", "dtype": "float16", "input": "offset"}),
    (TRACED, {"loss": "forward_only"}),
    (EAGER, {"loss": "forward_only", "dtype": "float64", "input": "expanded"}),
    (TRACED, {"input": "transposed"}),
    (EAGER, {"input": "expanded"}),
    (EAGER, {"loss": "weighted", "input": "transposed", "cotangent": "transposed"}),
    (ALL, {"wrap": "layer"}),
    (TRACED, {"wrap": "layer", "loss": "weighted", "dtype": "bfloat16"}),
    (EAGER, {"wrap": "layer", "loss": "frozen", "dtype": "float64"}),
    (ALL, {"sp": 2}),
    (TRACED, {"sp": 4, "loss": "weighted", "dtype": "float64"}),
    (EAGER, {"sp": 2, "loss": "accumulate", "dtype": "float16", "input": "transposed"}),
    (EAGER, {"sp": 4, "loss": "weighted", "cotangent": "transposed"}),
    (EAGER, {"blocks": "extra"}),
)

BSHD, SBHD = {"layout": "bshd"}, {"layout": "sbhd"}
TO_HEADS, TO_SEQUENCE = {"scatter": "heads"}, {"scatter": "sequence"}
SEQ_HEAD: Rows = (
    (ALL, {**BSHD, **TO_HEADS, "heads": "double"}),
    (ALL, {**BSHD, **TO_SEQUENCE, "heads": "squared", "batch": 2}),
    (TRACED, {**SBHD, **TO_HEADS, "heads": "double", "batch": 2}),
    (TRACED, {**SBHD, **TO_SEQUENCE, "heads": "squared"}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "ranks", "batch": 3, "loss": "weighted", "dtype": "float64"}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "ranks", "loss": "weighted"}),
    (EAGER, {**SBHD, **TO_HEADS, "heads": "ranks", "loss": "weighted", "cotangent": "expanded"}),
    (EAGER, {**SBHD, **TO_SEQUENCE, "heads": "ranks", "batch": 3, "loss": "weighted", "dtype": "float64"}),
    (TRACED, {**BSHD, **TO_HEADS, "heads": "uneven", "batch": 2}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "uneven", "loss": "weighted", "dtype": "float64"}),
    (EAGER, {**SBHD, **TO_HEADS, "heads": "uneven", "loss": "weighted", "input": "transposed"}),
    (EAGER, {**SBHD, **TO_SEQUENCE, "heads": "uneven", "batch": 3}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "uneven_large", "batch": 2, "loss": "weighted", "length": "odd"}),
    # Forward only: where some ranks refuse what the others accept, the others do not wait for them in a backward.
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "uneven_many", "loss": "forward_only", "length": "odd"}),
    (TRACED, {**BSHD, **TO_HEADS, "heads": "squared", "batch": 2, "length": "odd"}),
    (EAGER, {**SBHD, **TO_SEQUENCE, "heads": "squared", "batch": 2, "loss": "weighted", "length": "odd"}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "squared", "batch": 2, "loss": "weighted", "cotangent": "transposed"}),
    (EAGER, {**SBHD, **TO_HEADS, "heads": "squared", "batch": 2, "dtype": "float64", "input": "transposed"}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "squared", "input": "offset", "dtype": "bfloat16"}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "squared", "batch": 3, "loss": "scaled", "dtype": "float16"}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "squared", "batch": 3, "loss": "shared", "input": "expanded"}),
    (EAGER, {**SBHD, **TO_HEADS, "heads": "double", "loss": "accumulate", "dtype": "float64"}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "squared", "loss": "frozen"}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "double", "loss": "forward_only"}),
    (ALL, {**BSHD, **TO_HEADS, "heads": "squared", "batch": 2, "wrap": "layer"}),
    (EAGER, {**SBHD, **TO_HEADS, "heads": "squared", "wrap": "layer", "loss": "weighted", "dtype": "bfloat16"}),
    (TRACED, {**BSHD, **TO_HEADS, "heads": "squared", "batch": 2, "sp": 2}),
    (EAGER, {**SBHD, **TO_HEADS, "heads": "squared", "loss": "weighted", "sp": 4}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "uneven", "loss": "weighted", "sp": 2}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "uneven", "batch": 2, "sp": 4}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "squared", "length": "indivisible"}),
    (EAGER, {**SBHD, **TO_SEQUENCE, "heads": "squared", "batch": 2, "length": "indivisible"}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "double", "length": "unequal"}),
)
AFTER_UNEVEN: Rows = (
    (EAGER, {**BSHD, **TO_HEADS, "heads": "squared", "before": "uneven"}),
    (EAGER, {**BSHD, **TO_SEQUENCE, "heads": "squared", "batch": 2, "loss": "weighted", "before": "uneven"}),
    (EAGER, {**SBHD, **TO_HEADS, "heads": "double", "batch": 2, "dtype": "float64", "before": "uneven"}),
)
SINGLE: Rows = (
    *(
        (EAGER, {**layout, **scatter, "heads": "squared", "loss": "none", "how": how, "batch": batch, "dtype": dtype})
        for how, dtype in (("sync", "float32"), ("async", "float64"))
        for layout, batch in ((BSHD, 2), (SBHD, 1))
        for scatter in (TO_HEADS, TO_SEQUENCE)
    ),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "squared", "loss": "none", "dtype": "bfloat16", "input": "transposed"}),
    (EAGER, {**BSHD, **TO_HEADS, "heads": "uneven", "loss": "none", "how": "async"}),
)

PROBES: dict[str, tuple[tuple[str, ...], tuple[str, ...], Rows]] = {
    "dim0": (("dtype", "loss"), (), DIM0),
    "seq_head": (("layout", "scatter", "heads", "dtype", "loss"), (), SEQ_HEAD),
    "after_uneven": (("layout", "scatter", "heads", "dtype", "loss"), ("before",), AFTER_UNEVEN),
    "single_all_to_all": (("layout", "scatter", "heads", "how", "dtype"), ("loss",), SINGLE),
}
"""Per probe: the parameters that its ids always show, those that they never show (the same in all), and its cases."""

SUMMARY = {
    "dim0": "Exchange along dimension 0 of one block per rank",
    "seq_head": "Exchange between sequence and heads",
    "after_uneven": "Exchange between sequence and heads after one with uneven heads in the same process",
    "single_all_to_all": "Exchange between sequence and heads without a derivative",
}
API = {
    "dim0": "deepspeed.sequence.layer's exchange along dimension 0, a part of UlyssesSPAttentionHF, the documented way",
    "seq_head": "deepspeed.sequence.layer._SeqAllToAll, a part of DistributedAttention, the documented way",
    "after_uneven": "deepspeed.sequence.layer._SeqAllToAll, a part of DistributedAttention, the documented way",
    "single_all_to_all": "deepspeed.sequence.layer.single_all_to_all, a part of DistributedAttention, the documented "
    "way",
}
REFUSAL = {
    "extra": "one block more than there are ranks: outside the contract",
    "indivisible": "a sequence that the ranks do not divide: outside the contract",
    "unequal": "local lengths that differ between the ranks: outside the contract",
    "uneven": "uneven heads are documented as not started asynchronously: outside the contract",
}


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    return tuple(
        _info(probe, modes, Exchange(**params)) for probe, (_, _, rows) in PROBES.items() for modes, params in rows
    )


def id_of(probe: str, params: Exchange) -> str:
    """The id of the case with these parameters."""
    shown, hidden, _ = PROBES[probe]
    return case_id(FAMILY, probe, params, shown, hidden)


def _info(probe: str, modes: tuple[str, ...], params: Exchange) -> CaseInfo:
    outside = _outside(params)
    dims: tuple[str, ...] = ("block", "channel", "row", "column")
    if params.layout:
        dims = (*(("batch", "sequence") if params.layout == "bshd" else ("sequence", "batch")), "head", "feature")
    return case_of(
        id_of(probe, params),
        VERSION,
        params,
        modes,
        outside=outside,
        dims={spec.name: dims for spec in params.tensors(params.sp or 2, 0)} | {"y": dims, "y2": dims},
        api=API[probe],
        summary=f"{SUMMARY[probe]}{'; ' + outside if outside else ''}.",
    )


def _outside(params: Exchange) -> str:
    """Why the case is outside the contract, or nothing."""
    if params.how == "async" and params.heads.startswith("uneven"):
        return REFUSAL["uneven"]
    return REFUSAL.get(params.blocks) or REFUSAL.get(params.length) or ""
