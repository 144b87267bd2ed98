"""The self-test on real torch: every control of two families behaves, and one that does not is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cases import CaseCatalogue, catalogue
from service.config import Settings, load_settings
from service.detection import Detection, Setting, detection
from service.policy import load_policy
from tests.support.processes import processes_in
from tests.support.runtimes import runtime
from workers.runtimes.venv import VenvExecutor
from workers.selftest import SelfTest, SelfTestError, Tried

pytestmark = pytest.mark.torch
RUNTIME = "2.11.0-index"


def run_once(home: Path, known: CaseCatalogue, *families: str, size: int = 2, seed: int = 0) -> Tried:
    settings = Settings(home=home)
    executor = VenvExecutor(load_settings())
    test = SelfTest(settings, executor, runtime(RUNTIME), known, load_policy(), families, (size,))
    return test.run(seed)


def table(known: CaseCatalogue, tried: Tried, *families: str) -> Detection:
    controls = [control for control in known.controls if control.family in families]
    cases = {case.id: case for case in known.cases}
    return detection(controls, cases, Setting("2.11.0", (2,), 1), tried.found)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """Both families, with the values of everything that is stored."""
    home = tmp_path_factory.mktemp("selftest")
    tried = run_once(home, catalogue(), "exchange", "torch-itself")
    assert not processes_in(home)
    return tried


def test_every_control_of_the_exchange_and_of_torch_itself_behaves(first: Tried) -> None:
    found = table(catalogue(), first, "exchange", "torch-itself")
    assert [miss.sentence for miss in (*found.missed, *found.alarms)] == []
    assert {line.family for line in found.mutants} == {"exchange", "torch-itself"}
    assert {mode for _, mode, _, _ in first.found} == {"eager", "aot_eager", "inductor"}


def test_another_seed_gives_other_values_and_the_same_verdicts(first: Tried, tmp_path: Path) -> None:
    second = run_once(tmp_path, catalogue(), "exchange", seed=1)
    errors = [
        {trial[:3]: said.judgement.error for trial, said in one.found.items() if "exchange/dim0.stale" in trial[0]}
        for one in (first, second)
    ]
    assert errors[0].keys() == errors[1].keys()
    assert all(errors[0][trial] != errors[1][trial] for trial in errors[0])
    assert all(said.ok for said in second.found.values())


def test_a_job_that_does_not_come_to_its_end_is_an_error_and_no_table(tmp_path: Path) -> None:
    with pytest.raises(SelfTestError, match=r"seed 0: the controls did not come to their end: .*no family is called"):
        run_once(tmp_path, catalogue(), "nothing")
