"""The controls of family ``attention`` as data: implementations of ours whose verdict is known beforehand.

References must agree, mutants must be caught, each on the inputs and the oracle of one case. The implementations are in
``mutants``; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from jobs.contract import ControlInfo
from jobs.probes.attention.cases import catalogue, id_of
from jobs.probes.attention.shapes import KINDS
from jobs.probes.case import EAGER, FLOATS, Values
from jobs.probes.control import RIGHT, TRACED, Wrong, control, mark_of, rounded

MUTANTS: dict[str, Wrong] = {
    "zeroed": Wrong(("zero_gradient",), "keys and values receive a gradient of zero"),
    "block_zeroed": Wrong(("partial_zero",), "the queries' gradient of one token is zero on every rank"),
    "times_ranks": Wrong(("scaled",), "the values' gradient is multiplied by the number of ranks"),
    "over_ranks": Wrong(("scaled",), "the queries' gradient is divided by the number of ranks"),
    "swapped": Wrong(("permuted",), "sequence and heads of the queries' gradient are swapped"),
    "part_dropped": Wrong(("partial_zero",), "what the last rank sends back of the keys' gradient never arrives"),
    "rank_dropped": Wrong(("zero_gradient", "partial_zero"), "the values' gradient is zero on the last rank"),
    "not_sent_back": Wrong(("mismatch",), "the output's gradient is kept instead of exchanged"),
    "stale": Wrong(("mismatch",), "the values' gradient is what the receive buffer held before"),
    "not_a_number": Wrong(("mismatch",), "one element of the keys' gradient is NaN"),
    "detached": Wrong(("no_gradient",), "the keys are detached"),
    "wrong_shape": Wrong(("wrong_shape",), "the output has its first two dimensions merged"),
    "forward_permuted": Wrong(("forward_mismatch",), "the output's heads are in another order, the gradient right"),
    "input_mutated": Wrong(("mutated",), "the values are changed in place"),
    "cotangent_mutated": Wrong(("mutated",), "the incoming gradient is changed in place"),
    "unmasked": Wrong(("forward_mismatch",), "tokens see those after them"),
    "own_tokens": Wrong(("forward_mismatch",), "tokens see those of their own rank only"),
    "groups_shifted": Wrong(("forward_mismatch",), "queries share the next key head instead of their own"),
}
OF_REPLICAS: dict[str, Wrong] = {
    "replica_dropped": Wrong(("mismatch",), "of the gradients of a repeated key head only one is counted"),
}
BY_DEFAULT = ("zeroed", "block_zeroed", "times_ranks", "swapped", "part_dropped", "stale", "detached")
"""What stands beside every run, in float32."""
SHARED: Values = {"layout": "bshd", "heads": "squared", "kv": "ranks", "causal": "yes"}
REPLICAS: Values = {"heads": "quadruple", "kv": "few", "causal": "yes"}
LAYER: Values = {**SHARED, "wrap": "layer"}
UNEVEN: Values = {"layout": "bshd", "heads": "uneven", "causal": "yes"}
ROTARY: Values = {**SHARED, "rotary": "full"}
HF: Values = {"heads": "double", "kv": "few", "positions": "packed", "causal": "yes"}
Row = tuple[str, str, Values, tuple[str, ...], str]


def _rows() -> Iterator[Row]:
    """Probe, implementation, the parameters of the case that it stands on, modes, suite."""
    yield "distributed", "traced_reference", LAYER, TRACED, "default"
    yield "ulysses_hf", "reference", HF, EAGER, "default"
    for values in (UNEVEN, ROTARY, {**SHARED, "sp": 2}):
        yield "distributed", "reference", values, EAGER, "full"
    for dtype in FLOATS:
        for name in ("reference", *MUTANTS):
            usual = dtype == "float32" and name in ("reference", *BY_DEFAULT)
            # Where the result has another shape there is nothing to hand a gradient of the right one to.
            values = {"loss": "square"} if name == "wrong_shape" else {}
            yield "distributed", name, {**SHARED, "dtype": dtype, **values}, EAGER, "default" if usual else "full"
        for name in ("reference", *OF_REPLICAS):
            yield "ulysses_hf", name, {**REPLICAS, "dtype": dtype}, EAGER, "full"


@lru_cache
def controls() -> tuple[ControlInfo, ...]:
    """Every control of the family."""
    known = {case.id for case in catalogue()}
    mutants = MUTANTS | OF_REPLICAS
    made = []
    for probe, name, values, modes, suite in _rows():
        wrong = mutants.get(name, RIGHT)
        # Values of another order are no longer told from other values.
        more = ("mismatch",) if "permuted" in wrong.expected else ()
        wrong = rounded(wrong, values.get("dtype", ""), more)
        mark = mark_of(values, [key for key in values if key not in ("layout", "causal")])
        case = id_of(probe, KINDS[probe](**values))
        made.append(control(probe, name, mark, case, known, modes, wrong, suite))
    return tuple(made)
