"""What a host leases out: GPUs as they are wired, CPU slots, or an error that says what is broken."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from service.config import Settings
from tests.support.nvml import FakeNvml, Gpu, machine
from workers.gpus import CpuSlots, Gpus, NvmlBrokenError, find_inventory, local_host


def test_a_host_without_gpus_offers_its_slots(tmp_path: Path) -> None:
    host = local_host(Settings(home=tmp_path, cpu_slots=3))
    assert host.devices == ("cpu:0", "cpu:1", "cpu:2")
    assert host.shares and "nccl" not in host.transports
    assert host.wall_cap_s == Settings(home=tmp_path).deadlines.attempt_s
    assert local_host(Settings(home=tmp_path), CpuSlots(1)).devices == ("cpu:0",)


def test_gpus_are_named_by_uuid_in_the_order_of_the_bus(tmp_path: Path) -> None:
    inventory = find_inventory(Settings(home=tmp_path), gpus=True, library=machine(8))
    host = local_host(Settings(home=tmp_path), inventory)
    assert host.devices == tuple(f"GPU-{place}" for place in range(8)), "the driver numbers them the other way round"
    assert (host.shares, host.transports) == (False, ("nccl",))
    assert isinstance(inventory, Gpus)
    assert inventory.driver == "570.0"
    assert set(inventory.models.values()) == {"NVIDIA H200"}


@pytest.mark.parametrize(
    ("setting", "asked", "leased"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_who_leases_gpus(tmp_path: Path, setting: bool | None, asked: bool, leased: bool) -> None:
    found = find_inventory(Settings(home=tmp_path, gpus=setting), gpus=asked, library=machine(2))
    assert isinstance(found, Gpus) is leased


@pytest.mark.parametrize("library", [FakeNvml(), FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)])
def test_a_host_without_driver_or_gpus_is_one_of_slots_unless_it_is_to_have_some(
    tmp_path: Path, library: FakeNvml
) -> None:
    assert find_inventory(Settings(home=tmp_path, cpu_slots=2), gpus=True, library=library) == CpuSlots(2)
    with pytest.raises(NvmlBrokenError, match="is to lease its GPUs"):
        find_inventory(Settings(home=tmp_path, gpus=True), library=library)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH])
def test_a_driver_that_does_not_work_makes_no_host_of_slots(tmp_path: Path, code: int) -> None:
    with pytest.raises(NvmlBrokenError, match="installed here and does not work"):
        find_inventory(Settings(home=tmp_path), gpus=True, library=FakeNvml([Gpu("GPU-0", "0")], init=code))


def test_a_gpu_that_does_not_say_who_it_is_is_left_out(tmp_path: Path) -> None:
    fake = machine(3)
    fake.gpus[1].errors["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert find_inventory(Settings(home=tmp_path), gpus=True, library=fake).devices() == ("GPU-0", "GPU-2")
