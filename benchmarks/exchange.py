"""All exchange cases of one checkout against one torchrun per case, and against the floor, in one run.

    python -m benchmarks.exchange [--checkout deepspeed==0.19.8] [--torch 2.11.0] [--sample 2]

Three numbers, all measured here and now on this machine: the wall time of the whole matrix (eager and aot_eager at 2
and 4 ranks, from submission to stored verdicts, runtime built before); the mean wall time of a sample of the same cases
with one torchrun each, by mode and world size, multiplied by the number of cells; and the floor, which is the imports
once plus what the ranks themselves took.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tarfile
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from service import catalog, store
from service.config import Settings, load_settings
from service.store import CellRow
from tests.support.running import submit, work
from workers.runtimes.venv import VenvExecutor

ROOT = Path(__file__).resolve().parent.parent
MODES = ("eager", "aot_eager")
WORLD_SIZES = (2, 4)
IMPORTS = ("import torch", "warm tracer")


def torchrun(settings: Settings, torch: str, checkout: Path, row: CellRow) -> float:
    """Seconds of wall time of one cell with a torchrun of its own."""
    python = VenvExecutor(settings).python(catalog.load(settings).select([torch])[0])
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHINDUCTOR_CACHE_DIR": cache,
        }
        command = [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={row.world_size}"]
        command += [str(ROOT / "benchmarks" / "one_case.py"), str(checkout), row.case, row.mode]
        began = time.monotonic()
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"torchrun failed for {row.case} {row.mode}:\n{done.stderr[:3000]}")
        return time.monotonic() - began


def sampled(rows: list[CellRow], count: int) -> dict[tuple[str, int], list[CellRow]]:
    """``count`` agreeing whole-world cells per mode and world size, spread evenly over the list."""
    groups: dict[tuple[str, int], list[CellRow]] = defaultdict(list)
    for row in rows:
        if row.verdict == "agree" and "sp=" not in row.case:
            groups[row.mode, row.world_size].append(row)
    return {key: group[:: max(1, len(group) // count)][:count] for key, group in groups.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", default="deepspeed==0.19.8")
    parser.add_argument("--torch", default="2.11.0")
    parser.add_argument("--sample", type=int, default=2, help="torchruns per mode and world size")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    asked = parser.parse_args()
    settings, console = load_settings(), Console()
    runtime = catalog.load(settings).select([asked.torch])[0]
    VenvExecutor(settings).ensure(runtime, lambda what, done, total: None)
    with tempfile.TemporaryDirectory() as home:
        run = submit(
            Path(home),
            asked.checkout,
            [runtime],
            cases=["exchange/*"],
            modes=MODES,
            world_sizes=WORLD_SIZES,
        )
        began = time.monotonic()
        work(run)
        wall = time.monotonic() - began
        with run.database.read() as session:
            facts = store.find_cell(session, run.rows[-1].cell).attempts[-1].facts
        phases = facts["phases"]
        imports = sum(phases[name] for name in IMPORTS) + facts["subject"]["seconds"]
        floor = imports + phases["in ranks"]
        tree = Path(home) / "tree"
        with tarfile.open(next((Path(home) / "checkouts").glob("*.tar"))) as archive:
            archive.extractall(tree, filter="data")
        means, counts = {}, {}
        for key, sample in sampled(run.rows, asked.sample).items():
            seconds = [torchrun(settings, asked.torch, tree, row) for row in sample]
            means[key] = statistics.mean(seconds)
            counts[key] = sum(1 for row in run.rows if (row.mode, row.world_size) == key)
    whole = sum(means[key] * counts[key] for key in means)
    table = Table(title=f"{asked.checkout}, torch {asked.torch}: {len(run.rows)} cells")
    for column in ("mode", "ranks", "cells", "torchruns measured", "mean s", "extrapolated s"):
        table.add_column(column, justify="right")
    for (mode, world), mean in sorted(means.items()):
        count = counts[mode, world]
        table.add_row(mode, str(world), str(count), str(asked.sample), f"{mean:.1f}", f"{mean * count:.0f}")
    console.print(table)
    console.print(f"gradmatrix   {wall:8.1f} s for all cells, {len(run.rows) / wall:.1f} cells a second")
    console.print(f"torchrun     {whole:8.1f} s extrapolated: {whole / wall:.1f} times as long")
    console.print(f"floor        {floor:8.1f} s = imports {imports:.1f} s + in ranks {phases['in ranks']:.1f} s;")
    console.print(f"             gradmatrix takes {wall / floor:.2f} times the floor")
    if asked.json:
        numbers = {"wall": wall, "torchrun": whole, "floor": floor, "cells": len(run.rows), "phases": phases}
        asked.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
