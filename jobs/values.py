"""Numbers that are the same bits in every Python and torch, and exact in every tested type.

The inputs of the cases come from here, for the ranks and for the oracle alike: values ±k/16 with k in 1…127 need seven
bits, so that even bfloat16 holds them exactly, and the sum of two of them as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

_seed = 0


def take_seed(seed: int) -> None:
    """Have everything that is drawn from now on, here and in processes forked from here, depend on ``seed`` as well."""
    global _seed
    _seed = seed


def dtype_of(name: str) -> torch.dtype:
    """torch's type of that name (``float32`` …)."""
    return getattr(torch, name)


def dyadic(key: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of values ±k/16, none of them zero, that depends on ``key``, ``shape`` and the attempt's seed alone."""
    count = math.prod(shape)
    drawn = (
        random.Random(f"{key}|{_seed}" if _seed else key).getrandbits(8 * count).to_bytes(count, "little")
        if count
        else b""
    )
    # The eighth bit is the sign; a magnitude of 0 would hide a lost element, and becomes the largest.
    signed = [(byte & 127 or 127) * (1 if byte < 128 else -1) for byte in drawn]
    return (torch.tensor(signed, dtype=torch.float64).reshape(tuple(shape)) / 16).to(dtype)
