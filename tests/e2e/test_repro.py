"""Scripts of ``gradmatrix repro`` on real releases and real torch: they print the numbers of the stored cells.

A script shares no code with the probes: it draws the inputs anew, calls the release itself and states the truth again.
So each of these tests is also a second formulation of a family's truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.contract import CaseInfo
from jobs.probes import catalogue
from service.verdicts import Verdict
from tests.support.running import Run, run_release, run_tree
from tests.support.runtimes import runtime
from tests.support.scripts import Numbers, Said, handed_in, run_script, script_of, stored

pytestmark = pytest.mark.torch
RELEASE, TORCH, OLD_TORCH = "deepspeed==0.19.6", "2.11.0-index", "2.2.2-index"
DIM0 = "exchange/dim0[dtype=float32,loss=square]"
DETACHED = "torch-itself/dim0[api=functional,dtype=float32,loss=square]"
GATHERED = "torch-itself/all_gather[api=nn,dtype=float32,loss=weighted,cotangent=transposed]"


def first(family: str, probe: str) -> CaseInfo:
    """The first case of a probe: what it mostly is about."""
    return next(case for case in catalogue() if (case.family, case.probe) == (family, probe))


PROBES = {
    "exchange": "seq_head",
    "attention": "distributed",
    "tiled": "compute",
    "loss": "vocab_cross_entropy",
    "model": "decoder",
    "engine": "gradient",
    "autosp": "all_to_all",
}
"""One probe per family, eager."""
BRIEF = ("attention", "engine")
"""Families whose scripts are run every time; those of all are run where slow tests are."""
FAMILIES = [pytest.param(name, marks=() if name in BRIEF else pytest.mark.slow) for name in sorted(PROBES)]


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One cell of each family."""
    return release(tmp_path_factory, [first(*of).id for of in PROBES.items()], "eager")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The dim-0 exchange, traced: a gradient of zero on torch 2.11 (DeepSpeed's public report #8491)."""
    return release(tmp_path_factory, [DIM0], "aot_eager")


def release(factory: pytest.TempPathFactory, cases: Sequence[str], mode: str) -> Run:
    return run_release(factory.mktemp("home"), RELEASE, TORCH, cases=cases, modes=[mode])


def compared(run: Run, case: str, folder: Path, transport: str = "gloo") -> tuple[str, Said]:
    """The verdict of the stored cell, and what its script printed, which has the same numbers of the same inputs."""
    (row,) = [row for row in run.rows if (row.case, row.transport) == (case, transport)]
    assert row.verdict not in ("unsupported", "invalid", "infra"), row.detail
    said = run_script(script_of(run, row), row, run.settings.home, folder / "script")
    kept = stored(run, row)
    assert kept
    for key, numbers in kept.items():
        assert key in said.numbers, (key, said.text, said.errors)
        assert near(numbers, said.numbers[key]), (key, numbers, said.numbers[key])
    given = handed_in(run, row)
    assert given
    assert {key: said.handed[key] for key in given} == given
    settled = Verdict(str(row.verdict)).settled
    assert said.last.startswith("agrees" if settled else "does not agree: "), said.text
    assert said.status == (0 if settled else 1), said.errors
    return str(row.verdict), said


def near(a: Numbers, b: Numbers) -> bool:
    """Counts are equal, errors and factors too, but for printed digits: rounding is the same for the same calls."""
    pairs = ((a.error, b.error), (a.alpha, b.alpha))
    same = [math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-12) or (math.isnan(x) and math.isnan(y)) for x, y in pairs]
    return (a.got, a.expected) == (b.got, b.expected) and all(same)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_of_every_family_is_shown_by_its_script(eager: Run, family: str, tmp_path: Path) -> None:
    compared(eager, first(family, PROBES[family]).id, tmp_path)


def test_the_zero_gradient_of_the_traced_exchange(traced: Run, tmp_path: Path) -> None:
    verdict, said = compared(traced, DIM0, tmp_path)
    assert verdict == "zero_gradient"
    for rank in (0, 1):
        assert said.numbers[rank, "grad/x"] == Numbers(0, 64, 1.0, 0.0)
        assert said.numbers[rank, "output/y"] == Numbers(64, 64, 0.0, 1.0)
    assert said.last == "does not agree: grad/x on rank 0; grad/x on rank 1"
    assert said.text.startswith("torch 2.11.0")
    assert "deepspeed 0.19.6," in said.text.splitlines()[0]


@pytest.mark.slow
def test_the_same_script_agrees_where_the_release_is_right(traced: Run, tmp_path: Path) -> None:
    (row,) = traced.rows
    text = script_of(traced, row).replace('torch.compile(call, backend="aot_eager")', "call")
    said = run_script(text, row, traced.settings.home, tmp_path / "script")
    assert (said.last, said.status) == ("agrees", 0)


@pytest.mark.slow
def test_torchs_own_collectives_need_no_subject_over_either_transport(tmp_path: Path) -> None:
    over = ("gloo", "nccl-dispatch")
    run = run_tree(tmp_path / "home", "torch", [runtime(OLD_TORCH)], cases=[DETACHED, GATHERED], transports=over)
    verdict, said = compared(run, DETACHED, tmp_path / "a")
    assert verdict == "no_gradient"  # the public report #152127 of PyTorch
    assert "rank 0 grad/x: shape None, expected [2, 2, 4, 4]" in said.text
    for transport in over:
        compared(run, GATHERED, tmp_path / transport, transport)


def test_a_release_that_cannot_be_imported_shows_the_error(tmp_path: Path) -> None:
    run = run_release(tmp_path / "home", RELEASE, OLD_TORCH, cases=[DIM0])
    (row,) = run.rows
    assert row.verdict == "unimportable"
    said = run_script(script_of(run, row), row, run.settings.home, tmp_path / "script")
    # torch.library.custom_op came with torch 2.4: torch's release notes.
    assert said.last.startswith("does not agree: the import raises AttributeError: ")
    assert "custom_op" in said.last
    assert said.status == 1
