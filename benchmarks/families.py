"""The default suite of one checkout, and each family of it alone: 2 and 4 ranks, eager and aot_eager.

    python -m benchmarks.families [--checkout deepspeed==0.19.8] [--torch 2.11.0 …] [--family loss …] [--slowest N]

Per runtime the wall time from submission to stored verdicts, in an empty store and on a runtime whose files have been
read. The whole suite is the number that counts, with a target of 60 s on two cores: a family alone pays the imports and
the traced controls that the suite pays once. Beside each is what its cells took in their ranks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from rich.console import Console
from rich.table import Table

from benchmarks.submissions import measured, phases
from jobs.contract import FAMILIES, SUITES, TORCH_FAMILY
from service import catalog
from service.cases import catalogue
from service.config import load_settings
from service.store import CellRow
from workers.cli.progress import watcher
from workers.cli.runtimes import ensure
from workers.runtimes.venv import VenvExecutor

MODES = ("eager", "aot_eager")
OF_A_CHECKOUT = tuple(family for family in FAMILIES if family != TORCH_FAMILY)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", default="deepspeed==0.19.8")
    parser.add_argument("--torch", action="append")
    parser.add_argument("--family", action="append", help="only these alone, and not the whole suite")
    parser.add_argument("--slowest", type=int, default=0, help="also the N cells of the suite that took longest")
    asked = parser.parse_args()
    out, settings = Console(), load_settings()
    specs = catalog.load(settings).select(asked.torch or ["2.11.0"])
    with watcher(out) as watch:
        ensure(VenvExecutor(settings), specs, watch)
    groups = [(family,) for family in asked.family or OF_A_CHECKOUT] + ([] if asked.family else [OF_A_CHECKOUT])
    for spec in specs:
        table = Table("family", "cells", "wall s", "in its cells s", "of which", title=f"{asked.checkout}, {spec.name}")
        measured(asked.checkout, spec, cases=("exchange/dim0[dtype=float32,loss=square]",))  # reads the files
        for families in groups:
            cases = [case.id for case in catalogue().select(families=families)]
            seconds, run = measured(asked.checkout, spec, cases=cases, modes=MODES, suite=SUITES[0])
            in_cells = sum(row.seconds or 0.0 for row in run.rows)
            parts = ", ".join(f"{name} {took:.1f}" for name, took in phases(run).items() if took >= 0.5)
            name = families[0] if len(families) == 1 else "the suite"
            table.add_row(name, str(len(run.rows)), f"{seconds:.1f}", f"{in_cells:.1f}", parts)
        out.print(table)
        if asked.slowest:
            slowest(out, run.rows, asked.slowest)


def slowest(out: Console, rows: list[CellRow], count: int) -> None:
    table = Table("s", "case", "mode", "ranks", "verdict", title="What took longest")
    for row in sorted(rows, key=lambda row: -(row.seconds or 0.0))[:count]:
        table.add_row(f"{row.seconds or 0.0:.2f}", row.case, row.mode, str(row.world_size), row.verdict)
    out.print(table)
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        sums[row.case.partition("[")[0], row.mode] += row.seconds or 0.0
    table = Table("s", "probe", "mode", title="By probe")
    for (probe, mode), took in sorted(sums.items(), key=lambda item: -item[1]):
        table.add_row(f"{took:.1f}", probe, mode)
    out.print(table)


if __name__ == "__main__":
    main()
