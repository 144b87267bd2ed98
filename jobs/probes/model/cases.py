"""The cases of family ``model`` as data. Nothing here imports torch.

The axes are covered in pairs. Each row of a table below is one case, and says only what differs from the defaults of
:class:`Decoder`; the set that runs by default is the first table.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.contract import CaseInfo
from jobs.probes.case import ALL, EAGER, TRACED, Rows, case_id, case_of
from jobs.probes.model.shapes import Decoder

FAMILY, PROBE = "model", "decoder"
VERSION = 1

ULYSSES = {"via": "ulysses"}
DEFAULT: Rows = (
    (TRACED, {**ULYSSES, "step": "adam"}),
    (EAGER, {"layout": "sbhd", "kv": "same", "mask": "full", "loss": "accumulate", "batch": 2}),
    (EAGER, {"gate": "no", "bias": "qkv", "tied": "yes", "dtype": "float64", "step": "adam"}),
    (EAGER, {"rotary": "yes", "bias": "qkv", "loss": "shared", "sp": 2, "kv": "same"}),
    (EAGER, {"dtype": "bfloat16", "frozen": "embed", "step": "adam"}),
)
FULL: Rows = (
    (ALL, {}),
    (ALL, ULYSSES),
    (TRACED, {"step": "adam"}),
    (TRACED, {"step": "adam", "traced": "attention"}),
    (EAGER, {"dtype": "float64", "step": "adam"}),
    (ALL, {"traced": "attention"}),
    (TRACED, {**ULYSSES, "traced": "attention", "loss": "weighted"}),
    (TRACED, {"traced": "model", "rotary": "yes", "loss": "weighted"}),
    (TRACED, {**ULYSSES, "traced": "model", "gate": "no"}),
    (TRACED, {"layout": "sbhd", "mask": "full", "kv": "same", "batch": 3, "gate": "no", "step": "adam"}),
    (TRACED, {"sp": 2, "loss": "accumulate", "tied": "yes", "step": "adam"}),
    (TRACED, {"dtype": "float64", "loss": "shared", "bias": "qkv", "rotary": "yes"}),
    (TRACED, {"loss": "forward_only"}),
    (EAGER, {"sp": 4, "layout": "sbhd", "loss": "weighted", "step": "adam", "batch": 2}),
    (EAGER, {"loss": "scaled", "dtype": "float64", "frozen": "embed"}),
    (EAGER, {"loss": "scaled", "layout": "sbhd", "rotary": "yes", "tied": "yes"}),
    (EAGER, {"loss": "forward_only", "dtype": "bfloat16", "mask": "full", "kv": "same"}),
    (EAGER, {"dtype": "float16", "step": "adam", "kv": "same", "batch": 2}),
    (EAGER, {"dtype": "float16", "layout": "sbhd", "loss": "shared", "gate": "no"}),
    (EAGER, {"dtype": "bfloat16", "loss": "weighted", "rotary": "yes", "bias": "qkv", "batch": 3}),
    (EAGER, {"dtype": "float64", "loss": "accumulate", "layout": "sbhd", "frozen": "embed", "step": "adam"}),
    # A gradient that is zero in exact arithmetic: below the noise, and nobody's fault.
    (EAGER, {"bias": "qkv", "frozen": "but_k_bias", "loss": "weighted"}),
    (EAGER, {**ULYSSES, "loss": "accumulate", "kv": "same", "gate": "no", "batch": 2, "dtype": "float64"}),
    (EAGER, {**ULYSSES, "sp": 2, "rotary": "yes", "mask": "full", "bias": "qkv", "loss": "weighted"}),
    (EAGER, {**ULYSSES, "dtype": "bfloat16", "tied": "yes", "batch": 3, "step": "adam"}),
)

SHOWN = ("via", "layout", "kv", "gate", "dtype", "loss")
API = {
    "distributed": "deepspeed.sequence.layer.DistributedAttention around an attention, the documented way",
    "ulysses": "UlyssesSPAttentionHF around an attention, which is registered with transformers as documented",
}


@lru_cache
def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of the family, in the order in which they run."""
    tables = (("default", DEFAULT), ("full", FULL))
    return tuple(_info(modes, suite, Decoder(**values)) for suite, rows in tables for modes, values in rows)


def id_of(params: Decoder) -> str:
    """The id of the case with these parameters."""
    return case_id(FAMILY, PROBE, params, SHOWN)


def _info(modes: tuple[str, ...], suite: str, params: Decoder) -> CaseInfo:
    stepped = "one step of Adam without weight decay" if params.step == "adam" else "every gradient"
    return case_of(
        id_of(params),
        VERSION,
        params,
        modes,
        exact=False,
        dims=params.dims(params.sp or 2),
        suite=suite,
        api=API[params.via],
        summary=f"A decoder of two layers, {stepped}: parameters' gradients summed over the sequence group.",
    )
