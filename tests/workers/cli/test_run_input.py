"""What `run` refuses, and that it does so before anything is fetched, built or stored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.cli.conftest import Gradmatrix

GOOD = ("run", "deepspeed==0.18.3", "--torch", "2.11.0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "name at least one subject to test: "),
        (
            ("run", "deepspeed==0.18.3"),
            "say on which torch (--torch V): a version, a range, latest or all; there are 2.2.2, 2.3.1, 2.4.1, 2.5.1",
        ),
        ((*GOOD[:2], "--torch", "2.11.1"), "torch 2.11.1 is not in the catalogue: did you mean 2.11.0"),
        (
            (*GOOD, "--mode", "aot"),
            "mode 'aot' is not known: did you mean aot_eager? there are eager, aot_eager, inductor",
        ),
        ((*GOOD, "--world-size", "3"), "world size '3' is not known: the nearest is 2; there are 2, 4, 8"),
        ((*GOOD, "--world-size", "16"), "world size '16' is not known: the nearest is 8; there are 2, 4, 8"),
        ((*GOOD, "--world-size", "two"), "world size 'two' is not known: there are 2, 4, 8"),
        ((*GOOD, "--world-size", "-2"), "world size '-2' is not known: there are 2, 4, 8"),
        ((*GOOD, "--transport", "glo"), "transport 'glo' is not known: did you mean gloo"),
        ((*GOOD, "--transport", "nccl"), "no host here has nccl, for want of a GPU; there is: gloo, nc"),
        (("run", "torch==2.11.0", "--torch", "2.11.0"), "as a subject torch has no version: name it torch"),
        (("run", "torch>=2", "--torch", "2.11.0"), "as a subject torch has no version: name it torch"),
        ((*GOOD, "--mode", "jit"), "mode 'jit' is not known: there are eager, aot_eager, inductor"),
        ((*GOOD, "--case", "torch-itself/*"), "of it; family torch-itself is of the subject torch alone"),
        (("run", "torch", "--torch", "2.11.0", "--case", "exchange/*"), "of it; only family torch-itself is"),
        ((*GOOD, "--case", "exchange/dim1*"), "no case fits 'exchange/dim1*': did you mean exchange/dim0"),
        (("run", "deepsped==0.18.3x!", "--torch", "2.11.0"), "'0.18.3x!' is no version"),
        (("run", "./nowhere", "--torch", "2.11.0"), "there is no such folder"),
        (("run", "deepspeed", "--torch", "2.11.0"), "name one exact version: deepspeed==VERSION"),
        (("run", "--resume"), "there is nothing to resume: nothing was ever run here"),
        ((*GOOD, "--resume"), "so SUBJECT, --torch cannot stand beside it"),
        (("run", "--resume", "--mode", "eager"), "so --mode cannot"),
        (("run", "--resume", "--case", "dim0"), "so --case cannot"),
        (("run", "--resume", "--world-size", "4"), "so --world-size cannot"),
        (("run", "--resume", "--transport", "gloo"), "so --transport cannot"),
        (("run", "--resume", "--rerun"), "so --rerun cannot"),
    ],
)
def test_bad_input_is_one_error_that_names_what_would_be_right(
    gradmatrix: Gradmatrix, home: Path, words: tuple[str, ...], said: str
) -> None:
    status, out, err = gradmatrix(*words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("gradmatrix: ")
    assert "Traceback" not in err
    assert not (home / "checkouts").exists()
    assert not (home / "runtimes").exists()


def test_a_misspelt_setting_is_named_with_the_nearest(gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADMATRIX_VARIAN", "cpu")
    status, _, err = gradmatrix(*GOOD)
    assert status == 2
    assert "GRADMATRIX_VARIANT" in err


def test_the_installed_script_ends_with_the_same_status(home: Path) -> None:
    code = "from workers.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "deepspeed==0.18.3", "--torch", "9.9"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gradmatrix: torch 9.9 is not in the catalogue: ")
