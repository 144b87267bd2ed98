"""What the controls of every family have in common: how wrong a mutant is, and the control that crosses the border.

On the straight line this stands inside jobs, beside :mod:`jobs.probes.case`. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.contract import ControlInfo

TRACED = ("aot_eager", "inductor")
"""The modes of a reference for tracers; cases that are traced run eagerly as well, and have a constant of their own."""


@dataclass(frozen=True)
class Wrong:
    """One mutant: the verdicts that are right for it, what it does, and whether it stands beside every run."""

    expected: tuple[str, ...]
    summary: str
    everywhere: bool = False


RIGHT = Wrong(("agree",), "an implementation of ours that is right")
"""What is no mutant."""


SIXTEEN_BITS = ("bfloat16", "float16")
"""Types whose rounding may give what is wrong another name."""


def rounded(wrong: Wrong, dtype: str, more: Sequence[str]) -> Wrong:
    """``wrong``, which in sixteen bits may be called one of ``more`` as well."""
    return replace(wrong, expected=(*wrong.expected, *more)) if dtype in SIXTEEN_BITS else wrong


def mark_of(values: Mapping[str, object], names: Sequence[str]) -> str:
    """Those of ``values`` that tell controls of one implementation apart, as they stand in an id."""
    return ",".join(f"{name}={values[name]}" for name in names if name in values)


def control(
    probe: str,
    name: str,
    mark: str,
    case: str,
    known: Collection[str],
    modes: tuple[str, ...],
    wrong: Wrong,
    suite: str,
) -> ControlInfo:
    """The implementation ``name`` on one of the ``known`` cases of its family, told apart from its like by ``mark``.

    Raises ValueError for a case that does not exist.
    """
    if case not in known:
        raise ValueError(f"control {probe}.{name} stands on a case that does not exist: {case}")
    family = case.partition("/")[0]
    ident = f"{family}/{probe}.{name}" + (f"[{mark}]" if mark else "")
    # Old tracers do not look into an autograd.Function: then a right implementation is right, and shows no more.
    untraced = ("agree_untraced",) if "agree" in wrong.expected and "eager" not in modes else ()
    return ControlInfo(ident, family, case, modes, (*wrong.expected, *untraced), wrong.summary, suite)


def implementation_of(control: ControlInfo) -> str:
    """The name of the control's implementation in its family's ``mutants``."""
    return control.id.partition(".")[2].partition("[")[0]
