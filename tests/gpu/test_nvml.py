"""NVML itself, where there is a GPU: what the stand-in in tests/support/nvml.py is a stand-in for."""

from __future__ import annotations

import pytest

from workers.gpus import Monitor, NvmlBrokenError, gpus_of
from workers.gpus.nvml import load

pytestmark = pytest.mark.gpu


def test_the_gpus_of_this_machine_are_named_looked_at_and_listened_to() -> None:
    try:
        library = load()
    except NvmlBrokenError as error:
        pytest.skip(str(error))
    if library is None:
        pytest.skip("no NVIDIA driver is installed on this machine")
    inventory = gpus_of(library)
    if not inventory.models:
        pytest.skip("the driver lists no GPU")
    assert all(name.startswith("GPU-") for name in inventory.devices())
    assert inventory.driver.split(".")[0].isdecimal()
    with Monitor(library, inventory.devices(), patience_s=0.0) as monitor:
        found = monitor.look(inventory.devices())
    assert {problem.rule for problem in found} <= {"foreign", "divided"}, "a GPU that CI uses is well"
