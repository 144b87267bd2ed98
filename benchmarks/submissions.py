"""One whole submission in an empty store, timed: what the benchmarks have in common."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

from service import catalog, store
from tests.support.running import Run, submit, work

WORLD_SIZES = (2, 4)


def measured(subject: str, spec: catalog.RuntimeSpec, **axes: object) -> tuple[float, Run]:
    """Seconds of wall time from submission to stored verdicts, and what was stored; fetching is not counted."""
    with tempfile.TemporaryDirectory() as home:
        run = submit(Path(home), subject, [spec], world_sizes=WORLD_SIZES, **axes)  # type: ignore[arg-type]
        began = time.monotonic()
        work(run)
        return time.monotonic() - began, run


def phases(run: Run) -> dict[str, float]:
    """Seconds per phase, over all containers; the attempts of one container tell the same."""
    found: dict[str, dict[str, float]] = {}
    with run.database.read() as session:
        for row in run.rows:
            for attempt in store.find_cell(session, row.cell).attempts:
                found[attempt.container] = attempt.facts.get("phases", {})
    total: Counter[str] = Counter()
    for container in found.values():
        total.update({name: seconds for name, seconds in container.items() if not name.startswith("job ")})
    return dict(total)
