"""Stands between the answers of one claim and what its devices may have done to them.

On the straight line ``workers.attempt`` asks it before it starts a container, when an answer is not as it should be,
and when the container has ended. What is found sick is taken out of service; what is busy rests.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from service import store
from service.db import Database
from workers.gpus.health import Problem
from workers.gpus.monitor import Monitor, Ours, nobody

log = logging.getLogger(__name__)


@dataclass
class Guard:
    """The devices of one claim on the host called ``host``; without a monitor they have no health to speak of."""

    devices: tuple[str, ...]
    host: str
    database: Database
    monitor: Monitor | None = None
    _found: str = field(default="", init=False)

    @property
    def watches(self) -> bool:
        """Whether the devices can be at fault at all."""
        return self.monitor is not None

    def fault(self, ours: Ours = nobody) -> str:
        """What is wrong with the devices, in words, or nothing. ``ours`` are the processes that may compute on them.

        Once something was, it stays so for this claim: what is put right meanwhile was wrong while it ran.
        """
        if self.monitor is not None and not self._found:
            found = self.monitor.look(self.devices, ours)
            if found:
                self._act_on(found, self.monitor)
                self._found = "; ".join(map(str, found))
        return self._found

    def _act_on(self, found: tuple[Problem, ...], monitor: Monitor) -> None:
        reasons: dict[str, str] = {}
        for problem in found:
            log.error("%s: %s", problem.blame, problem)
            if problem.blame == "sick":
                reasons.setdefault(problem.device, problem.says)
        monitor.rest(problem.device for problem in found if problem.blame == "busy")
        if reasons:
            with self.database.session() as session:
                store.quarantine(session, self.host, reasons)
            monitor.told(reasons)
