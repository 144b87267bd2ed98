"""The diagnosis where people and programs meet it: ``show CELL``, ``--json`` and the sentences of a submission."""

from __future__ import annotations

import json
from pathlib import Path

from service.evidence import Blob
from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.state import judgement, submit


def test_a_red_cell_is_diagnosed_and_a_green_one_is_not(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    _, out, _ = gradmatrix("show", "s1", "--json", "-")
    cells = json.loads(out)
    (fault,) = [cell for cell in cells if cell["verdict"] == "zero_gradient"]
    found = fault["diagnosis"]
    assert found["tensors"] == {"dead": ["x"]}
    assert found["what"] == "x receives no gradient (0 of 8 elements are non-zero on each rank)"
    assert found["training"].endswith("so that the loss will look healthy")
    assert found["eager"].endswith("only the traced call is wrong")
    assert (found["torch"]["last_good"], found["torch"]["first_bad"]) == ("2.9.1", "2.11.0")
    assert (found["release"]["first_bad"], found["release"]["fixed_in"]) == ("deepspeed==0.18.3", "deepspeed==0.19.8")
    assert [cell["diagnosis"] for cell in cells if cell["verdict"] == "agree"] == [None] * 7
    lines = gradmatrix("show", str(fault["cell"]))[1].splitlines()
    start = lines.index("diagnosis")
    assert lines[start + 1] == f"  what: {found['what']}"
    (eager,) = [line for line in lines if line.startswith("  eager: agrees (cell ")]
    assert eager.endswith("): only the traced call is wrong")
    assert any(
        line.startswith("  release: no good one before it is known, first bad deepspeed==0.18.3") for line in lines
    )
    right = next(cell["cell"] for cell in cells if cell["verdict"] == "agree")
    assert "diagnosis" not in gradmatrix("show", str(right))[1].splitlines()


def test_the_sentences_say_what_it_means_for_training_once(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    text = " ".join(gradmatrix("show", "s1")[1].split())
    assert text.count("training: some or all of what comes before it will not be trained through this call") == 1


def test_a_crash_that_was_stored_without_its_last_words_shows_those_of_its_log(
    home: Path, gradmatrix: Gradmatrix
) -> None:
    log = Blob(
        "log", "log", b"FutureWarning: x\nterminate called\n  what():  [enforce fail at /a/b/pair.cc:4] 8 vs\x1b 4\n"
    )
    died = judgement("crash", forward_ok=None, detail="rank 0 died, in forward (killed by SIGABRT)", error=None)
    submit(home, answers={("deepspeed==0.18.3", "2.11.0", "eager"): (died, (log,))})
    cells = json.loads(gradmatrix("show", "s1", "--json", "-")[1])
    (crash,) = [cell for cell in cells if cell["verdict"] == "crash"]
    words = "last words: [enforce fail at pair.cc:4] 8 vs\\x1b 4"
    assert crash["diagnosis"]["what"] == f"{died.detail}; {words}"
    assert words in " ".join(gradmatrix("show", str(crash["cell"]))[1].split())
