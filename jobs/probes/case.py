"""From a family's typed parameters to the case that crosses the border, and back.

A family describes its cases with a frozen dataclass of strings and integers. The id shows the parameters that always
matter and those that differ from their default, so that a new axis with a default renames no case.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from jobs.contract import CaseInfo

P = TypeVar("P")

LOSS_SCALE = 1024.0
"""The factor of a scaled loss: a power of two, so that every type stays exact."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that a case hands in, as data: what the ranks and the oracle make it from.

    drawn    the shape that values are drawn for; a 1 where ``shape`` has more means that they repeat along it
    role     ``input`` (needs a gradient), ``frozen`` (an input that needs none) or ``cotangent`` (an incoming gradient)
    strides  how it lies in memory: contiguous · transposed · expanded · offset (a window into a wider tensor)
    """

    name: str
    role: str
    shape: tuple[int, ...]
    drawn: tuple[int, ...]
    strides: str = "contiguous"


def case_id(family: str, probe: str, params: Any, shown: tuple[str, ...], hidden: tuple[str, ...] = ()) -> str:
    """``family/probe[name=value,…]``: ``shown`` first, then what differs from its default and is not ``hidden``."""
    fields = [field for field in dataclasses.fields(params) if field.name not in (*shown, *hidden)]
    others = (field.name for field in fields if getattr(params, field.name) != field.default)
    return f"{family}/{probe}[{','.join(f'{name}={getattr(params, name)}' for name in (*shown, *others))}]"


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


def input_key(case: CaseInfo, name: str, rank: int) -> str:
    """The key that the values of one tensor of one (global) rank are drawn from."""
    return f"{case.id}|{case.version}|{name}|{rank}"


def direction_key(case: CaseInfo, name: str, rank: int) -> str:
    """The key of the direction along which that tensor is moved for a central difference."""
    return input_key(case, f"direction of {name}", rank)
