"""Sentences about tensors and ranks, for the details that ``service.judge`` gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from service.evidence import ZERO_BLOCK, TensorEvidence
from service.naming import kind_of, stepped

FACTOR = 1e-2
"""A residual below which a factor tells all that there is to tell, in the shortest type too."""
OUTSIDE = "outside the contract: "
"""How every detail begins that tells of a fault where a refusal was due."""


def error_of(tensor: TensorEvidence) -> float | None:
    """The number that stands for a tensor's error; None where elements are not finite, which no number tells."""
    if not tensor.nonfinite_same:
        return None
    return tensor.rel_l2 if tensor.rel_l2 is not None else tensor.max_abs


def on_ranks(ranks: Iterable[int], count: int) -> str:
    """``on every rank``, ``on rank 1``, ``on ranks 0 and 2``."""
    numbers = sorted(set(ranks))
    if len(numbers) == count and count > 1:
        return "on every rank"
    if len(numbers) == 1:
        return f"on rank {numbers[0]}"
    return f"on ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def where(tensors: Iterable[TensorEvidence], count: int, key: str) -> str:
    """On which of ``count`` ranks those of ``tensors`` are that are ``key``."""
    return on_ranks((tensor.rank for tensor in tensors if tensor.key == key), count)


_ROLE_WORDS: dict[str, Callable[[str], str]] = {
    "grad": "gradient of {}".format,
    "output": "output {}".format,
    "input": "input {}".format,
    "cotangent": "incoming gradient {}".format,
}


_MADE_WORDS = {
    "step": "optimiser's step of {}",
    "moment": "optimiser's first moment of {}",
    "root": "root of the optimiser's second moment of {}",
}
"""What is reported beside gradients: what an optimiser made of them."""


def named(tensor: TensorEvidence) -> str:
    """``gradient of x``, ``optimiser's step of head``."""
    if tensor.role == "grad" and (made := _MADE_WORDS.get(kind_of(tensor.name))):
        return made.format(stepped(tensor.name))
    return _ROLE_WORDS[tensor.role](tensor.name)


def per_rank(factors: Iterable[tuple[int, float]]) -> str:
    """``2 times what it should be on rank 0 and 0.5 times on rank 1``; ranks with one factor are told together."""
    ranks: dict[str, list[int]] = {}
    for rank, factor in factors:
        ranks.setdefault(f"{factor:.4g}", []).append(rank)
    count = sum(map(len, ranks.values())) + len(ranks)  # so that none of them is called every rank
    first, *others = [(f"{factor} times", on_ranks(those, count)) for factor, those in ranks.items()]
    said = [f"{first[0]} what it should be {first[1]}", *(" ".join(one) for one in others)]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def how(tensor: TensorEvidence) -> str:
    """In what way a tensor differs."""
    if tensor.missing:
        return "is absent" if tensor.reported else "was never reported"
    if tensor.expected_missing:
        return "is there and must not be"
    if not tensor.nonfinite_same:
        return (
            f"has {tensor.nonfinite_got} non-finite elements of {tensor.numel}, expected {tensor.nonfinite_expected},"
        )
    if tensor.rel_l2 is None:
        return f"should be zero and is up to {tensor.max_abs or 0.0:.3g}"
    first = f", first at {listed(tensor.first_diff)}" if tensor.first_diff else ""
    factor = (
        f", best factor {tensor.alpha:.4g} with residual {tensor.residual:.2g}" if tensor.residual is not None else ""
    )
    return f"is wrong by {tensor.rel_l2:.3g} of its norm (at most {tensor.max_abs or 0.0:.3g}{first}{factor})"


def since(tensor: TensorEvidence) -> str:
    """What a tensor is now, beside what it was when it was handed over."""
    if tensor.nonfinite_same and not tensor.max_abs:
        return "only signs of zeros differ"
    if tensor.rel_l2 is None or not tensor.nonfinite_same:
        return f"on rank {tensor.rank} it {how(tensor).rstrip(',')}"
    if tensor.alpha is not None and tensor.residual is not None and tensor.residual <= FACTOR:
        return f"on rank {tensor.rank} it is {tensor.alpha:.4g} times what it was"
    return f"on rank {tensor.rank} it is off by {tensor.rel_l2:.3g} of its norm, at most by {tensor.max_abs or 0.0:.3g}"


def zero_blocks(tensor: TensorEvidence) -> str:
    """Along which dimension whole blocks are zero, where that is one dimension's matter."""
    blocks = tensor.blocks
    if blocks is None or not blocks.names or ZERO_BLOCK not in blocks.cells:
        return ""
    for axis, name in enumerate(blocks.names):
        inner = math.prod(blocks.counts[axis + 1 :])
        zero: dict[int, set[bool]] = {}
        for index, cell in enumerate(blocks.cells):
            zero.setdefault(index // inner % blocks.counts[axis], set()).add(cell == ZERO_BLOCK)
        dead = [block for block, cells in zero.items() if cells == {True}]
        if dead and len(dead) < blocks.counts[axis] and all(len(cells) == 1 for cells in zero.values()):
            numbers = ", ".join(str(block + 1) for block in dead)
            return f" (zero: {name}, block {numbers} of {blocks.counts[axis]})"
    return ""


def badness(tensor: TensorEvidence) -> tuple[bool, bool, float]:
    """Worse is larger: absent, then of another shape or not finite, then by error."""
    return tensor.missing, not (tensor.same_shape and tensor.nonfinite_same), error_of(tensor) or 0.0


def listed(numbers: Sequence[int] | None) -> str:
    """A shape or an index as people read it."""
    return str(list(numbers or ()))
