"""The cases of family ``tiled`` as data, made from the tables in ``rows``. Nothing here imports torch."""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.case import Rows, case_id, case_of
from jobs.probes.tiled.base import Chunked, Tiled
from jobs.probes.tiled.rows import (
    COMPUTE,
    COMPUTE_LOSS,
    FPDT_FFN,
    FPDT_LOGITS_LOSS,
    FUSED_LOSS,
    LOSS,
    MLP,
    MORE_COMPUTE,
    MORE_COMPUTE_LOSS,
    MORE_FPDT_FFN,
    MORE_FPDT_LOGITS_LOSS,
    MORE_FUSED_LOSS,
    MORE_LOSS,
    MORE_MLP,
)
from jobs.probes.tiled.shapes import (
    PARAMS,
    ChunkedLogitsLoss,
    Compute,
    ComputeLoss,
    FusedLoss,
    HeadLoss,
    LogitsLoss,
)
from jobs.probes.tiled.words import API, SUMMARY

FAMILY = "tiled"
VERSION = 1

PROBES: dict[str, tuple[tuple[str, ...], Rows, Rows]] = {
    "mlp": (("dtype", "loss", "batch", "tokens", "shards"), MLP, MORE_MLP),
    "compute": (("dtype", "loss", "batch", "tokens", "shards"), COMPUTE, MORE_COMPUTE),
    "compute_loss": (("dtype", "loss", "reduction", "labels", "tokens", "shards"), COMPUTE_LOSS, MORE_COMPUTE_LOSS),
    "fused_logits_loss": (("dtype", "loss", "reduction", "labels", "tokens", "shards"), FUSED_LOSS, MORE_FUSED_LOSS),
    "loss": (("dtype", "loss", "labels", "tokens", "shards"), LOSS, MORE_LOSS),
    "fpdt_ffn": (("dtype", "loss", "batch", "tokens", "shards"), FPDT_FFN, MORE_FPDT_FFN),
    "fpdt_logits_loss": (("dtype", "loss", "batch", "tokens", "shards"), FPDT_LOGITS_LOSS, MORE_FPDT_LOGITS_LOSS),
}
"""Per probe: the parameters that its ids always show, the cases of the default suite, and those of the full one."""


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    return tuple(
        _info(probe, modes, PARAMS[probe](**values), suite)
        for probe, (_, default, full) in PROBES.items()
        for suite, rows in (("default", default), ("full", full))
        for modes, values in rows
    )


def id_of(probe: str, params: Tiled) -> str:
    """The id of the case with these parameters."""
    return case_id(FAMILY, probe, params, PROBES[probe][0], ("effective",))


def _info(probe: str, modes: tuple[str, ...], params: Tiled, suite: str) -> CaseInfo:
    outside = _outside(params)
    aside = "; ".join(filter(None, (outside or _aside(params), *_trigger(params))))
    return case_of(
        id_of(probe, params),
        VERSION,
        params,
        modes,
        outside=outside,
        exact=False,
        dims=_dims(params),
        suite=suite,
        accepts="oracle or zero" if _of_nothing(params) else "oracle",
        api=API[probe],
        summary=f"{SUMMARY[probe]}{'; ' + aside if aside else ''}.",
    )


def _of_nothing(params: Tiled) -> bool:
    """Whether the case is a mean over no token at all."""
    return getattr(params, "labels", "") == "none" and getattr(params, "reduction", "mean") != "sum"


def _outside(params: Tiled) -> str:
    """Why the case is outside the contract, or nothing."""
    if isinstance(params, Chunked) and params.tokens % params.chunk:
        return "tokens that the chunks do not divide: outside the contract"
    return ""


def _aside(params: Tiled) -> str:
    """What has to be known about the case's truth."""
    if isinstance(params, ChunkedLogitsLoss):
        return "a rank's gradient is that of its own part of the gathered losses" if params.part == "own" else ""
    if _of_nothing(params):
        guarded = ", which its documentation has the caller leave out" if isinstance(params, LogitsLoss) else ""
        return f"no token is live{guarded}: a mean that is not a number, or zero, with a gradient of zero"
    if isinstance(params, HeadLoss) and params.reduction == "mean":
        length = params.tokens if isinstance(params, ComputeLoss) else params.tokens * params.batch
        if params.labels != "all" or length % -(-length // params.shards):
            return "the mean of the shards' means, as documented, which is not that of the tokens here"
    if isinstance(params, Compute) and params.widening == "yes":
        return "the function ends in twice as many features"
    return "its labels are masked beside them" if isinstance(params, FusedLoss) and params.mask == "given" else ""


def _trigger(params: Tiled) -> list[str]:
    """What is unlike the usual call."""
    said = []
    if params.frozen != "nothing":
        still = "the parameters need" if params.frozen == "parameters" else f"{params.frozen} needs"
        said.append(f"{still} no gradient")
    if getattr(params, "listed", "all") == "none":
        said.append("compute_params is None, as its documentation allows")
    if params.loss == "forward_only":
        said.append("a forward without a backward")
    return said


def _dims(params: Tiled) -> dict[str, tuple[str, ...]]:
    order: tuple[str, ...] = ("token", "batch") if isinstance(params, Chunked) else ("batch", "token")
    order = order if len(params.activation()) == 3 else ("token",)
    named = {"x": (*order, "feature"), "labels": ("batch", "token"), "ids": ("batch", "token")}
    weights = {"gate": "inner feature", "up": "inner feature", "down": "feature inner", "head": "vocabulary feature"}
    weights |= {"first": "inner feature", "second": "feature inner"}
    named |= {name: tuple(names.split()) for name, names in weights.items()}
    return named | dict.fromkeys(("y", "y2", "w", "w2"), (*order, "feature")[: len(params.result())])
