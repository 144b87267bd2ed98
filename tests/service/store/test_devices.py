"""Devices: recorded in their places, out of service when they are sick, and back when a person says so."""

from __future__ import annotations

import dataclasses

import pytest

from service import store
from service.claims import HostView
from service.store import DeviceView, NotFound
from service.store.devices import GONE
from tests.service.store.test_numbers import said
from tests.support.stored import World, at, host


def gpus(*names: str) -> HostView:
    return dataclasses.replace(host(), devices=names, shares=False)


def record(world: World, machine: HostView, seconds: float = 0.0) -> tuple[str, ...]:
    with world.db.session() as session:
        return store.record_devices(session, machine, {"A": "NVIDIA H200"}, at(seconds))


def quarantine(world: World, reasons: dict[str, str], seconds: float = 0.0) -> None:
    with world.db.session() as session:
        store.quarantine(session, "here", reasons, at(seconds))


def devices(world: World) -> tuple[DeviceView, ...]:
    with world.db.read() as session:
        (found,) = store.hosts(session)
    return found.devices


def states(world: World) -> dict[str, str]:
    return {device.name: device.state for device in devices(world)}


def test_what_a_host_has_is_known_with_what_runs_on_it(world: World) -> None:
    assert record(world, gpus("A", "B", "C", "D")) == ("A", "B", "C", "D")
    world.submit(["a"])
    (job,) = world.claimed(1, gpus("A", "B", "C", "D")).jobs
    assert devices(world) == (
        DeviceView("A", "NVIDIA H200", "well", "", at(0), (job.job,)),
        DeviceView("B", "", "well", "", at(0), (job.job,)),
        DeviceView("C", "", "well", "", at(0), ()),
        DeviceView("D", "", "well", "", at(0), ()),
    )


def test_a_sick_device_gets_no_job_until_a_person_says_that_it_is_well(world: World) -> None:
    machine = gpus("A", "B", "C", "D")
    record(world, machine)
    quarantine(world, {"B": "reported Xid 79"}, 5)
    quarantine(world, {"B": "something else"}, 6)
    world.submit(["a"])
    world.submit(["b"], sizes=[4])
    claim = world.claimed(10, machine)
    assert claim.devices == ("C", "D"), "A alone is no block, and what is left keeps its places"
    (job,) = claim.jobs
    world.answer(job, job.cells[0].cell)
    world.finish(job, 11)
    assert world.claim(20, machine) is None, "three of four are well: a job of four is not run here"
    assert world.view(2).jobs[0].state == "queued"
    assert [(d.name, d.reason, d.since) for d in devices(world) if d.state == "sick"] == [
        ("B", "reported Xid 79", at(5))
    ]
    assert said(world, 30)["devices_sick", "here"] == 1
    with world.db.session() as session:
        view = store.set_device(session, "here", "B", "well", "mended", at(40))
    assert (view.state, view.reason, view.since) == ("well", "mended", at(40))
    assert world.claimed(50, machine).devices == ("A", "B", "C", "D")


def test_a_device_that_is_sick_while_it_is_used_is_out_when_it_is_free(world: World) -> None:
    machine = gpus("A", "B")
    record(world, machine)
    world.submit(["a", "b"], torch=["2.9.1", "2.11.0"])
    (job,) = world.claimed(0, machine).jobs
    quarantine(world, {"A": "ill"})
    for spec in job.cells:
        world.answer(job, spec.cell)
    assert world.finish(job, 1) == "done"
    assert world.claim(2, machine) is None


def test_what_is_at_rest_is_out_as_well(world: World) -> None:
    world.submit(["a"])
    resting = dataclasses.replace(gpus("A", "B", "C", "D"), out=frozenset({"A"}))
    record(world, resting)
    assert world.claimed(0, resting).devices == ("C", "D")


def test_a_gpu_that_is_gone_keeps_its_place_and_one_that_comes_back_is_still_sick(world: World) -> None:
    record(world, gpus("A", "B", "C", "D"))
    assert record(world, gpus("A", "C", "D"), 10) == ("A", "B", "C", "D")
    assert states(world) == {"A": "well", "B": "sick", "C": "well", "D": "well"}
    (gone,) = [device for device in devices(world) if device.state == "sick"]
    assert (gone.reason, gone.since) == (GONE, at(10))
    assert record(world, gpus("A", "B", "C", "D"), 20) == ("A", "B", "C", "D")
    assert states(world)["B"] == "sick"


def test_a_new_gpu_has_the_place_where_it_is_plugged_in(world: World) -> None:
    record(world, gpus("A", "B", "C", "D"))
    for seconds in (10, 20):
        places = record(world, gpus("A", "X", "C", "D"), seconds)
        assert places[:4] == ("A", "X", "C", "D")
    assert list(states(world)) == ["A", "X", "C", "D", "B"]
    assert record(world, gpus("A", "X", "D"), 30)[:4] == ("A", "X", "C", "D")


def test_a_cpu_slot_that_is_not_offered_any_more_is_forgotten(world: World) -> None:
    record(world, host(3))
    quarantine(world, {"cpu:1": "slow"})
    assert record(world, host(2)) == ("cpu:0", "cpu:1")
    assert states(world) == {"cpu:0": "well", "cpu:1": "sick"}
    record(world, gpus("A"))
    assert states(world) == {"cpu:0": "well", "cpu:1": "sick", "A": "well"}, "slots and GPUs do not replace each other"


def test_a_device_or_host_that_is_not_there_is_told(world: World) -> None:
    record(world, gpus("A"))
    for name, device in (("here", "B"), ("there", "A")):
        with world.db.session() as session, pytest.raises(NotFound):
            store.set_device(session, name, device, "well", "")
