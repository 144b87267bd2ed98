"""What a subject's adapter offers to the probes: one class per library under test.

On the straight line this stands inside jobs, between the ranks (which import a subject once and set it up) and the
probes (which ask it for one operation at a time). Nothing here imports torch: case definitions are read without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs.subject.context import Operation, RankContext, Unsupported
from jobs.subject.operations.attention import AttentionOperations
from jobs.subject.operations.autosp import AutoOperations
from jobs.subject.operations.engine import EngineOperations
from jobs.subject.operations.exchange import ExchangeOperations
from jobs.subject.operations.loss import LossOperations
from jobs.subject.operations.tiled import TiledOperations

__all__ = ["Operation", "RankContext", "Subject", "Unsupported"]


class Subject(
    ExchangeOperations, AttentionOperations, TiledOperations, LossOperations, EngineOperations, AutoOperations
):
    """A library under test. Adapters derive from it and override what their library has.

    The order of calls: ``prepare_import``, then the checkout joins sys.path, then ``load`` and ``version`` in a parent
    process; then, in every rank forked from it, ``setup`` once torch's process groups exist; then ``reset`` and one of
    the operations per case. An operation is asked for outside any traced region and may be called many times.
    The operations of each family are in :mod:`jobs.subject.operations`.
    """

    name = "subject"

    def prepare_import(self, root: str) -> None:
        """Set what has to be set before the library is imported from the checkout at ``root``."""

    def load(self, root: str) -> None:
        """Import the library from ``root``, which is on sys.path; start no process group and run no backward."""
        raise NotImplementedError

    def version(self) -> str | None:
        """What the library calls its version, or None."""
        return None

    def setup(self, contexts: Sequence[RankContext]) -> None:
        """Make the library ready in this rank; one context per sequence-parallel size that will be used."""

    def reset(self) -> None:
        """Forget what the library keeps between calls, so that a case does not depend on the one before."""
