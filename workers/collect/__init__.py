"""From the stream of one attempt to evidence: validation of every event as untrusted input, then measuring.

On the straight line this stands between ``workers.runtimes`` (whose process writes the stream) and ``service.store``.
"""

from workers.collect.notices import Ask, Bye, CaseDone, ControlDone, Hello, Log, Notice, PhaseDone, SubjectLoaded
from workers.collect.schema import Violation
from workers.collect.stream import Collector

__all__ = [
    "Ask",
    "Bye",
    "CaseDone",
    "Collector",
    "ControlDone",
    "Hello",
    "Log",
    "Notice",
    "PhaseDone",
    "SubjectLoaded",
    "Violation",
]
