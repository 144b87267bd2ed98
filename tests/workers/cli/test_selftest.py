"""The command around a self-test: what it prints and answers, with verdicts that a stand-in for the process gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.contract import ControlInfo
from service.detection import Trial, is_clean
from service.judge import ControlVerdict, Judgement
from service.verdicts import Verdict
from tests.workers.cli.conftest import Gradmatrix
from workers import selftest
from workers.runtimes.venv import VenvExecutor

Judge = Callable[[ControlInfo, Trial], str]


def verdict(word: str, ok: bool) -> ControlVerdict:
    said = Judgement(Verdict(word), True, "", "the detail", None, None, None, None, None, "1")
    return ControlVerdict(ok, said)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Judge], None]:
    """Have every trial end as ``judge`` says, on a runtime that counts as built."""

    def install(judge: Judge, compiler: str | None = "g++") -> None:
        def run(
            test: selftest.SelfTest, seed: int, heard: Callable[[int], None] = lambda count: None
        ) -> selftest.Tried:
            tried = selftest.Tried(facts={"compiler": compiler})
            cases = {case.id: case for case in test.catalogue.cases}
            for control in test.catalogue.controls:
                for size in test.world_sizes if control.family in test.families else ():
                    for mode in control.modes if cases[control.case].runs_at(size) else ():
                        if mode != "inductor" or compiler:
                            word = judge(control, (control.id, mode, size, seed))
                            tried.found[control.id, mode, size, seed] = verdict(word, word in control.expected)
            heard(len(tried.found))
            return tried

        monkeypatch.setattr(selftest.SelfTest, "run", run)
        monkeypatch.setattr(VenvExecutor, "ready", lambda *_: True)

    return install


def right(control: ControlInfo, trial: Trial) -> str:
    return control.expected[0]


def test_all_caught_and_no_alarm_is_0_with_a_table_of_mutants_and_types(
    gradmatrix: Gradmatrix, judged: Callable[[Judge], None]
) -> None:
    judged(right)
    words = ("--selftest", "--torch", "2.11.0", "--seeds", "2", "--family", "exchange")
    status, out, err = gradmatrix("cases", *words)
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert status == 0
    assert out.startswith("torch 2.11.0 · 2 seeds · 2 and 4 ranks")
    assert lines["dim0.zeroed"] == ["4/4"] * 4
    assert lines["float64"] == ["float32", "float16", "bfloat16"]
    assert "torch-itself" not in out
    assert "; 0 false alarms in" in out.splitlines()[-1]
    assert "seed 2 of 2" in err


def test_a_mutant_that_passes_is_1_and_is_named(gradmatrix: Gradmatrix, judged: Callable[[Judge], None]) -> None:
    judged(lambda control, trial: "agree" if ".stale" in control.id and trial[3] == 1 else control.expected[0])
    status, out, _ = gradmatrix("cases", "--selftest", "--torch", "2.11.0", "--family", "exchange", "--world-size", "2")
    assert status == 1
    assert "exchange/dim0.stale eager, 2 ranks, seed 1: agree, should be mismatch: the detail" in out
    assert "seed 2: agree" not in out


def test_a_false_alarm_is_1_and_is_named(gradmatrix: Gradmatrix, judged: Callable[[Judge], None]) -> None:
    judged(lambda control, trial: "scaled" if is_clean(control) and trial[2] == 4 else control.expected[0])
    status, out, _ = gradmatrix("cases", "--selftest", "--torch", "2.11.0", "--seeds", "1")
    assert status == 1
    assert "false alarms" in out
    assert "4 ranks, seed 0: scaled, should be agree" in out


def test_the_json_and_the_page_say_the_same(
    gradmatrix: Gradmatrix, judged: Callable[[Judge], None], tmp_path: Path
) -> None:
    judged(lambda control, trial: "agree" if ".swapped" in control.id else control.expected[0])
    page, data = tmp_path / "detection.md", tmp_path / "detection.json"
    words = ("--torch", "2.11.0", "--seeds", "1", "--family", "exchange", "--markdown", str(page), "--json", str(data))
    assert gradmatrix("cases", "--selftest", *words)[0] == 1
    said = json.loads(data.read_text())
    assert (said["ok"], said["seeds"], said["world_sizes"], said["torch"]) == (False, 1, [2, 4], "2.11.0")
    assert {miss["control"].partition("[")[0] for miss in said["missed"]} == {
        "exchange/dim0.swapped",
        "exchange/seq_head.swapped",
    }
    text = page.read_text()
    assert "| exchange/dim0.swapped | 0/2 | 0/2 | 0/2 | 0/2 | two dimensions of the gradient are swapped |" in text
    assert "| exchange/dim0.zeroed | 2/2 | 2/2 | 2/2 | 2/2 | the gradient is zero |" in text
    assert "## Not caught" in text
    assert "--seeds 1" in text


def test_without_a_compiler_inductor_is_left_out_and_that_is_said(
    gradmatrix: Gradmatrix, judged: Callable[..., None]
) -> None:
    judged(right, compiler=None)
    status, out, _ = gradmatrix("cases", "--selftest", "--torch", "2.11.0", "--seeds", "1")
    assert status == 0
    assert "no control ran in inductor" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--selftest", "--seeds", "0"), "--seeds 0: at least one is needed"),
        (("--selftest", "--family", "exchanged"), "'exchanged' is not known: did you mean exchange"),
        (("--selftest", "--world-size", "3"), "world size 3 is not known: there are 2, 4, 8"),
        (("--selftest", "--torch", "2.10..2.11"), "is 2 runtimes; a self-test runs on one"),
        (("--selftest", "exchange/*"), "a GLOB lists cases, and does not go with --selftest"),
        (("--selftest", "--coverage", "."), "ask one at a time"),
        (("--seeds", "3"), "--seeds belongs to --selftest"),
        (("--selftest", "--markdown", "/no/such/folder/x.md"), "cannot write /no/such/folder/x.md"),
    ],
)
def test_misuse_is_2_and_says_what_would_be_right(
    gradmatrix: Gradmatrix, judged: Callable[[Judge], None], words: tuple[str, ...], said: str
) -> None:
    judged(right)
    status, out, err = gradmatrix("cases", *words)
    assert (status, out) == (2, "")
    assert said in err


def test_without_a_runtime_it_says_how_to_build_one(gradmatrix: Gradmatrix) -> None:
    status, _, err = gradmatrix("cases", "--selftest")
    assert status == 2
    assert "no runtime is built yet" in err
