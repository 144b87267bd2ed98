"""The cases of family ``attention`` as data. Nothing here imports torch.

The default suite has every value of each axis: each row of a table below is one case, and says only what differs from
the defaults of its probe. The full suite adds pairs of values, and what three of them together would say.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.attention.shapes import KINDS, LAYOUTS, WIDE_FEATURES, Attention, Chunked, Distributed, UlyssesHF
from jobs.probes.case import ALL, EAGER, FLOATS, TRACED, Rows, case_id, case_of

FAMILY = "attention"
VERSION = 1

BSHD, SBHD, CAUSAL = {"layout": "bshd"}, {"layout": "sbhd"}, {"causal": "yes"}
SHARED = {"heads": "squared", "kv": "ranks"}
"""Query heads that share key/value heads, of which every rank has one."""
DISTRIBUTED: Rows = (
    (ALL, {**BSHD, **SHARED, **CAUSAL}),
    (ALL, {**BSHD, **SHARED, **CAUSAL, "wrap": "layer"}),
    (TRACED, {**SBHD, "heads": "squared"}),
    (EAGER, {**BSHD, "heads": "double", **CAUSAL, "batch": 3, "dtype": "float64", "loss": "square"}),
    (EAGER, {**SBHD, "heads": "double", "kv": "ranks", "batch": 1, "dtype": "float64", "cotangent": "transposed"}),
    (EAGER, {**SBHD, "heads": "squared", **CAUSAL, "batch": 3, "dtype": "bfloat16", "loss": "accumulate"}),
    (EAGER, {**BSHD, "heads": "squared", "batch": 1, "dtype": "float16", "loss": "shared", "length": "odd"}),
    (EAGER, {**BSHD, "heads": "quadruple", "kv": "double", **CAUSAL, "batch": 1, "loss": "scaled", "length": "odd"}),
    (EAGER, {**SBHD, "heads": "ranks", **CAUSAL, "length": "odd", "input": "offset"}),
    (EAGER, {**BSHD, "heads": "uneven", **CAUSAL}),
    (EAGER, {**SBHD, "heads": "uneven_large", "batch": 3, "dtype": "float64", "length": "odd"}),
    (EAGER, {**BSHD, "heads": "uneven_double", "kv": "uneven", "batch": 1, "loss": "forward_only"}),
    (EAGER, {**BSHD, "heads": "uneven_shared", "kv": "uneven", **CAUSAL}),
    (EAGER, {**SBHD, "heads": "uneven_double", "kv": "uneven", **CAUSAL, "told": "yes"}),
    (EAGER, {**BSHD, **SHARED, "told": "yes", "batch": 3, "input": "expanded"}),
    (EAGER, {**BSHD, **SHARED, **CAUSAL, "rotary": "full"}),
    (EAGER, {**BSHD, "heads": "squared", "rotary": "half", "batch": 1, "dtype": "float64", "wrap": "layer"}),
    (EAGER, {**BSHD, "heads": "squared", **CAUSAL, "gather": "zero", "batch": 1}),
    (EAGER, {**BSHD, "heads": "squared", **CAUSAL, "overlap": "stand_in"}),
    (EAGER, {**SBHD, "heads": "squared", "overlap": "stand_in", "batch": 3, "dtype": "float64"}),
    (EAGER, {**BSHD, "heads": "squared", **CAUSAL, "overlap": "stream"}),
    (EAGER, {**BSHD, "heads": "squared", "before": "uneven"}),
    (EAGER, {**SBHD, **SHARED, "frozen": "kv", "loss": "square", "cotangent": "contiguous"}),
    (EAGER, {**BSHD, **SHARED, "frozen": "q", "dtype": "float16", "input": "transposed"}),
    (EAGER, {**BSHD, "heads": "squared", "loss": "forward_only", "dtype": "bfloat16", "input": "offset"}),
    (EAGER, {**SBHD, "heads": "squared", "input": "transposed", "cotangent": "expanded"}),
    (EAGER, {**BSHD, **SHARED, **CAUSAL, "sp": 2}),
    (EAGER, {**SBHD, "heads": "uneven", "sp": 2, "loss": "accumulate", "batch": 1}),
    (EAGER, {**BSHD, "heads": "squared", **CAUSAL, "sp": 4}),
    (EAGER, {**BSHD, "heads": "double", "kv": "few"}),
    (EAGER, {**BSHD, "heads": "squared", "length": "unequal"}),
)
DISTRIBUTED_FULL: Rows = (
    *((EAGER, {**BSHD, **SHARED, **CAUSAL, "dtype": dtype}) for dtype in ("float64", "bfloat16", "float16")),
    *((EAGER, {**BSHD, **SHARED, **CAUSAL, "dtype": dtype, "loss": "square"}) for dtype in FLOATS),
    *(
        (EAGER, {**layout, "heads": "squared", **CAUSAL, "batch": batch, "loss": loss})
        for layout in (BSHD, SBHD)
        for batch, loss in ((1, "square"), (2, "shared"), (3, "scaled"), (1, "accumulate"), (2, "forward_only"))
    ),
    *(
        (EAGER, {**layout, **SHARED, "input": input_, "cotangent": cotangent})
        for layout, input_, cotangent in (
            (BSHD, "offset", "transposed"),
            (BSHD, "transposed", "expanded"),
            (SBHD, "expanded", "contiguous"),
            (SBHD, "offset", "transposed"),
        )
    ),
    (ALL, {**SBHD, **SHARED, **CAUSAL, "wrap": "layer"}),
    (TRACED, {**BSHD, "heads": "uneven", "wrap": "layer"}),
    (TRACED, {**BSHD, **SHARED, **CAUSAL, "rotary": "full", "wrap": "layer"}),
    (TRACED, {**BSHD, **SHARED, **CAUSAL, "wrap": "layer", "dtype": "bfloat16", "batch": 1}),
    (TRACED, {**BSHD, **SHARED, "sp": 2, "wrap": "layer"}),
    (TRACED, {**SBHD, "heads": "squared", "sp": 4, "wrap": "layer"}),
    (TRACED, {**BSHD, "heads": "double", "batch": 3, "length": "odd", "dtype": "float64"}),
    (EAGER, {**SBHD, **SHARED, "rotary": "full", "batch": 3}),
    (EAGER, {**BSHD, "heads": "uneven", "rotary": "half", **CAUSAL}),
    (EAGER, {**BSHD, "heads": "squared", "gather": "zero", "batch": 2}),
    (EAGER, {**BSHD, "heads": "ranks", **CAUSAL, "gather": "zero", "batch": 1}),
    (EAGER, {**BSHD, "heads": "uneven", "gather": "zero", "batch": 3}),
    (EAGER, {**BSHD, **SHARED, **CAUSAL, "overlap": "stand_in", "dtype": "float64", "loss": "accumulate"}),
    (EAGER, {**BSHD, "heads": "ranks", "overlap": "stand_in", "batch": 1}),
    (EAGER, {**BSHD, **SHARED, "overlap": "stand_in", "wrap": "layer", "rotary": "full"}),
    (EAGER, {**BSHD, "heads": "squared", "overlap": "stand_in", "frozen": "qkv", "loss": "forward_only"}),
    (EAGER, {**SBHD, **SHARED, "overlap": "stream", "dtype": "bfloat16"}),
    (EAGER, {**SBHD, "heads": "double", "before": "uneven", **CAUSAL, "dtype": "float64"}),
    (EAGER, {**BSHD, "heads": "uneven_large", "before": "uneven"}),
    (EAGER, {**BSHD, "heads": "uneven_double", "kv": "uneven", "told": "yes", "batch": 3}),
    (EAGER, {**BSHD, "heads": "uneven_shared", "kv": "uneven", "told": "yes"}),
    (EAGER, {**SBHD, "heads": "uneven_shared", "kv": "uneven", "batch": 1, "dtype": "float64"}),
    (EAGER, {**BSHD, "heads": "uneven", "sp": 4, **CAUSAL}),
    (EAGER, {**BSHD, "heads": "squared", "before": "uneven", "sp": 2}),
    (EAGER, {**BSHD, **SHARED, **CAUSAL, "rotary": "full", "sp": 4}),
    (EAGER, {**SBHD, "heads": "double", "kv": "one"}),
    (EAGER, {**SBHD, "heads": "squared", "length": "unequal"}),
    # The size of a public report of wrong gradients that were right: 5 tokens per rank, in both layouts.
    *(
        (EAGER, {**layout, "heads": "eight", "batch": 8, "length": "odd", "features": WIDE_FEATURES})
        for layout in (SBHD, BSHD)
    ),
)
ULYSSES: Rows = (
    (ALL, {"heads": "double", **CAUSAL}),
    (ALL, {"heads": "quadruple", "kv": "ranks", **CAUSAL, "wrap": "layer"}),
    (EAGER, {"heads": "double", "kv": "few", "positions": "packed", **CAUSAL}),
    (EAGER, {"heads": "double", "kv": "one", "lengths": "fixed", "dtype": "float64", "loss": "square", "batch": 3}),
    (EAGER, {"heads": "squared", "kv": "few", **CAUSAL, "lengths": "fixed", "length": "odd", "loss": "scaled"}),
    (EAGER, {"heads": "quadruple", "kv": "double", **CAUSAL, "dtype": "bfloat16", "length": "odd", "batch": 3,
             "loss": "accumulate"}),
    (EAGER, {"heads": "squared", "positions": "packed", "dtype": "float16", "batch": 1, "loss": "shared"}),
    (EAGER, {"heads": "ranks", "kv": "one", "positions": "packed", "input": "transposed", "cotangent": "transposed"}),
    (EAGER, {"heads": "double", **CAUSAL, "before": "longer"}),
    (EAGER, {"heads": "double", "kv": "few", "frozen": "q", "input": "offset"}),
    (EAGER, {"heads": "squared", "frozen": "kv", "lengths": "fixed", "dtype": "float16", "cotangent": "expanded"}),
    (EAGER, {"heads": "double", "loss": "forward_only", "dtype": "bfloat16", "input": "expanded"}),
    (EAGER, {"heads": "squared", "kv": "few", **CAUSAL, "sp": 2}),
    (EAGER, {"heads": "double", "kv": "one", **CAUSAL, "sp": 4, "positions": "packed"}),
    (EAGER, {"heads": "uneven"}),
    (EAGER, {"heads": "uneven_shared", "kv": "uneven"}),
    (EAGER, {"heads": "double", "length": "unequal"}),
)  # fmt: skip
ULYSSES_FULL: Rows = (
    *((EAGER, {"heads": "quadruple", "kv": "few", **CAUSAL, "dtype": dtype})
      for dtype in ("float64", "float32", "bfloat16", "float16")),
    (EAGER, {"heads": "squared", **CAUSAL, "batch": 1, "loss": "accumulate", "lengths": "fixed"}),
    (EAGER, {"heads": "squared", **CAUSAL, "batch": 2, "loss": "shared"}),
    (EAGER, {"heads": "squared", **CAUSAL, "batch": 3, "loss": "forward_only", "lengths": "fixed"}),
    (ALL, {"heads": "double", "kv": "few", **CAUSAL, "wrap": "layer"}),
    (TRACED, {"heads": "quadruple", "kv": "one", "wrap": "layer", "lengths": "fixed", "dtype": "bfloat16"}),
    (TRACED, {"heads": "squared", **CAUSAL, "sp": 2}),
    (TRACED, {"heads": "quadruple", "kv": "few", "positions": "packed"}),
    (TRACED, {"heads": "double", "kv": "few", "sp": 4, "wrap": "layer"}),
    (EAGER, {"heads": "squared", "kv": "few", "before": "longer", "positions": "packed", "dtype": "float64"}),
    (EAGER, {"heads": "double", "length": "unequal", "lengths": "fixed"}),
    (EAGER, {"heads": "eight", **CAUSAL, "batch": 8, "length": "odd", "features": WIDE_FEATURES}),
)  # fmt: skip
FPDT: Rows = ((EAGER, {"heads": "double", "kv": "ranks"}),)
FPDT_FULL: Rows = ((EAGER, {"heads": "double", "dtype": "float16", "chunks": 1, "batch": 1}),)

PROBES: dict[str, tuple[tuple[str, ...], tuple[str, ...], Rows, Rows]] = {
    "distributed": (("layout", "heads", "kv", "dtype"), (), DISTRIBUTED, DISTRIBUTED_FULL),
    "ulysses_hf": (("heads", "kv", "dtype"), ("layout",), ULYSSES, ULYSSES_FULL),
    "fpdt": (("heads", "kv", "dtype", "chunks"), ("layout", "causal", "features"), FPDT, FPDT_FULL),
}
"""Per probe: what its ids always show, what they never show, and its cases in the default and in the full suite."""

SUMMARY = {
    "distributed": "Attention between two exchanges of sequence and heads",
    "ulysses_hf": "Attention as a Hugging Face attention function is wrapped",
    "fpdt": "Causal attention with its projections, chunk by chunk",
}
CLASS = {
    "distributed": "deepspeed.sequence.layer.DistributedAttention, as documented",
    "ulysses_hf": "deepspeed.runtime.sequence_parallel.ulysses_sp.UlyssesSPAttentionHF by keywords, as documented; "
    "where transformers is not installed, its version is made up",
    "fpdt": "deepspeed.sequence.fpdt_layer.FPDT_Attention, as Megatron-DeepSpeed calls it",
}


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    return tuple(
        _info(probe, modes, KINDS[probe](**params), suite)
        for probe, (_, _, *tables) in PROBES.items()
        for suite, rows in zip(("default", "full"), tables, strict=True)
        for modes, params in rows
    )


def id_of(probe: str, params: Attention) -> str:
    """The id of the case with these parameters."""
    shown, hidden, _, _ = PROBES[probe]
    return case_id(FAMILY, probe, params, shown, hidden)


def _info(probe: str, modes: tuple[str, ...], params: Attention, suite: str) -> CaseInfo:
    outside, said = _outside(params), _said(params)
    return case_of(
        id_of(probe, params),
        VERSION,
        params,
        modes,
        outside=outside,
        exact=False,
        dims=_dims(params),
        transports=_transports(params),
        suite=suite,
        api=f"{CLASS[probe]}{_api(params)}.",
        summary="; ".join([SUMMARY[probe], *said, *([outside] if outside else [])]) + ".",
    )


def _outside(params: Attention) -> str:
    """Why the case is outside the contract, or nothing."""
    if params.length == "unequal":
        return "local lengths that differ between the ranks: outside the contract"
    if isinstance(params, Distributed):
        if params.kv in ("few", "one"):
            return "fewer key/value heads than ranks: outside the contract"
        if params.gather == "zero" and params.heads.startswith("uneven"):
            return "uneven heads, gathered along the batch: outside the contract"
    if isinstance(params, UlyssesHF) and params.heads == "uneven":
        return "heads that the ranks do not divide: outside the contract"
    if isinstance(params, UlyssesHF) and params.kv == "uneven":
        return "key/value heads that neither divide the ranks nor are divided by them: outside the contract"
    return ""


def _said(params: Attention) -> list[str]:
    """What people have to know besides the parameters."""
    said = []
    if isinstance(params, Distributed):
        if params.overlap == "stand_in":
            said.append("exchanges overlapping with calculation, its logic only: streams are stand-ins on this CPU")
        if params.overlap == "stream":
            said.append("exchanges overlapping with calculation on a CUDA stream")
        if params.before != "nothing":
            said.append("after another attention with uneven heads in the same process")
        if params.gather == "zero":
            said.append("the batch named as the dimension to gather")
    if isinstance(params, UlyssesHF) and params.before != "nothing":
        said.append("after a longer batch in the same module")
    return said


def _api(params: Attention) -> str:
    """Where the call is not the documented one, or not the only one."""
    if isinstance(params, Distributed):
        if params.gather == "zero":
            return (
                ", except that gather_idx is 0, its default, for a layout whose sequence is dimension 1: gather_idx=1"
            )
        if params.told == "yes":
            return "; key/value heads stated by num_kv_heads, before 0.19.7 by module_inject.tp_shard.set_num_kv_heads"
        if params.overlap != "no":
            return ", with sp_stream"
        if params.kv not in ("same", "ranks"):
            return "; the number of key/value heads is not stated (num_kv_heads, from 0.19.7 on)"
    if isinstance(params, Chunked):
        return "; it needs the package flash-attn and a GPU"
    return ""


def _transports(params: Attention) -> tuple[str, ...]:
    """A stand-in for a stream stands for nothing where there are streams, and a stream cannot be had elsewhere."""
    overlap = params.overlap if isinstance(params, Distributed) else "no"
    return {"stand_in": ("gloo",), "stream": ("nccl",)}.get(overlap, ("gloo", "nccl"))


def _dims(params: Attention) -> dict[str, tuple[str, ...]]:
    """The names of dimensions, for the map of blocks."""
    inside: tuple[str, ...] = LAYOUTS[params.layout]
    outside: tuple[str, ...] = ("batch", "sequence", "channel") if isinstance(params, UlyssesHF) else inside
    if isinstance(params, Chunked):
        inside = outside = ("sequence", "batch", "channel")
    dims: dict[str, tuple[str, ...]] = dict.fromkeys(("y", "y2", "w", "w2"), outside)
    for spec in params.tensors(params.sp or 2, 0):
        if spec.name not in dims and len(spec.shape) == len(inside) and not (spec.integers or spec.shared):
            dims[spec.name] = inside
        elif spec.shared and len(spec.shape) == 1:
            dims[spec.name] = ("feature",)
    return dims
