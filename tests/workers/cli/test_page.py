"""``gradmatrix page``: what its sentences say of a fault comes from the evidence, at the time of reading."""

from __future__ import annotations

from pathlib import Path

from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.state import submit

CASE = "exchange/dim0[loss=square]"
FILE = f"""
title = "One release"

[[tables]]
title = "The exchange"
subject = "deepspeed==0.18.3"
modes = ["eager", "aot_eager"]
lines = [{{ name = "A", case = "{CASE}" }}]

[[faults]]
title = "Faults"
by = "fault"
subjects = ["deepspeed==0.18.3", "deepspeed==0.19.8"]
"""


def test_a_fault_is_told_with_a_case_and_what_its_evidence_says(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path
) -> None:
    submit(home)
    file, page = tmp_path / "page.toml", tmp_path / "page.md"
    file.write_text(FILE, "utf-8")
    assert gradmatrix("page", str(file), "--output", str(page))[0] == 0
    faults = [line for line in page.read_text("utf-8").splitlines() if line.startswith("- zero gradient")]
    assert faults == [
        "- zero gradient in traced exchange/dim0 (aot\\_eager; 2 ranks): deepspeed 0.18.3 on torch 2.11.0. "
        "For instance exchange/dim0\\[loss=square\\], aot\\_eager, 2 ranks, deepspeed==0.18.3 on torch 2.11.0: "
        "x receives no gradient (0 of 8 elements are non-zero on each rank)"
    ]
