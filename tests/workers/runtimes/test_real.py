"""Real runtimes: what the catalogue's bounds and exclusions are for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from service.config import load_settings
from tests.support.runtimes import runtime
from workers.runtimes.process import clean_environment
from workers.runtimes.venv import VenvExecutor

USE = """
import importlib.util, numpy, torch
assert importlib.util.find_spec("triton") is None, "triton would fail by itself where there is no GPU"
print(torch.from_numpy(numpy.arange(4.0)).mul(2).numpy().tolist(), torch.distributed.is_gloo_available())
"""


@pytest.mark.torch
@pytest.mark.parametrize("name", ["2.2.2-index", "2.13.0-cpu"])
def test_torch_and_numpy_work_together_without_triton(name: str, tmp_path: Path) -> None:
    spec = runtime(name)
    executor = VenvExecutor(load_settings())
    check = executor.check(spec)
    assert check.problems == ()
    assert check.torch.startswith(spec.torch)
    assert len(check.git) == 40
    done = subprocess.run(
        [executor.python(spec), "-I", "-W", "error", "-c", USE],
        env=clean_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("[0.0, 2.0, 4.0, 6.0] True\n", 0), done.stderr
