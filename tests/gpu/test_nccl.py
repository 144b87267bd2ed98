"""What fits on the GPUs of this machine: one alone, and real subjects on 2, 4 and 8 of them. Minutes, not hours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from service.config import load_settings
from tests.jobs.inside import answer_of
from tests.support.runtimes import runtime
from workers.gpus import NvmlBrokenError, gpus_of
from workers.gpus.nvml import load
from workers.runtimes.venv import VenvExecutor

pytestmark = pytest.mark.gpu

TORCH = "2.11.0-index"
WORLD_SIZES = (2, 4, 8)
CASES = ("exchange/*", "attention/distributed*overlap=stream*", "torch-itself/*")


@pytest.fixture(scope="module")
def gpus() -> int:
    """How many there are; skips where there is none."""
    try:
        library = load()
    except NvmlBrokenError as error:
        pytest.skip(str(error))
    count = 0 if library is None else len(gpus_of(library).devices())
    if not count:
        pytest.skip("no NVIDIA GPU is on this machine")
    return count


def test_one_gpu_keeps_what_is_promised_of_a_device(gpus: int, tmp_path: Path) -> None:
    said = answer_of("tests/gpu/device_inside.py", TORCH, str(tmp_path), timeout=240)
    assert said == {
        "product": True,
        "bytes": True,
        "exchanged": [0.0, 1.0, 2.0, 3.0],
        "value": 2.0,
        "waits": {"main": True, "side": True},
        "does not wait": {"main": False, "side": False},
        "recorder": True,
    }


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_known_fault_and_no_other_is_found_over_nccl(gpus: int, world_size: int, tmp_path: Path) -> None:
    if gpus < world_size:
        pytest.skip(f"{world_size} ranks need a GPU each, and there are {gpus}")
    runtime(TORCH)
    out = tmp_path / "cells.json"
    words = ["run", "torch", "deepspeed==0.18.3", "--torch", "2.11.0", "--transport", "nccl", "--json", str(out)]
    cases = [word for glob in CASES for word in ("--case", glob)]
    command = [str(Path(sys.executable).with_name("gradmatrix")), *words, "--world-size", str(world_size), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    cells = json.loads(out.read_text())
    found = Counter(cell["verdict"] for cell in cells)
    assert not found.keys() & {"infra", "invalid", "hang", "crash", "nondeterministic", "leak"}, found
    red = {cell["case"].partition("[")[0] for cell in cells if cell["verdict"] == "zero_gradient"}
    assert red == {"exchange/dim0"}, "the traced exchange of 0.18.3 has no gradient"
    assert all(cell["mode"] != "eager" for cell in cells if cell["verdict"] == "zero_gradient")


def test_the_runtimes_of_this_machine_can_use_its_gpus(gpus: int) -> None:
    python = VenvExecutor(load_settings()).python(runtime(TORCH))
    asked = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) == gpus
