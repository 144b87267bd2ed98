"""Scripts of ``gradmatrix repro``: written from stored cells, run beside the checkout, and their numbers read back."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from service import repro, store
from service.config import load_settings
from service.evidence import Evidence
from service.repro.gather import given_of
from service.store import CellRow
from tests.support.running import Run
from tests.support.runtimes import runtime
from workers.runtimes.venv import VenvExecutor

DIGESTS = """
    import hashlib
    for rank in range(WORLD):
        for name, t in inputs(rank).items():
            data = t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            print("digest", rank, name, hashlib.sha256(data).hexdigest())
"""
"""What a script is made to say besides: the exact bytes that each rank hands in."""
LAST = "    sys.exit(1 if wrong else 0)\n"
"""The last line of a script that compares."""
LINE = re.compile(r"rank (\d+) (\S+/\S+): non-zero (\d+) of (\d+), error (\S+), alpha (\S+)")


@dataclass(frozen=True)
class Numbers:
    """What is said of one tensor of one rank; not a number where nothing can be said."""

    got: int
    expected: int
    error: float
    alpha: float


@dataclass(frozen=True)
class Said:
    """What a script printed: numbers by rank and tensor, its last line, and the digests of what ranks hand in.

    status  its exit status: 0 agrees, 1 does not
    """

    text: str
    numbers: dict[tuple[int, str], Numbers]
    last: str
    errors: str
    handed: dict[tuple[int, str], str]
    status: int


def script_of(run: Run, row: CellRow) -> str:
    """The script of a stored cell."""
    with run.database.read() as session:
        return repro.script(given_of(session, run.settings, store.find_cell(session, row.cell)))


def run_script(text: str, row: CellRow, home: Path, folder: Path, seconds: float = 240) -> Said:
    """Run it in the cell's runtime, with nothing of ours to import; the checkout lies in a folder on the path."""
    folder.mkdir(parents=True)
    file = folder / "repro.py"
    file.write_text(text.replace(LAST, DIGESTS + LAST) if "def inputs" in text else text, "utf-8")
    tar = home / "checkouts" / f"{row.checkout}.tar"
    with tarfile.open(tar) as archive:
        archive.extractall(folder / "subject", filter="tar")
    done = subprocess.run(
        [VenvExecutor(load_settings()).python(runtime(row.runtime)), file],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder / "subject"), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("digest ")]
    digests = [line.split() for line in done.stdout.splitlines() if line.startswith("digest ")]
    found = {
        (int(m[1]), m[2]): Numbers(int(m[3]), int(m[4]), float(m[5]), float(m[6])) for m in map(LINE.match, lines) if m
    }
    handed = {(int(rank), name): digest for _, rank, name, digest in digests}
    return Said(done.stdout, found, lines[-1] if lines else "", done.stderr, handed, done.returncode)


def handed_in(run: Run, row: CellRow) -> dict[tuple[int, str], str]:
    """The digests of what the ranks of the stored cell were handed, as the oracle has it."""
    return {(t.rank, t.name): str(t.expected_digest) for t in _evidence(run, row).of("input", "cotangent")}


def _evidence(run: Run, row: CellRow) -> Evidence:
    with run.database.read() as session:
        return Evidence.from_json(store.find_cell(session, row.cell).evidence)


def stored(run: Run, row: CellRow) -> dict[tuple[int, str], Numbers]:
    """The same numbers of the stored cell."""
    nan = float("nan")
    return {
        (t.rank, t.key): Numbers(
            t.nonzero_got,
            t.nonzero_expected,
            nan if t.rel_l2 is None else t.rel_l2,
            nan if t.alpha is None else t.alpha,
        )
        for t in _evidence(run, row).of("output", "grad")
        if not (t.missing or t.expected_missing) and t.same_shape
    }
