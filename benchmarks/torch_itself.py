"""The whole family of torch's own behaviours on built runtimes: 2 and 4 ranks, every mode, every transport here.

    python -m benchmarks.torch_itself [--torch 2.11.0 …]

Per runtime the wall time from submission to stored verdicts in an empty store, and what its containers spent it on. The
target is 60 s on two cores once the runtime is warm: once its files have been read, which a first run here sees to.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jobs.contract import MODES, PHASE_RANKS, PHASE_STARTS
from service import catalog, store
from service.config import load_settings
from tests.support.running import Run, submit, work
from workers.cli.progress import watcher
from workers.cli.runtimes import ensure
from workers.runtimes.venv import VenvExecutor

WORLD_SIZES = (2, 4)
TRANSPORTS = ("gloo", "nccl-dispatch")
SUMS = (PHASE_STARTS, PHASE_RANKS)


def measured(spec: catalog.RuntimeSpec, case: str = "*") -> tuple[float, Run]:
    """Seconds of wall time of one whole submission, and what it stored."""
    with tempfile.TemporaryDirectory() as home:
        began = time.monotonic()
        axes = {"cases": (case,), "modes": MODES, "world_sizes": WORLD_SIZES, "transports": TRANSPORTS}
        run = work(submit(Path(home), "torch", [spec], **axes))  # type: ignore[arg-type]
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="append")
    asked = parser.parse_args().torch or ["2.11.0"]
    out = Console()
    settings = load_settings()
    specs = catalog.load(settings).select(asked)
    with watcher(out) as watch:
        ensure(VenvExecutor(settings), specs, watch)
    table = Table("runtime", "cells", "wall s", "of which")
    for spec in specs:
        measured(spec, "torch-itself/all_reduce*")  # warms the runtime's files
        seconds, run = measured(spec)
        parts = ", ".join(f"{name} {took:.1f}" for name, took in phases(run).items() if took >= 0.1)
        table.add_row(spec.name, str(len(run.rows)), f"{seconds:.1f}", parts)
    out.print(table)


if __name__ == "__main__":
    main()
