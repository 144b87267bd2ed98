"""The border and its stand-in, held against pynvml: the same names, the same parameters."""

from __future__ import annotations

import inspect

import pynvml
import pytest

from tests.support.nvml import Event, FakeNvml, machine
from workers.gpus import nvml
from workers.gpus.nvml import Library

FUNCTIONS = [name for name in vars(Library) if name.startswith("nvml")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_called_as_pynvml_has_it(name: str) -> None:
    real = list(inspect.signature(getattr(pynvml, name)).parameters)
    assert list(inspect.signature(getattr(Library, name)).parameters) == ["self", *real]
    assert list(inspect.signature(getattr(FakeNvml, name)).parameters) == ["self", *real]


def test_the_stand_in_has_nothing_that_the_border_does_not_use() -> None:
    assert len(FUNCTIONS) > 12
    assert {name for name in vars(FakeNvml) if name.startswith("nvml")} == set(FUNCTIONS)


def test_what_is_read_of_an_event_and_a_place_is_there() -> None:
    assert {"device", "eventType", "eventData"} <= {name for name, _ in pynvml.c_nvmlEventData_t._fields_}
    assert "busId" in {name for name, *_ in pynvml.nvmlPciInfo_t._fields_}


def test_the_stand_in_fails_as_nvml_does() -> None:
    fake = machine(1)
    with pytest.raises(nvml.NVMLError) as caught:
        fake.nvmlDeviceGetHandleByUUID("GPU-9")
    assert nvml.code(caught.value) == pynvml.NVML_ERROR_NOT_FOUND
    fake.gpus[0].lost = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(nvml.NVMLError):
        fake.nvmlDeviceGetComputeRunningProcesses(fake.gpus[0])


def test_of_several_events_that_nobody_waited_for_the_newest_xid_is_told() -> None:
    """As NVML's reference says of nvmlEventSetWait: why somebody has to wait all the while."""
    fake = machine(1)
    events = fake.nvmlEventSetCreate()
    fake.nvmlDeviceRegisterEvents(fake.gpus[0], nvml.XID_EVENTS, events)
    with pytest.raises(nvml.NVMLError) as caught:
        fake.nvmlEventSetWait_v2(events, 0)
    assert nvml.code(caught.value) == nvml.TIMEOUT
    for xid in (79, 31):
        events.waiting.append(Event(fake.gpus[0], nvml.XID_EVENTS, xid))
    assert [fake.nvmlEventSetWait_v2(events, 0).eventData for _ in range(2)] == [31, 31]
