"""From a family's typed parameters to the case that crosses the border, and back.

A family describes its cases with a frozen dataclass of strings and integers. The id shows the parameters that always
matter and those that differ from their default, so that a new axis with a default renames no case.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jobs.contract import DTYPES, CaseInfo

P = TypeVar("P")

EAGER = ("eager",)
TRACED = ("eager", "aot_eager")
ALL = ("eager", "aot_eager", "inductor")
"""The modes of a case."""
FLOATS = tuple(name for name in DTYPES if "float" in name)
Values = dict[str, Any]
"""Parameters that differ from their defaults."""
Rows = tuple[tuple[tuple[str, ...], Values], ...]
"""Cases of one probe: modes, and what differs from the defaults."""

COTANGENTS = {"weighted": ("w",), "shared": ("w",), "accumulate": ("w", "w2")}
"""The incoming gradients that a loss takes."""
LAYER_BEFORE, LAYER_AFTER = 0.5, 4.0
"""The factors of a traced layer around a call: powers of two, so that every type stays exact."""

RANKS = 8
"""In how many a case of the whole world is looked at, where any number would do."""
LOSS_SCALE = 1024.0
"""The factor of a scaled loss: a power of two, so that every type stays exact."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that a case hands in, as data: what the ranks and the oracle make it from.

    drawn    the shape that values are drawn for; a 1 where ``shape`` has more means that they repeat along it
    role     ``input`` (needs a gradient), ``frozen`` (an input that needs none) or ``cotangent`` (an incoming gradient)
    strides  how it lies in memory: contiguous · transposed · expanded · offset (a window into a wider tensor)
    factor   what drawn values are multiplied by, a power of two: ±8 is too much for an exponential
    step     what the direction of a central difference is multiplied by besides: small where the loss is no polynomial
    shared   every rank has the same values: a parameter, not an activation
    integers the values themselves, of a tensor of whole numbers such as labels; then nothing is drawn
    """

    name: str
    role: str
    shape: tuple[int, ...]
    drawn: tuple[int, ...]
    strides: str = "contiguous"
    factor: float = 1.0
    step: float = 1.0
    shared: bool = False
    integers: tuple[int, ...] = ()


def strided(
    name: str,
    role: str,
    shape: tuple[int, ...],
    strides: str,
    factor: float = 1.0,
    step: float = 1.0,
    shared: bool = False,
) -> TensorSpec:
    """A tensor that lies in memory as ``strides`` says; an expanded one repeats along its last dimension but one."""
    drawn = (*shape[:-2], 1, shape[-1]) if strides == "expanded" else shape
    return TensorSpec(name, role, shape, drawn, strides, factor, step, shared)


def case_id(family: str, probe: str, params: Any, shown: tuple[str, ...], hidden: tuple[str, ...] = ()) -> str:
    """``family/probe[name=value,…]``: ``shown`` first, then what differs from its default and is not ``hidden``."""
    fields = [field for field in dataclasses.fields(params) if field.name not in (*shown, *hidden)]
    others = (field.name for field in fields if getattr(params, field.name) != field.default)
    return f"{family}/{probe}[{','.join(f'{name}={getattr(params, name)}' for name in (*shown, *others))}]"


def case_of(
    ident: str, version: int, params: Any, modes: tuple[str, ...], *, outside: object = "", **more: Any
) -> CaseInfo:
    """The case ``ident`` with these typed parameters, ``dtype`` and ``sp`` among them; ``more`` are further fields.

    ``outside``: why, or that, it is outside the contract, and must be refused.
    """
    family, _, rest = ident.partition("/")
    return CaseInfo(
        id=ident,
        version=version,
        family=family,
        probe=rest.partition("[")[0],
        params=to_strings(params),
        modes=modes,
        dtype=params.dtype,
        sp=params.sp,
        expect="refusal" if outside else "values",
        weights=tuple(s.name for s in params.tensors(params.sp or RANKS, 0) if s.shared and s.role == "input"),
        **more,
    )


def to_strings(params: Any) -> dict[str, str]:
    """Every parameter, defaults included, as the text that crosses the border."""
    return {field.name: str(getattr(params, field.name)) for field in dataclasses.fields(params)}


def from_strings(cls: type[P], case: CaseInfo) -> P:
    """The typed parameters of ``case``; the inverse of :func:`to_strings`."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if set(case.params) != set(fields):
        raise ValueError(f"{case.id} has the parameters {sorted(case.params)}, not {sorted(fields)}")
    values = {name: int(text) if fields[name].type == "int" else text for name, text in case.params.items()}
    return cls(**values)


def input_key(case: CaseInfo, spec: TensorSpec, rank: int) -> str:
    """The key that the values of one tensor of one (global) rank are drawn from."""
    return _key(case, spec.name, spec, rank)


def direction_key(case: CaseInfo, spec: TensorSpec, rank: int) -> str:
    """The key of the direction along which that tensor is moved for a central difference."""
    return _key(case, f"direction of {spec.name}", spec, rank)


def _key(case: CaseInfo, name: str, spec: TensorSpec, rank: int) -> str:
    return f"{case.id}|{case.version}|{name}|{'every rank' if spec.shared else rank}"


class Params(Protocol):
    """What a pass has to know of a case.

    loss  square (Σy²) · sum (Σy) · weighted (a random incoming gradient) · scaled (Σy² times a power of two) · shared
          (one activation, two losses) · accumulate (two passes into one gradient) · frozen (as square) · forward_only
          (no backward: the gradient stays absent) · none (no derivative exists)
    """

    @property
    def loss(self) -> str:
        """The name of the loss."""

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` of its group hands in: inputs in the order of the arguments, then cotangents."""


def has_difference(case: CaseInfo) -> bool:
    """Whether a central difference says anything: not where a small step is below the rounding of the case's type."""
    return case.exact or case.dtype in ("float32", "float64")
