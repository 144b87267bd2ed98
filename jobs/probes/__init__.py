"""The families of probes: their cases and controls as data, and the modules that run them.

On the straight line this stands inside jobs. ``python -m jobs --list`` prints what :func:`catalogue` and
:func:`controls` return, and the service plans from it; neither imports torch. A family joins by one line in
:data:`FAMILIES`: a module of definitions (``catalogue``, ``controls``) and a module that runs them (``build``,
``build_control``, ``exercise``, ``difference``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes.attention import cases as attention_cases
from jobs.probes.attention import controls as attention_controls
from jobs.probes.autosp import cases as autosp_cases
from jobs.probes.autosp import controls as autosp_controls
from jobs.probes.engine import cases as engine_cases
from jobs.probes.engine import controls as engine_controls
from jobs.probes.exchange import cases as exchange_cases
from jobs.probes.exchange import controls as exchange_controls
from jobs.probes.loss import cases as loss_cases
from jobs.probes.loss import controls as loss_controls
from jobs.probes.model import cases as model_cases
from jobs.probes.model import controls as model_controls
from jobs.probes.tiled import cases as tiled_cases
from jobs.probes.tiled import controls as tiled_controls
from jobs.probes.torch_itself import cases as torch_cases
from jobs.probes.torch_itself import controls as torch_controls

if TYPE_CHECKING:
    import torch

    from jobs.subject.base import RankContext

FAMILIES: dict[str, tuple[Callable[[], tuple[CaseInfo, ...]], Callable[[], tuple[ControlInfo, ...]], str]] = {
    "exchange": (exchange_cases.catalogue, exchange_controls.controls, "jobs.probes.exchange.run"),
    "torch-itself": (torch_cases.catalogue, torch_controls.controls, "jobs.probes.torch_itself.run"),
    "tiled": (tiled_cases.catalogue, tiled_controls.controls, "jobs.probes.tiled.run"),
    "attention": (attention_cases.catalogue, attention_controls.controls, "jobs.probes.attention.run"),
    "loss": (loss_cases.catalogue, loss_controls.controls, "jobs.probes.loss.run"),
    "model": (model_cases.catalogue, model_controls.controls, "jobs.probes.model.run"),
    "engine": (engine_cases.catalogue, engine_controls.controls, "jobs.probes.engine.run"),
    "autosp": (autosp_cases.catalogue, autosp_controls.controls, "jobs.probes.autosp.run"),
}
"""Per family: its cases, its controls, and the name of the module that runs them (it imports torch)."""


class Emit(Protocol):
    """How a pass hands over a tensor: its role (contract.ROLES), its name, and None where there is none."""

    def __call__(self, role: str, name: str, tensor: torch.Tensor | None, /) -> None:
        """Hand over one tensor."""


class RunModule(Protocol):
    """What the module that runs a family offers."""

    def build(self, case: CaseInfo, ctx: RankContext, subject: Any) -> Callable[..., torch.Tensor]:
        """The function under test: called with the case's inputs, and what a traced mode traces.

        ``subject`` is the adapter of the subject under test, or None for torch's own family.
        """

    def build_control(self, control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Callable[..., torch.Tensor]:
        """The same with a control's implementation in the subject's place."""

    def exercise(self, case: CaseInfo, ctx: RankContext, function: Callable[..., torch.Tensor], emit: Emit) -> None:
        """One complete pass: fresh inputs, forward, backward, and everything emitted."""

    def difference(self, case: CaseInfo, ctx: RankContext, function: Callable[..., torch.Tensor], emit: Emit) -> None:
        """Emit this rank's central difference of the loss, where the case has one: derivative against forward."""


def catalogue() -> tuple[CaseInfo, ...]:
    """Every case of every family, in the order in which they run."""
    return tuple(case for cases, _, _ in FAMILIES.values() for case in cases())


def controls() -> tuple[ControlInfo, ...]:
    """Every control of every family."""
    return tuple(control for _, controls_of, _ in FAMILIES.values() for control in controls_of())


def module(family: str) -> RunModule | ModuleType:
    """The module that runs ``family``; importing it imports torch."""
    if family not in FAMILIES:
        raise LookupError(f"no family is called {family!r}; there are {', '.join(FAMILIES)}")
    return importlib.import_module(FAMILIES[family][2])
