"""Numbers from two raw tensors: what a rank got beside what the oracle says.

On the straight line this is the arithmetic of ``workers.collect``. Everything is computed in float64, and in long
double where a tensor came in float64, so that a difference is never the measuring's own rounding. Nothing here says
whether a number is good.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.contract import DTYPES, CaseInfo
from service.evidence import (
    NONFINITE_BLOCK,
    OK_BLOCK,
    WRONG_BLOCK,
    ZERO_BLOCK,
    BlockMap,
    Difference,
    Noise,
    TensorEvidence,
)

Array = npt.NDArray[Any]

MAX_CUTS = 4
MAX_BLOCKS = 256
KEEP_DECODED = 4096
"""Elements of a tensor that is small …"""
KEEP_FACTS = 256
"""… and how many pairs of such are remembered: more than any case has for one rank."""
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
BLOCK_FLOOR = 8
"""A block whose root mean square is below this many eps of the tensor's own is rounding, whatever is in it."""

_WIRE = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2",
    "int64": "<i8", "int32": "<i4", "uint8": "u1", "bool": "u1",
}  # fmt: skip
_WIDE = {"float64": np.longdouble, "int64": np.longdouble}


@dataclass(frozen=True)
class Raw:
    """A tensor as it travelled: little-endian bytes, row-major."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @cached_property
    def digest(self) -> str:
        """sha256 of the exact bytes, in hex."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def values(self) -> Array:
        """The elements in the precision that is calculated in; kept for small tensors, which are read many times."""
        if self.numel > KEEP_DECODED:
            return self._decode()
        return self._kept

    @cached_property
    def _kept(self) -> Array:
        return self._decode()

    def _decode(self) -> Array:
        flat = np.frombuffer(self.data, _WIRE[self.dtype])
        if self.dtype == "bfloat16":
            flat = (flat.astype("<u4") << 16).view("<f4")
        with np.errstate(all="ignore"):
            wide: Array = flat.astype(_WIDE.get(self.dtype, np.float64)).reshape(self.shape)
        return wide


def measure(got: Raw, expected: Raw, case: CaseInfo, role: str, name: str, rank: int) -> TensorEvidence:
    """Everything that can be said about one tensor of one rank."""
    scale = case.scale if role == "grad" else 1.0
    # What is shared is the same on every rank, and measured once; what is large is not kept for that.
    facts_of = _kept_facts if max(got.numel, expected.numel) <= KEEP_DECODED else _facts
    facts = facts_of(got, expected, scale, _eps(got, expected, case), case.exact, case.dims.get(name, ()))
    return TensorEvidence(role=role, name=name, rank=rank, **facts)


def _facts(got: Raw, expected: Raw, scale: float, eps: float, exact: bool, dims: tuple[str, ...]) -> Mapping[str, Any]:
    with np.errstate(all="ignore"):
        g, e = got.values, expected.values * scale
        facts: dict[str, Any] = {
            "dtype": got.dtype,
            "expected_dtype": expected.dtype,
            "shape": got.shape,
            "expected_shape": expected.shape,
            "numel": got.numel,
            "digest": got.digest,
            "expected_digest": expected.digest,
            "identical": scale == 1.0 and got == expected,
            "nonfinite_got": int(np.count_nonzero(~np.isfinite(g))),
            "nonfinite_expected": int(np.count_nonzero(~np.isfinite(e))),
            "nonzero_got": int(np.count_nonzero(g)),
            "nonzero_expected": int(np.count_nonzero(e)),
            "got_norm": number(_norm(_finite(g))),
            "expected_norm": number(_norm(_finite(e))),
        }
        if got.shape != expected.shape:
            same_count = got.numel == expected.numel
            facts |= {"nonfinite_same": False, "sorted_rel": _sorted_rel(g, e) if same_count else None}
        elif bool(np.array_equal(g, e)):
            facts |= _equal(facts["expected_norm"], scale)
        else:
            facts |= _different(g, e, scale, eps, exact, dims)
    return facts


_kept_facts = lru_cache(KEEP_FACTS)(_facts)


def _equal(norm: float, scale: float) -> dict[str, Any]:
    """What is true of equal tensors, without working it out."""
    one = norm > 0
    return {
        "equal": True,
        "max_abs": 0.0,
        "rel_l2": 0.0 if one else None,
        "rest_rel": 0.0 if one else None,
        "cosine": 1.0 if one else None,
        "alpha": scale if one else None,
        "residual": 0.0 if one else None,
        "sorted_rel": 0.0 if one else None,
        "worst_block": 0.0 if one else None,
    }


class _Finite(NamedTuple):
    """Two tensors where both are finite and 0 elsewhere, how they differ there, and :func:`_power` of the second."""

    both: Array
    g: Array
    e: Array
    error: Array
    top: Any


def _different(g: Array, e: Array, scale: float, eps: float, exact: bool, dims: Sequence[str]) -> dict[str, Any]:
    both = np.isfinite(g) & np.isfinite(e)
    gf, ef = (g, e) if both.all() else (np.where(both, g, 0), np.where(both, e, 0))
    finite = _Finite(both, gf, ef, gf - ef, _power(ef))
    zeroed = (g == 0) & (e != 0)
    norm, wrong, largest = _norm(ef, finite.top), _norm(finite.error), _largest(finite.error)
    rest, rest_wrong = norm, wrong
    if zeroed.any():
        rest, rest_wrong = _norm(np.where(zeroed, 0, ef)), _norm(np.where(zeroed, 0, finite.error))
    cosine, alpha, residual = _fit(finite)
    room = 0.0 if exact else 32 * eps * _largest(ef)
    off = ~((g == e) | (both & (np.abs(finite.error) <= room)))
    blocks, worst = _blocks(g, e, finite, eps, exact, dims)
    return {
        "nonfinite_same": _same_nonfinite(g, e),
        "zeroed": int(np.count_nonzero(zeroed)),
        "max_abs": number(largest),
        "rel_l2": number(wrong / norm) if norm > 0 else None,
        "rest_rel": number(rest_wrong / rest) if rest > 0 else None,
        "cosine": cosine,
        "alpha": None if alpha is None else alpha * scale,
        "residual": residual,
        "sorted_rel": _sorted_rel(g, e),
        "first_diff": tuple(int(i) for i in np.argwhere(off)[0]) if off.any() else None,
        "worst_block": worst,
        "blocks": blocks,
    }


def _fit(pair: _Finite) -> tuple[float | None, float | None, float | None]:
    """Cosine, the best alpha in g ≈ alpha · e, and what is left of g after it."""
    g, e, e_top = pair.g, pair.e, pair.top
    if not e.any():
        return None, None, None
    if not g.any():
        return None, 0.0, None
    g_top = _power(g)
    gs, es = g / g_top, e / e_top
    gg, ee, ge = (gs * gs).sum(), (es * es).sum(), (gs * es).sum()
    fit = ge / ee
    cosine = min(1.0, max(-1.0, float(ge / np.sqrt(gg * ee))))
    return cosine, number(fit * (g_top / e_top)), number(_norm(gs - fit * es) / np.sqrt(gg))


def _sorted_rel(g: Array, e: Array) -> float | None:
    """The relative error after sorting both: 0 for a permutation, whatever the order."""
    norm = _norm(e)
    if not (norm > 0 and np.isfinite(norm) and np.isfinite(g).all()):
        return None
    return number(_norm(np.sort(g, axis=None) - np.sort(e, axis=None)) / norm)


def sorted_over_ranks(pairs: Iterable[tuple[Raw, Raw]], scale: float) -> float | None:
    """The same over all ranks together: 0 where the right values went to the wrong rank."""
    with np.errstate(all="ignore"):
        taken = [(got.values.ravel(), expected.values.ravel() * scale) for got, expected in pairs]
        g, e = (np.concatenate([pair[side] for pair in taken]) for side in (0, 1))
        return _sorted_rel(g, e) if g.size == e.size else None


def _same_nonfinite(g: Array, e: Array) -> bool:
    same = np.isnan(g) == np.isnan(e)
    infinite = np.isinf(g) | np.isinf(e)
    return bool(same.all() and (g == e)[infinite].all())


# -- where ------------------------------------------------------------------------------------------------------


def cuts(shape: Sequence[int]) -> tuple[int, ...]:
    """Into how many blocks each dimension is cut: at most 4, and fewer from the last on while there are too many."""
    counts = [min(MAX_CUTS, size) for size in shape]
    while math.prod(counts) > MAX_BLOCKS:
        widest = max(range(len(counts)), key=lambda axis: (counts[axis], axis))
        counts[widest] //= 2
    return tuple(counts)


def _blocks(
    g: Array, e: Array, finite: _Finite, eps: float, exact: bool, dims: Sequence[str]
) -> tuple[BlockMap, float | None]:
    """The block map of two tensors that differ, and the largest relative error of any block that counts."""
    counts = cuts(g.shape)
    ef, error = finite.e / finite.top, finite.error / finite.top
    nonfinite = ~finite.both & ~((g == e) | (np.isnan(g) & np.isnan(e)))
    sizes = _block_sizes(g.shape, counts)
    power, wrong = _block_sums(ef * ef, counts), _block_sums(error * error, counts)
    floor = 0.0 if exact else BLOCK_FLOOR * eps * math.sqrt(float((ef * ef).mean()))
    counted = np.sqrt(power / sizes) > floor
    zero = (_block_sums(g != 0, counts) == 0) & counted
    room = 0.0 if exact else math.sqrt(eps)
    off = np.sqrt(wrong) > room * np.maximum(np.sqrt(power), room * np.sqrt(sizes * power.sum() / sizes.sum()))
    bad = _block_sums(nonfinite, counts) > 0
    cells = np.where(bad, NONFINITE_BLOCK, np.where(zero, ZERO_BLOCK, np.where(off, WRONG_BLOCK, OK_BLOCK)))
    worst = number(np.sqrt(wrong[counted] / power[counted]).max()) if counted.any() else None
    names = tuple(dims) if len(dims) == len(counts) else ()
    return BlockMap(names, counts, "".join(cells.ravel().tolist())), worst


@lru_cache(KEEP_FACTS)
def _block_sizes(shape: tuple[int, ...], counts: tuple[int, ...]) -> Array:
    return _block_sums(np.ones(shape), counts)


def _block_sums(values: Array, counts: Sequence[int]) -> Array:
    sums = np.asarray(values, dtype=values.dtype if values.dtype.kind == "f" else np.float64)
    for axis, count in enumerate(counts):
        size = sums.shape[axis]
        sums = np.add.reduceat(sums, [i * size // count for i in range(count)], axis=axis)
    return sums


# -- the oracle's own measures ----------------------------------------------------------------------------------


def noise_of(dense: Iterable[TensorEvidence]) -> dict[str, Noise]:
    """The noise floor: the dense run in the case's own type against the oracle, the worst rank of each tensor."""
    floor: dict[str, Noise] = {}
    for tensor in dense:
        before = floor.get(tensor.key, Noise(None, 0.0))
        floor[tensor.key] = Noise(
            _worst(before.rel_l2, tensor.rel_l2),
            max(before.max_abs, tensor.max_abs or 0.0),
            _worst(before.worst_block, tensor.worst_block),
        )
    return floor


def difference_of(parts: Iterable[Raw], triples: Iterable[tuple[Raw | None, Raw | None, Raw]]) -> Difference | None:
    """The central difference beside both backwards; triples are (got gradient, oracle's gradient, direction).

    An absent gradient counts as zero. None where shapes do not fit or the sums are not finite.
    """
    got = expected = size = 0.0
    with np.errstate(all="ignore"):
        for mine, right, direction in triples:
            if any(side is not None and side.shape != direction.shape for side in (mine, right)):
                return None
            v = direction.values
            got += 0.0 if mine is None else float((mine.values * v).sum())
            expected += 0.0 if right is None else float((right.values * v).sum())
            size += 0.0 if right is None else float(np.abs(right.values * v).sum())
        total = sum(float(part.values.sum()) for part in parts)
    sums = (total, got, expected, size)
    return Difference(*sums) if all(math.isfinite(value) for value in sums) else None


# -- small arithmetic -------------------------------------------------------------------------------------------


def number(value: Any) -> float:
    """A float that JSON can hold: what overflows, or cannot be told for overflow, becomes the largest one."""
    plain = float(value)
    return sys.float_info.max if math.isnan(plain) else min(max(plain, -sys.float_info.max), sys.float_info.max)


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0)


def _largest(values: Array) -> Any:
    return np.abs(values).max() if values.size else 0.0


def _norm(values: Array, top: Any = None) -> Any:
    """The root of the sum of squares; ``top``: :func:`_power` of ``values`` where that is known."""
    top = _power(values) if top is None else top
    return top * np.sqrt(np.square(values / top).sum())


def _power(values: Array) -> Any:
    """The power of two just above every magnitude: dividing by it is exact, and no square overflows afterwards."""
    top = _largest(values)
    return np.ldexp(np.asarray(1, dtype=values.dtype), np.frexp(top)[1]) if top > 0 else 1.0


def _eps(got: Raw, expected: Raw, case: CaseInfo) -> float:
    """The rounding of the coarsest type involved."""
    named = (got.dtype, expected.dtype, case.dtype)
    return max((EPS[dtype] for dtype in named if dtype in EPS), default=EPS["float64"])


def _worst(a: float | None, b: float | None) -> float | None:
    said = [value for value in (a, b) if value is not None]
    return max(said) if said else None


assert set(_WIRE) == set(DTYPES)  # noqa: S101 - a type added to the contract must be readable here
