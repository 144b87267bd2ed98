"""The numbers that go with what is wrong with gradients: how many elements, which factor, how far off.

On the straight line a part of ``service.diagnosis``; pure. They are over all ranks, and never over several kinds of
tensors: whoever asks hands in gradients, steps or moments, not all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.evidence import TensorEvidence
from service.room import Room
from service.spans import listed
from service.wording import per_rank, zero_blocks

BY_RANK = "scaled by rank"
"""Of a gradient of which each rank's part is right but for a factor of its own."""
SHOWN_BLOCKS = 3
"""Of so many gradients it is said where they are zero."""
SHOWN_FACTORS = 3
"""So many factors are told; of more only the smallest and the largest."""


def numbers(word: str, room: Room, names: Sequence[str]) -> str:
    """The numbers that go with a state, over all ranks and all of these gradients."""
    mine = [tensor for tensor in room.evidence.of("grad") if tensor.name in names]
    if word == "dead":
        _, due, ranks = _counted(mine)
        if any(tensor.missing for tensor in mine):
            return f".grad is None where {due} elements are due{ranks}"
        return f"0 of {due} elements are non-zero{ranks}"
    if word == "partly dead":
        got, due, ranks = _counted(mine)
        where = list(dict.fromkeys(filter(None, map(zero_blocks, mine))))
        more = " …" if len(where) > SHOWN_BLOCKS else ""
        return f"{got} of {due} elements are non-zero{ranks}" + "".join(where[:SHOWN_BLOCKS]) + more
    if word == "scaled":
        return f"{_factors(room, mine)} times what it should be"
    worst = max(mine, key=lambda tensor: tensor.rel_l2 or 0.0)
    if word == BY_RANK:
        parts = [tensor for tensor in mine if tensor.name == worst.name and tensor.alpha is not None]
        return per_rank((tensor.rank, (tensor.alpha or 0.0) / room.case.scale) for tensor in parts)
    return _wrong_by(mine, worst)


def _factors(room: Room, tensors: Sequence[TensorEvidence]) -> str:
    """The factors of tensors that are scaled; of many from which to which."""
    found = sorted({tensor.alpha / room.case.scale for tensor in tensors if tensor.alpha is not None})
    told = dict.fromkeys(f"{factor:.4g}" for factor in found)
    return listed(list(told)) if len(told) <= SHOWN_FACTORS else f"{found[0]:.3g} to {found[-1]:.3g}"


def _wrong_by(tensors: Sequence[TensorEvidence], worst: TensorEvidence) -> str:
    """By how much tensors are wrong in no simpler way."""
    if odd := [tensor for tensor in tensors if not tensor.nonfinite_same]:
        got, due = (sum(getattr(tensor, key) for tensor in odd) for key in ("nonfinite_got", "nonfinite_expected"))
        return f"{got} element{'s are' if got != 1 else ' is'} NaN or infinite, and {due} should be"
    if worst.rel_l2 is None:
        return f"up to {worst.max_abs or 0.0:.3g} where zero is due"
    return f"off by {worst.rel_l2:.3g} of its norm" + (
        f", cosine {worst.cosine:.3g}" if worst.cosine is not None else ""
    )


def _counted(tensors: Sequence[TensorEvidence]) -> tuple[int, int, str]:
    """How many elements are non-zero and how many should be, of one rank where all have as many, and on which."""
    ranks: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        got, due = ranks.get(tensor.rank, (0, 0))
        ranks[tensor.rank] = (got + tensor.nonzero_got, due + tensor.nonzero_expected)
    if len(set(ranks.values())) == 1:
        return *next(iter(ranks.values())), " on each rank"
    return sum(got for got, _ in ranks.values()), sum(due for _, due in ranks.values()), " over all ranks"
