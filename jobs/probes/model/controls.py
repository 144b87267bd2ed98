"""The controls of family ``model`` as data: an attention and a training step of ours, right, and wrong in one way each.

The implementations are in ``mutants``; nothing here imports torch. Few stand beside every run; all of them in each of
the four types are a self-test's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jobs.contract import ControlInfo
from jobs.probes.model.cases import FAMILY, PROBE, catalogue, id_of
from jobs.probes.model.shapes import Decoder


@dataclass(frozen=True)
class Wrong:
    """One mutant: the verdicts that are right for it, what it does, and whether it stands beside every run."""

    expected: tuple[str, ...]
    summary: str
    everywhere: bool = False


AGREE = ("agree",)
OF_ATTENTION: dict[str, Wrong] = {
    "detached": Wrong(("no_gradient",), "what attention returns is detached from what it was given"),
    "zeroed": Wrong(("zero_gradient",), "no gradient comes back through attention", everywhere=True),
    "q_zeroed": Wrong(("partial_zero",), "none comes back to the queries; their gate has its own", everywhere=True),
    "k_zeroed": Wrong(("zero_gradient",), "none comes back to the keys"),
    "v_zeroed": Wrong(("zero_gradient",), "none comes back to the values"),
    "head_zeroed": Wrong(("partial_zero",), "none comes back to one head of the queries on every rank"),
    "part_dropped": Wrong(("partial_zero",), "what the last rank sends back to the values never arrives"),
    "rank_dropped": Wrong(("mismatch",), "what comes back to the last rank is zero", everywhere=True),
    "swapped": Wrong(("mismatch",), "tokens and heads are swapped in what comes back to the values", everywhere=True),
    "times_ranks": Wrong(("mismatch",), "what comes back through attention is multiplied by the ranks"),
    "over_ranks": Wrong(("mismatch",), "what comes back through attention is divided by the ranks"),
    "stale": Wrong(("mismatch",), "what comes back to the values is what the buffer held before"),
    "not_a_number": Wrong(("mismatch",), "one element of what comes back to the keys is NaN"),
    "forward_permuted": Wrong(("forward_mismatch",), "the heads of the result are in another order"),
}
OF_TRAINING: dict[str, Wrong] = {
    "averaged": Wrong(("scaled",), "gradients are averaged over the group instead of summed", everywhere=True),
    "unsummed": Wrong(("mismatch",), "the last rank adds nothing to the sum"),
    "not_stepped": Wrong(
        ("zero_gradient",), "one parameter is not moved though its gradient is right", everywhere=True
    ),
    "moments_lost": Wrong(("zero_gradient",), "one parameter's moments are zero though it is moved"),
    "decayed": Wrong(("mismatch",), "parameters decay besides"),
}
MUTANTS = OF_ATTENTION | OF_TRAINING

Values = dict[str, Any]
STEPPED: dict[str, Values] = {
    "float32": {"step": "adam", "traced": "attention"},
    "float64": {"step": "adam", "dtype": "float64"},
    "bfloat16": {"step": "adam", "dtype": "bfloat16", "frozen": "embed"},
    "float16": {"step": "adam", "dtype": "float16", "kv": "same", "batch": 2},
}
"""Per type, the case that most mutants stand on."""
UNSTEPPED: dict[str, Values] = {
    "float32": {"layout": "sbhd", "kv": "same", "mask": "full", "loss": "accumulate", "batch": 2},
    "float64": {"dtype": "float64", "loss": "scaled", "frozen": "embed"},
    "bfloat16": {"dtype": "bfloat16", "loss": "weighted", "rotary": "yes", "bias": "qkv", "batch": 3},
    "float16": {"dtype": "float16", "layout": "sbhd", "loss": "shared", "gate": "no"},
}
"""The same for one whose factor a step would hide: a step is no multiple of the gradient."""
EAGER = ("eager",)


def _rows() -> Iterator[tuple[str, str, Values, tuple[str, ...], str]]:
    """Implementation, its mark in the id, the parameters of the case that it stands on, modes, suite."""
    yield "reference", "", STEPPED["float32"], EAGER, "default"
    yield "traced_reference", "", STEPPED["float32"], ("aot_eager",), "default"
    yield "traced_reference", "inductor", {}, ("inductor",), "full"
    for dtype in STEPPED:
        if dtype != "float32":
            yield "reference", dtype, STEPPED[dtype], EAGER, "full"
        yield "reference", f"{dtype},unstepped", UNSTEPPED[dtype], EAGER, "full"
        for name, wrong in MUTANTS.items():
            values = (UNSTEPPED if name == "averaged" else STEPPED)[dtype]
            suite = "default" if wrong.everywhere and dtype == "float32" else "full"
            yield name, "" if dtype == "float32" else dtype, values, EAGER, suite


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    made = []
    for name, mark, values, modes, suite in _rows():
        case = id_of(Decoder(**values))
        if case not in known:
            raise ValueError(f"control {name} stands on a case that does not exist: {case}")
        wrong = MUTANTS.get(name)
        made.append(
            ControlInfo(
                id=f"{FAMILY}/{PROBE}.{name}" + (f"[{mark}]" if mark else ""),
                family=FAMILY,
                case=case,
                modes=modes,
                expected=wrong.expected if wrong else AGREE,
                summary=wrong.summary if wrong else "an attention and a step of ours that are right",
                suite=suite,
            )
        )
    return tuple(made)


def implementation_of(control: ControlInfo) -> str:
    """The name of the control's implementation in ``mutants``."""
    return control.id.partition(".")[2].partition("[")[0]
