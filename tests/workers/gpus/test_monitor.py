"""Every rule of health, told by a stand-in for NVML, and what is not a rule's business."""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml
import pytest

from tests.support.nvml import FakeNvml, Gpu, machine
from workers.gpus import Monitor
from workers.gpus.health import APPLICATION_XIDS, RULES, Rule

BOTH = ("GPU-0", "GPU-1")


def watched(fake: FakeNvml, patience_s: float = 0.0) -> Monitor:
    return Monitor(fake, BOTH, patience_s=patience_s)


def found(monitor: Monitor, *ours: int) -> list[tuple[str, str, str]]:
    return [(one.device, one.rule, one.blame) for one in monitor.look(BOTH, lambda: ours)]


def lose(fake: FakeNvml, gpu: Gpu) -> None:
    gpu.lost = pynvml.NVML_ERROR_GPU_IS_LOST


HAPPENS: dict[str, Callable[[FakeNvml, Gpu], object]] = {
    "lost": lose,
    "deaf": lambda fake, gpu: gpu.errors.update(nvmlDeviceRegisterEvents=pynvml.NVML_ERROR_NOT_SUPPORTED),
    "divided": lambda fake, gpu: setattr(gpu, "mig", 1),
    "uncorrected": lambda fake, gpu: setattr(gpu, "uncorrected", 3),
    "remap_failed": lambda fake, gpu: setattr(gpu, "rows", (0, 1, 0, 1)),
    "remap_pending": lambda fake, gpu: setattr(gpu, "rows", (0, 1, 1, 0)),
    "xid": lambda fake, gpu: fake.report(gpu, 94),
    "foreign": lambda fake, gpu: gpu.processes.add(77),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_thing_that_can_be_wrong_is_found_on_its_gpu(rule: Rule) -> None:
    fake = machine(2)
    gpu = fake.nvmlDeviceGetHandleByUUID("GPU-1")
    if rule.name == "deaf":
        HAPPENS[rule.name](fake, gpu)
    with watched(fake) as monitor:
        if rule.name != "deaf":
            assert found(monitor) == []
            HAPPENS[rule.name](fake, gpu)
        assert found(monitor) == [("GPU-1", rule.name, rule.blame)]
    assert fake.sets[0].freed


def test_the_rules_are_all_tried() -> None:
    assert [rule.name for rule in RULES] == list(HAPPENS)


@pytest.mark.parametrize("xid", APPLICATION_XIDS)
def test_a_fault_of_a_program_drains_no_gpu_and_hides_none_that_does(xid: int) -> None:
    fake = machine(2)
    with watched(fake) as monitor:
        fake.report(fake.gpus[0], xid)
        assert found(monitor) == []
        fake.report(fake.gpus[0], 48)
        fake.report(fake.gpus[0], xid)
        assert found(monitor) == [("GPU-1", "xid", "sick")]


def test_errors_from_before_do_not_count_and_new_ones_do_until_they_are_told() -> None:
    fake = machine(2)
    gpu = fake.gpus[0]
    gpu.uncorrected = 5
    with watched(fake) as monitor:
        assert found(monitor) == []
        gpu.uncorrected = 6
        fake.report(gpu, 79)
        assert [rule for _, rule, _ in found(monitor)] == ["uncorrected", "xid"]
        assert [rule for _, rule, _ in found(monitor)] == ["uncorrected", "xid"], "asking changes nothing"
        monitor.told(["GPU-1"])
        assert found(monitor) == []
        gpu.uncorrected = 7
        assert [rule for _, rule, _ in found(monitor)] == ["uncorrected"]


def test_a_gpu_that_does_not_count_such_things_is_well() -> None:
    fake = machine(2)
    optional = ("nvmlDeviceGetMigMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows")
    fake.gpus[0].errors.update(dict.fromkeys(optional, pynvml.NVML_ERROR_NOT_SUPPORTED))
    with watched(fake) as monitor:
        assert found(monitor) == []
        fake.gpus[0].errors["nvmlDeviceGetTotalEccErrors"] = pynvml.NVML_ERROR_UNKNOWN
        assert found(monitor) == [("GPU-1", "lost", "sick")]


def test_an_xid_of_a_gpu_that_cannot_be_told_may_be_anybodys() -> None:
    fake = machine(2)
    with watched(fake) as monitor:
        fake.gpus[0].errors["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_GPU_IS_LOST
        fake.report(fake.gpus[0], 79)
        assert found(monitor) == [("GPU-0", "xid", "sick"), ("GPU-1", "xid", "sick")]


def test_when_nothing_can_be_heard_any_more_no_gpu_is_trusted() -> None:
    fake = machine(2)
    with watched(fake) as monitor:
        fake.wait = pynvml.NVML_ERROR_UNKNOWN
        deadline = time.monotonic() + 20
        while not found(monitor) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [rule for _, rule, _ in found(monitor)] == ["deaf", "deaf"]


def test_our_own_processes_may_be_there_and_what_was_killed_has_some_time() -> None:
    fake = machine(2)
    gpu = fake.gpus[0]
    asked: list[int] = []

    class Slow(FakeNvml):
        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
            asked.append(1)
            if len(asked) > 6:
                gpu.processes.clear()
            return super().nvmlDeviceGetHandleByUUID(uuid)

    gpu.processes = {5}
    with watched(Slow(fake.gpus), patience_s=60.0) as monitor:
        assert found(monitor, 5) == []
        assert found(monitor) == []
    assert len(asked) > 6


def test_a_busy_gpu_rests_until_it_is_free() -> None:
    fake = machine(2)
    fake.gpus[0].processes = {77}
    with watched(fake) as monitor:
        monitor.rest(["GPU-1"])
        assert monitor.resting() == {"GPU-1"}
        fake.gpus[0].processes.clear()
        assert monitor.resting() == frozenset()
