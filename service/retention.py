"""How long what is large is kept.

On the straight line this stands beside the store: ``service.config`` reads it, ``service.reconcile`` acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Retention:
    """After how many days what is removed; 0: never. Verdicts and evidence are always kept.

    tensors_days   raw tensors of cells that did not agree
    logs_days      what ranks wrote, and their stacks
    attempts_days  executions that answered nothing
    apply          whether the reconciler removes; it only says what it would otherwise
    """

    tensors_days: float = 90
    logs_days: float = 180
    attempts_days: float = 365
    apply: bool = False

    def before(self, what: str, now: datetime) -> datetime | None:
        """What of ``tensors``, ``logs`` or ``attempts`` is older than this is due; None where nothing ever is."""
        days: float = getattr(self, f"{what}_days")
        return now - timedelta(days=days) if days else None
