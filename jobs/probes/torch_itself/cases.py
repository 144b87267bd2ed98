"""The cases of family ``torch-itself`` as data. Nothing here imports torch.

Every way of calling every collective is there in eager and one traced mode at least; strides, sub-groups, types and
losses are covered in pairs. Each row of a table below is one case, and says only what differs from the defaults. Traced
cases run over real transports only. What a case hands to a bare all-to-all may be strided but not expanded: gloo in
torch 2.2 reads on behind such a tensor's memory, and what it finds there is not the same twice. Functions whose names
are private, such as _all_gather_base of torch.distributed.nn, are left out.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.case import ALL, EAGER, TRACED, Rows, Values, case_id, case_of
from jobs.probes.torch_itself.shapes import AGGREGATION, Aggregation, Collective

FAMILY = "torch-itself"
VERSION = 1

BUFFER, NN_INSIDE, INSIDE = "buffer_in_function", "nn_in_function", "functional_in_function"
NN, NN_LIST, LIST = "nn", "nn_list", "list_in_function"
FUNCTIONAL, AUTOGRAD, WAITED = "functional", "functional_autograd", "functional_autograd_waited"
WEIGHTED: Values = {"loss": "weighted"}
SUBGROUP: Values = {"sp": 2}
BY_PLACE: Values = {"root": "place"}
STRIDED: Values = {"input": "transposed"}
STRIDED_GRADIENT: Values = {**WEIGHTED, "cotangent": "transposed"}

DIM0: Rows = (
    *((ALL, {"api": api}) for api in (BUFFER, NN_INSIDE, NN, INSIDE, AUTOGRAD, WAITED, FUNCTIONAL)),
    (EAGER, {"api": BUFFER, **WEIGHTED, "dtype": "float64"}),
    (EAGER, {"api": BUFFER, **STRIDED}),
    (EAGER, {"api": BUFFER, **STRIDED_GRADIENT}),
    (TRACED, {"api": BUFFER, **WEIGHTED, **SUBGROUP}),
    (EAGER, {"api": NN_INSIDE, **STRIDED_GRADIENT}),
    (EAGER, {"api": NN, **WEIGHTED, "input": "offset", "dtype": "float64"}),
    (EAGER, {"api": NN, **STRIDED_GRADIENT}),
    (EAGER, {"api": INSIDE, **STRIDED_GRADIENT, "dtype": "float64"}),
    (EAGER, {"api": INSIDE, **WEIGHTED, "input": "offset", **SUBGROUP}),
    (EAGER, {"api": AUTOGRAD, **STRIDED_GRADIENT}),
    (TRACED, {"api": AUTOGRAD, **WEIGHTED, **SUBGROUP, "dtype": "float64"}),
    (EAGER, {"api": FUNCTIONAL, **WEIGHTED, "input": "offset"}),
    (TRACED, {"api": NN, **WEIGHTED, **SUBGROUP}),
)
ALL_TO_ALL: Rows = (
    *((EAGER, {"api": api, **WEIGHTED, "splits": "uneven"}) for api in (BUFFER, NN, FUNCTIONAL)),
    (ALL, {"api": AUTOGRAD, **WEIGHTED, "splits": "uneven"}),
    (TRACED, {"api": NN_LIST}),
    (EAGER, {"api": NN_LIST, **STRIDED_GRADIENT, "dtype": "float64"}),
    (EAGER, {"api": NN_LIST, **WEIGHTED, **SUBGROUP}),
    (TRACED, {"api": LIST, **WEIGHTED}),
    (EAGER, {"api": LIST, **WEIGHTED, "dtype": "float64"}),
    (EAGER, {"api": AUTOGRAD, **WEIGHTED, "splits": "uneven", **SUBGROUP}),
)
ALL_REDUCE: Rows = (
    *((TRACED, {"api": api}) for api in (NN, FUNCTIONAL)),
    (ALL, {"api": BUFFER}),
    (EAGER, {"api": BUFFER, **WEIGHTED, **SUBGROUP}),
    (EAGER, {"api": BUFFER, **WEIGHTED, "input": "transposed", "cotangent": "expanded"}),
    (EAGER, {"api": NN, **STRIDED_GRADIENT, "dtype": "float64"}),
    (TRACED, {"api": NN, **WEIGHTED, **SUBGROUP, "input": "expanded"}),
    (EAGER, {"api": FUNCTIONAL, **STRIDED_GRADIENT, "input": "offset"}),
    (TRACED, {"api": FUNCTIONAL, **WEIGHTED, **SUBGROUP, "dtype": "float64"}),
)
ALL_GATHER: Rows = (
    *((TRACED, {"api": api}) for api in (NN, FUNCTIONAL, AUTOGRAD)),
    (ALL, {"api": BUFFER}),
    (EAGER, {"api": NN, **SUBGROUP}),
    (EAGER, {"api": NN, **STRIDED_GRADIENT}),
    (EAGER, {"api": NN, **WEIGHTED, "input": "expanded", "dtype": "float64"}),
    (EAGER, {"api": FUNCTIONAL, **WEIGHTED, **SUBGROUP, "dtype": "float64"}),
    (EAGER, {"api": AUTOGRAD, **STRIDED_GRADIENT, "input": "offset"}),
    (TRACED, {"api": AUTOGRAD, **WEIGHTED, **SUBGROUP}),
    (TRACED, {"api": BUFFER, **STRIDED_GRADIENT, **SUBGROUP}),
)
REDUCE_SCATTER: Rows = (
    *((TRACED, {"api": api}) for api in (NN, FUNCTIONAL, AUTOGRAD)),
    (ALL, {"api": BUFFER}),
    (EAGER, {"api": NN, **STRIDED_GRADIENT, "dtype": "float64"}),
    (EAGER, {"api": NN, **WEIGHTED, **SUBGROUP, "input": "transposed"}),
    *((TRACED, {"api": api, **WEIGHTED, **SUBGROUP}) for api in (NN, FUNCTIONAL)),
    (TRACED, {"api": AUTOGRAD, **WEIGHTED, **SUBGROUP, "dtype": "float64"}),
    (EAGER, {"api": AUTOGRAD, **STRIDED_GRADIENT, "input": "transposed"}),
    (EAGER, {"api": BUFFER, **STRIDED_GRADIENT, "input": "offset"}),
)
BROADCAST: Rows = (
    *((TRACED, {"api": api}) for api in (NN, FUNCTIONAL)),
    (ALL, {"api": BUFFER}),
    (EAGER, {"api": NN, **WEIGHTED, **SUBGROUP}),
    (EAGER, {"api": NN, **STRIDED_GRADIENT, "dtype": "float64"}),
    (EAGER, {"api": FUNCTIONAL, **WEIGHTED, **SUBGROUP}),
    (TRACED, {"api": FUNCTIONAL, **WEIGHTED, **SUBGROUP, **BY_PLACE}),
    (TRACED, {"api": BUFFER, **WEIGHTED, **SUBGROUP, "input": "expanded"}),
)
LOSSES: Rows = tuple(
    (EAGER, {"recipe": recipe, "tokens": tokens, "dtype": dtype, **where})
    for recipe in ("all_gather", "all_reduce")
    for tokens, dtype, where in (
        ("even", "float64", {}),
        ("uneven", "float32", {}),
        ("one_empty", "float64", {}),
        ("one_empty", "float32", WEIGHTED),
        ("uneven", "float64", {**WEIGHTED, **SUBGROUP}),
        ("one_empty", "float32", SUBGROUP),
    )
)

PROBES: dict[str, tuple[str, Rows]] = {
    "dim0": ("all_to_all", DIM0),
    "all_to_all": ("all_to_all", ALL_TO_ALL),
    "all_reduce": ("all_reduce", ALL_REDUCE),
    "all_gather": ("all_gather", ALL_GATHER),
    "reduce_scatter": ("reduce_scatter", REDUCE_SCATTER),
    "broadcast": ("broadcast", BROADCAST),
}
"""Per probe of a collective: which one, and its cases."""
SHOWN, HIDDEN = ("api", "dtype", "loss"), ("collective",)
SHOWN_OF_LOSSES = ("recipe", "tokens", "dtype", "loss")

WAYS = {
    BUFFER: "the collective that fills a buffer, inside an autograd.Function",
    NN_INSIDE: "torch.distributed.nn.functional.all_to_all_single, inside an autograd.Function",
    NN: "torch.distributed.nn.functional, called directly",
    NN_LIST: "torch.distributed.nn.functional.all_to_all, which takes lists, called directly",
    LIST: "the all_to_all that fills lists, inside an autograd.Function",
    INSIDE: "the functional collective and its wait, inside an autograd.Function",
    AUTOGRAD: "the functional collective that torch calls differentiable, its result used directly",
    WAITED: "the functional collective that torch calls differentiable, waited for a second time",
    FUNCTIONAL: "the plain functional collective, called directly",
}
WHAT = {
    "dim0": "Exchange along dimension 0 of one block per rank",
    "all_to_all": "All-to-all along the first dimension",
    "all_reduce": "Sum over the ranks",
    "all_gather": "Parts of all ranks, joined along the first dimension",
    "reduce_scatter": "Sum over the ranks, of which each gets its part",
    "broadcast": "What the group's first rank holds, on every rank",
}
RECIPES = {
    "all_gather": "every rank's mean and count gathered, and the means weighted",
    "all_reduce": "sums and counts reduced apart",
}
SUM_OF_ALL = "the gradient is that of the sum of every rank's loss"
ROOTS = {
    "global": ", its root named by global rank",
    "place": ", its root named by place in the group",
}
"""Of a functional broadcast, where torch asks for one of the two: on any version only one can be right."""
SUM_OF_LOSSES = "the loss of every rank counts, so that the gradient is that of one loss times the ranks"
DISPATCHED = {("all_gather", NN), ("reduce_scatter", NN), ("all_to_all", NN_LIST), ("all_to_all", LIST)}
"""Collective and way of which torch has code for NCCL alone, or gloo has no such collective in some versions."""
OVER, OVER_ALL = ("gloo", "nccl"), ("gloo", "nccl", "nccl-dispatch")


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    collectives = (
        _collective(probe, modes, Collective(collective, **params))
        for probe, (collective, rows) in PROBES.items()
        for modes, params in rows
    )
    return (*collectives, *(_aggregation(modes, Aggregation(**params)) for modes, params in LOSSES))


def id_of(probe: str, values: Values) -> str:
    """The id of the case of ``probe`` with these parameters."""
    if probe == AGGREGATION:
        return case_id(FAMILY, probe, Aggregation(**values), SHOWN_OF_LOSSES)
    return case_id(FAMILY, probe, Collective(PROBES[probe][0], **values), SHOWN, HIDDEN)


def _collective(probe: str, modes: tuple[str, ...], params: Collective) -> CaseInfo:
    asked = params.sp and (params.collective, params.api) == ("broadcast", FUNCTIONAL)
    named = ROOTS[params.root] if asked else ""
    dims = ("block" if probe == "dim0" else "row", "channel", "height", "width")
    return case_of(
        case_id(FAMILY, probe, params, SHOWN, HIDDEN),
        VERSION,
        params,
        modes,
        dims=dict.fromkeys(("x", "w", "y"), dims),
        transports=OVER_ALL if modes == EAGER and (params.collective, params.api) in DISPATCHED else OVER,
        summary=f"{WHAT[probe]}: {WAYS[params.api]}{named}; {SUM_OF_ALL}.",
    )


def _aggregation(modes: tuple[str, ...], params: Aggregation) -> CaseInfo:
    return case_of(
        case_id(FAMILY, AGGREGATION, params, SHOWN_OF_LOSSES),
        VERSION,
        params,
        modes,
        exact=False,
        dims={"x": ("token", "class"), "y": (), "w": ()},
        transports=OVER_ALL if params.recipe == "all_gather" else OVER,
        summary=f"Token mean of a loss over all ranks: {RECIPES[params.recipe]}; {SUM_OF_LOSSES}.",
    )
