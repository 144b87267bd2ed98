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
# The eighth bit is the sign; a magnitude of 0 would hide a lost element, and becomes the largest.
_SIGNED = bytes((byte & 127 or 127) if byte < 128 else 256 - (byte & 127 or 127) for byte in range(256))
"""From a drawn byte to a number of eight bits, in two's complement."""


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
    if not count:
        return torch.empty(tuple(shape), dtype=dtype)
    bits = random.Random(f"{key}|{_seed}" if _seed else key).getrandbits(8 * count)
    signed = bytearray(bits.to_bytes(count, "little").translate(_SIGNED))
    return torch.frombuffer(signed, dtype=torch.int8).double().reshape(tuple(shape)).div_(16).to(dtype)
