"""The cases of family ``loss`` as data. Nothing here imports torch.

The default suite has every value of each axis, and what completes the pairs; ``full`` has the rest. Each row of a table
below is one case, and says only what differs from the defaults of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.case import ALL, EAGER, TRACED, Rows, Values, case_id, case_of
from jobs.probes.loss.shapes import KINDS, Aggregate, Loss, Tokens

FAMILY = "loss"
VERSION = 1

OTHER_TYPES = ("float64", "bfloat16", "float16")
SUMMED, LOCAL = {"how": "summed"}, {"how": "local"}
LARGE = {"vocabulary": "large"}
VOCAB: Rows = (
    (TRACED, {}),
    (EAGER, {"dtype": "float64", "loss": "square", "batch": 3}),
    (EAGER, {"dtype": "bfloat16", "loss": "scaled", "batch": 1}),
    (EAGER, {"dtype": "float16"}),
    (EAGER, {**LARGE, "ignored": "uneven"}),
    (EAGER, {"ignored": "one_empty", "loss": "square"}),
    (EAGER, {"size": "huge", "loss": "square"}),
    (EAGER, {"vocabulary": "tiny", "loss": "accumulate", "size": "wide", "input": "transposed"}),
    (EAGER, {"loss": "shared", "cotangent": "transposed", "input": "expanded"}),
    (EAGER, {"loss": "frozen", "input": "offset", "dtype": "float64"}),
    (EAGER, {"loss": "forward_only", "batch": 1}),
    (EAGER, {"sp": 2, "cotangent": "expanded", "size": "wide"}),
    (EAGER, {"shape": "swapped"}),
    (EAGER, {"gather": "strict"}),
    (EAGER, {**SUMMED, **LARGE, "ignored": "uneven", "batch": 3}),
    (EAGER, {**LOCAL, "ignored": "one_empty", "wrap": "layer"}),
)
VOCAB_FULL: Rows = (
    (ALL, {"wrap": "layer"}),
    (EAGER, {"wrap": "layer", "dtype": "bfloat16", "batch": 3}),
    (TRACED, {"sp": 2, "loss": "square"}),
    (EAGER, {"sp": 4, "dtype": "float64"}),
    (EAGER, {"dtype": "float16", "size": "wide"}),
    (EAGER, {"dtype": "bfloat16", "size": "wide"}),
    (EAGER, {"dtype": "float64", "size": "huge"}),
    (EAGER, {"dtype": "bfloat16", "size": "huge"}),
    (EAGER, {**LARGE, "ignored": "one_empty", "loss": "square", "dtype": "float64"}),
    *((EAGER, {**LARGE, "ignored": "uneven", "dtype": dtype}) for dtype in OTHER_TYPES),
    (EAGER, {**LARGE, "ignored": "uneven", "loss": "forward_only"}),
    (EAGER, {**LARGE, "ignored": "one_empty", "sp": 2}),
    (EAGER, {**LARGE, "batch": 1, "size": "wide"}),
    (EAGER, {"vocabulary": "tiny", "ignored": "uneven", "loss": "square"}),
    (EAGER, {"dtype": "float64", "loss": "accumulate", "cotangent": "transposed"}),
    (EAGER, {**SUMMED, "shape": "swapped"}),
    (ALL, {**SUMMED, "loss": "square"}),
    (EAGER, {**SUMMED, "sp": 2, "cotangent": "transposed", "dtype": "float64"}),
    (EAGER, {**SUMMED, "sp": 4, "ignored": "one_empty", "dtype": "bfloat16"}),
    (EAGER, {**LOCAL, "size": "huge", "loss": "square"}),
    (EAGER, {**LOCAL, "size": "huge", "loss": "square", "dtype": "float64"}),
    (EAGER, {**LOCAL, "loss": "shared", "input": "transposed", "cotangent": "expanded"}),
    (EAGER, {**LOCAL, "loss": "accumulate", "dtype": "float16"}),
    (EAGER, {**LOCAL, "loss": "frozen", "sp": 2}),
)

GATHER, REDUCE = {"recipe": "all_gather"}, {"recipe": "all_reduce"}
WEIGHTED_REDUCE, OWN = {"recipe": "weighted_all_reduce"}, {"recipe": "own"}
EVEN, UNEVEN, EMPTY = {"tokens": "even"}, {"tokens": "uneven"}, {"tokens": "one_empty"}
FACTOR = {"loss": "weighted"}
AGGREGATE: Rows = (
    (EAGER, {**GATHER, **UNEVEN}),
    (EAGER, {**GATHER, **EMPTY, **FACTOR, "dtype": "float64", "batch": 2}),
    (EAGER, {**GATHER, **UNEVEN, "sp": 2}),
    (TRACED, {**REDUCE, **UNEVEN}),
    (EAGER, {**REDUCE, **EMPTY, **FACTOR, "sp": 2, "reduction": "sum", "dtype": "bfloat16"}),
    (EAGER, {**WEIGHTED_REDUCE, **EMPTY, "batch": 3, "input": "transposed"}),
    (EAGER, {**OWN, **UNEVEN, **FACTOR, "batch": 2}),
    (EAGER, {**OWN, **EMPTY, "reduction": "sum", "dtype": "bfloat16", "size": "wide"}),
)
AGGREGATE_FULL: Rows = (
    (EAGER, {**GATHER, **EVEN, "dtype": "float16"}),
    (EAGER, {**GATHER, **EMPTY, "input": "offset"}),
    (TRACED, {**GATHER, **UNEVEN, "wrap": "layer"}),
    (EAGER, {**GATHER, **UNEVEN, "loss": "accumulate"}),
    (EAGER, {**GATHER, **EMPTY, "loss": "frozen"}),
    (EAGER, {**GATHER, **UNEVEN, "loss": "forward_only"}),
    (EAGER, {**GATHER, **EMPTY, **FACTOR, "sp": 4, "dtype": "float64"}),
    *((EAGER, {**REDUCE, **UNEVEN, "dtype": dtype}) for dtype in OTHER_TYPES),
    (EAGER, {**REDUCE, **EVEN, "dtype": "float64", "loss": "square"}),
    (EAGER, {**REDUCE, **EMPTY, "loss": "shared", "size": "huge"}),
    (EAGER, {**REDUCE, **EMPTY, "loss": "scaled", "sp": 4}),
    (ALL, {**REDUCE, **UNEVEN, "reduction": "sum", "wrap": "layer"}),
    (EAGER, {**WEIGHTED_REDUCE, **UNEVEN, "dtype": "bfloat16", **FACTOR}),
    (EAGER, {**WEIGHTED_REDUCE, **UNEVEN, "dtype": "float64", "sp": 2}),
    (TRACED, {**OWN, **UNEVEN}),
    (EAGER, {**OWN, **EMPTY, "sp": 2, "loss": "square", "dtype": "float64"}),
    (EAGER, {**OWN, **EVEN, "loss": "frozen", "dtype": "float16"}),
    (EAGER, {**OWN, **UNEVEN, "loss": "accumulate", "vocabulary": "large", "input": "expanded", "batch": 2}),
    (EAGER, {**OWN, **UNEVEN, "size": "huge", "sp": 4}),
    (EAGER, {**OWN, "tokens": "none"}),
)

INNER, SOME, LAST_EMPTY = {"labels": "inner"}, {"labels": "uneven"}, {"labels": "one_empty"}
LOADER: Rows = (
    (EAGER, {"batch": 2}),
    (EAGER, {**SOME, "length": "uneven", "dtype": "float64"}),
    (EAGER, {**LAST_EMPTY, "sp": 2}),
    (EAGER, {"length": "indivisible"}),
    (EAGER, {"gather": "strict"}),
)
LOADER_FULL: Rows = (
    *((EAGER, {"batch": 2, "dtype": dtype}) for dtype in OTHER_TYPES),
    (EAGER, {**INNER, "batch": 3, "dtype": "bfloat16"}),
    (EAGER, {**SOME, "length": "uneven", "sp": 4}),
    (EAGER, {"length": "indivisible", "sp": 2, "batch": 2}),
)
STEPS: Rows = (
    (EAGER, INNER),
    (EAGER, {}),
    (EAGER, SOME),
    (EAGER, {**LAST_EMPTY, "loss": "sum", "sp": 2}),
)
STEPS_FULL: Rows = (
    *((EAGER, {**SOME, "dtype": dtype}) for dtype in OTHER_TYPES),
    (EAGER, {**INNER, "batch": 2}),
    (EAGER, {**INNER, "length": "uneven", "dtype": "bfloat16", "sp": 2}),
    (EAGER, {**INNER, "sp": 4, "dtype": "float64"}),
    (EAGER, {**INNER, "pieces": 2}),
    (EAGER, {**INNER, "pieces": 3, "batch": 2}),
    (EAGER, {"length": "indivisible"}),
    (EAGER, {**INNER, "gather": "strict"}),
)

PROBES: dict[str, tuple[tuple[str, ...], Rows, Rows]] = {
    "vocab_cross_entropy": (("how", "vocabulary", "ignored", "dtype", "loss"), VOCAB, VOCAB_FULL),
    "aggregate": (("recipe", "reduction", "tokens", "dtype", "loss"), AGGREGATE, AGGREGATE_FULL),
    "loader": (("labels", "length", "dtype", "loss"), LOADER, LOADER_FULL),
    "fwd_loss_bwd": (("labels", "length", "dtype", "loss"), STEPS, STEPS_FULL),
}
"""Per probe: the parameters that its ids always show, its cases, and what the full suite adds."""
OUTSIDE = {
    "swapped": "labels with the batch first beside logits with the sequence first: outside the contract",
    "indivisible": "a sequence that the ranks do not divide: outside the contract",
}

GATHERS = {
    "nccl": "on gloo its gathers are replaced by such as compare no shapes, as NCCL's do not",
    "strict": "its gathers are gloo's own, which refuse a tensor of another shape that NCCL accepts",
}
"""How a library's gathers are run that was written for NCCL."""
ONE_LOSS = "one loss, held by every rank, whose gradient counts once"
EVERY_LOSS = "the loss of every rank counts, so that the gradient is that of one loss times the ranks"
HOW = {
    "gathered": "the whole sequence's, from every rank; each keeps its own part of the gradient, so that it is "
    f"{ONE_LOSS}",
    "summed": "the whole sequence's, from every rank; the loss of every rank counts",
    "local": "this rank's tokens alone",
}
RECIPES = {
    "all_gather": f"means and counts gathered by torch, and the means weighted; {EVERY_LOSS}",
    "all_reduce": f"sums and counts reduced apart; {EVERY_LOSS}",
    "weighted_all_reduce": f"means times counts reduced, over the counts; {EVERY_LOSS}",
    "own": f"the subject's own reduction; {ONE_LOSS}",
}
VOCAB_FUNCTION, NEW_FUNCTION = "vocab_sequence_parallel_cross_entropy", "vocab_parallel_cross_entropy"
STEP_CLASS, LOADER_CLASS = "UlyssesSPFwdLossBwdWithLogits", "UlyssesSPDataLoaderAdapter"
API = {
    "gathered": f"{VOCAB_FUNCTION} of deepspeed.sequence.cross_entropy, the documented way with Megatron-DeepSpeed",
    "summed": f"{NEW_FUNCTION} with gather_sequence_loss=True, of deepspeed.sequence from 0.19.8 on",
    "local": f"{NEW_FUNCTION} with reduction='none', of deepspeed.sequence from 0.19.8 on",
    "all_gather": "torch.distributed.nn.functional.all_gather over DeepSpeed's sequence-parallel group, as the "
    "tutorial on Arctic long sequence training has it",
    "all_reduce": "torch.distributed.nn.functional.all_reduce of the sums, deepspeed.comm.all_reduce of the counts",
    "weighted_all_reduce": "torch.distributed.nn.functional.all_reduce of the weighted means, deepspeed.comm."
    "all_reduce of the counts",
    "own": f"{NEW_FUNCTION} with sp_group and a reduction, of deepspeed.sequence from 0.19.8 on",
    "loader": f"{LOADER_CLASS}, the documented way to cut batches along the sequence",
    "fwd_loss_bwd": f"{STEP_CLASS}, a legacy class that 0.19.8 removed; {LOADER_CLASS} and a loss of one's own take "
    "its place",
}


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    return tuple(_rows())


def _rows() -> Iterator[CaseInfo]:
    for probe, (_, default, full) in PROBES.items():
        for suite, rows in (("default", default), ("full", full)):
            for modes, values in rows:
                yield _info(probe, suite, modes, made(probe, values))


def made(probe: str, values: Values) -> Loss:
    """The parameters of the case of ``probe`` that says ``values``."""
    params = KINDS[probe](**values)
    return replace(
        params, effective="float32" if params.dtype == "float64" and _converts(probe, params) else params.dtype
    )


def _converts(probe: str, params: Loss) -> bool:
    """Whether a release of the subject calculates in float32 whatever the type of the logits."""
    return probe == "vocab_cross_entropy" or (probe == "aggregate" and params.once)


def id_of(probe: str, values: Values) -> str:
    """The id of the case of ``probe`` with these parameters."""
    return case_id(FAMILY, probe, made(probe, values), PROBES[probe][0], ("effective",))


def _info(probe: str, suite: str, modes: tuple[str, ...], params: Loss) -> CaseInfo:
    key, what, axes = _told(probe, params)
    outside = OUTSIDE.get(getattr(params, "shape", "")) or OUTSIDE.get(getattr(params, "length", ""), "")
    return case_of(
        case_id(FAMILY, probe, params, PROBES[probe][0], ("effective",)),
        VERSION,
        params,
        modes,
        outside=outside,
        exact=False,
        dims=axes,
        suite=suite,
        accepts="oracle or zero" if getattr(params, "tokens", "") == "none" else "oracle",
        api=f"{API[key]}{_gathers(params)}.",
        summary=f"{what}{'; ' + outside if outside else ''}.",
    )


def _gathers(params: Loss) -> str:
    if isinstance(params, Aggregate) or (isinstance(params, Tokens) and params.how == "local"):
        return ""
    return f"; {GATHERS[params.gather]}"


def _told(probe: str, params: Loss) -> tuple[str, str, dict[str, tuple[str, ...]]]:
    """The key of the API, what the case is about, and the names of the tensors' dimensions."""
    if isinstance(params, Tokens):
        names = _axes({("x", "c"): "token batch class", ("t", "y", "y2", "w", "w2"): "token batch"})
        return params.how, f"Cross entropy per token, {HOW[params.how]}", names
    if isinstance(params, Aggregate):
        names = _axes({("x", "c"): "batch token class", ("t",): "batch token"})
        what = f"{params.reduction.capitalize()} of the cross entropy over the whole sequence: {RECIPES[params.recipe]}"
        return params.recipe, what, names
    names = _axes({("x",): "token class", ("i", "t"): "batch token"})
    if not params.one_number:
        what = "Whole sequences cut into the ranks' shards: the loss over the shards is that over the whole sequences"
        return probe, what, names | _axes({("y", "w"): "sequence"})
    what = "Whole sequences cut into the ranks' shards, and forward, loss and backward on them: the token mean per "
    return probe, f"{what}sequence, accumulated over the sequences; {EVERY_LOSS}", names


def _axes(names: dict[tuple[str, ...], str]) -> dict[str, tuple[str, ...]]:
    return {tensor: tuple(axes.split()) for tensors, axes in names.items() for tensor in tensors}
