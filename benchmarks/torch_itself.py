"""The whole family of torch's own behaviours on built runtimes: 2 and 4 ranks, every mode, every transport here.

    python -m benchmarks.torch_itself [--torch 2.11.0 …]

Per runtime the wall time from submission to stored verdicts in an empty store, and what its containers spent it on. The
target is 60 s on two cores once the runtime is warm: once its files have been read, which a first run here sees to.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from benchmarks.submissions import measured, phases
from jobs.contract import MODES
from service import catalog
from service.config import load_settings
from tests.support.running import Run
from workers.cli.progress import watcher
from workers.cli.runtimes import ensure
from workers.runtimes.venv import VenvExecutor

TRANSPORTS = ("gloo", "nccl-dispatch")


def submission(cases: str, spec: catalog.RuntimeSpec) -> tuple[float, Run]:
    return measured("torch", spec, cases=(cases,), modes=MODES, transports=TRANSPORTS)


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
        submission("torch-itself/all_reduce*", spec)  # warms the runtime's files
        seconds, run = submission("torch-itself/*", spec)
        parts = ", ".join(f"{name} {took:.1f}" for name, took in phases(run).items() if took >= 0.1)
        table.add_row(spec.name, str(len(run.rows)), f"{seconds:.1f}", parts)
    out.print(table)


if __name__ == "__main__":
    main()
