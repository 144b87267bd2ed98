"""Everything that a script is written from: one stored cell, its checkout and its runtime. Pure data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.contract import TORCH, TRACED_MODES, CaseInfo
from service.errors import UsageError
from service.evidence import Evidence
from service.policy import Policy
from service.repro.handed import Ranks
from service.repro.source import Source
from service.store.origin import Origin
from service.store.views import CellRow

LIMIT_S = {"eager": 120, "aot_eager": 300, "inductor": 600}
"""Seconds after which a process that has not returned says where it is and ends: imports and compilation included."""


FEW = 2
"""Up to how many gradients are written down one by one."""


class NothingToReproduce(UsageError):  # noqa: N818 - an answer, not an error of ours
    """The cell says nothing that a script could show, or nothing that one script can."""


@dataclass(frozen=True)
class Given:
    """What a template may ask.

    needs    what is installed beside torch and the subject, as requirements
    without  what is taken out again, because the runtime has none of it
    """

    row: CellRow
    case: CaseInfo
    evidence: Evidence
    policy: Policy
    origin: Origin
    needs: tuple[str, ...]
    without: tuple[str, ...]
    handed: Ranks
    source: Source

    @property
    def params(self) -> dict[str, str]:
        """The case's parameters."""
        return self.case.params

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.row.world_size

    @property
    def size(self) -> int:
        """The ranks of one group."""
        return self.case.sp or self.row.world_size

    @property
    def traced(self) -> bool:
        """Whether the call is traced."""
        return self.row.mode in TRACED_MODES

    @property
    def loss(self) -> str:
        """The name of the loss, of a case that has one."""
        return self.params.get("loss", "none")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what the call is given, in order."""
        return tuple(spec.name for spec in self.handed[0] if spec.role != "cotangent")

    @property
    def own(self) -> bool:
        """Whether there is a subject beside torch."""
        return self.row.subject != TORCH

    @property
    def answered(self) -> bool:
        """Whether every rank answered, so that no error has to be told of."""
        return not self.refusal and all(outcome.status == "ok" for outcome in self.evidence.ranks)

    @property
    def refusal(self) -> bool:
        """Whether the right answer is an error on every rank."""
        return self.case.expect == "refusal"


@dataclass(frozen=True)
class Body:
    """What a family's template adds to the frame; every part is lines of Python, without a common indent.

    call     inside a process: defines ``call``, from the case's arguments to one tensor
    dense    at the top: defines ``dense(held)``, from what the ranks of a group hold (a dict each) to a list of their
             outputs; in plain torch, for tensors of float64
    imports  of the subject, at the top
    helpers  at the top, after the inputs
    setup    inside a process, once torch's groups exist; ``rank``, ``place`` (in the group) and ``group`` are there
    named    ``call`` takes one dict of everything that is handed in, instead of the arguments one by one
    step     inside a process, instead of the frame's own pass over ``call``
    truth    at the top, instead of the frame's own function ``truth``, which ``dense`` is for
    """

    call: str
    dense: str = ""
    imports: str = ""
    helpers: str = ""
    setup: str = ""
    named: bool = False
    step: str = ""
    truth: str = ""


Template = Callable[[Given], Body]
