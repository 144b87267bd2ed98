"""A GPU that is at fault, through the whole line: loop, attempt, judge, store. Only NVML and containers are played."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest
import sqlalchemy as sa

from jobs.contract import AttemptSpec
from service import store
from service.broker import LocalBroker
from service.cases import CaseCatalogue
from service.catalog import Catalog
from service.config import Settings
from service.matrix import plan
from service.models import Attempt, Job
from service.store import DeviceView
from tests.support.nvml import FakeNvml, Gpu, machine
from tests.support.stored import World, checkout, open_world, runtime
from tests.workers.matter import CASE, CONTROL, TRACE, cell_events, event, opening, zeroed
from tests.workers.scripted import PID, Scripted
from workers.gpus import Monitor, gpus_of, local_host
from workers.loop import Loop

Between = Callable[[tuple[str, ...]], object]
RIGHT, WRONG = "eager", "aot_eager"


def nothing(devices: tuple[str, ...]) -> None:
    """As it should be."""


def played(
    fake: FakeNvml, *, begun: Between = nothing, seen: Between = nothing, over: Between = nothing
) -> Callable[[AttemptSpec, tuple[str, ...]], Iterator[Mapping[str, Any]]]:
    """A container in which the eager cell agrees and the traced one has a zero gradient.

    ``begun`` happens before its cells, ``seen`` when the worker has seen both once, ``over`` when it has ended.
    """

    def script(spec: AttemptSpec, devices: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        (job,) = spec.jobs
        used = [gpu for gpu in fake.gpus if gpu.uuid in devices]
        for gpu in used:
            gpu.processes.add(PID)
        wrong = [cell.cell for cell in job.cells if cell.mode == WRONG]
        passes = {cell.cell: cell_events(cell.cell, trace=TRACE if cell.cell in wrong else None) for cell in job.cells}
        passes |= {cell: cell_events(cell, tensors=zeroed(), trace=TRACE) for cell in wrong}
        yield from opening()
        begun(devices)
        for events in passes.values():
            yield from ({**said, "job": job.job} for said in events)
        yield event("ask", job=job.job)
        seen(devices)
        for cell in wrong:
            yield from ({**said, "job": job.job, "pass": 2} for said in passes[cell])
        yield event("phase", name=f"job {job.job}", seconds=1.0)
        for gpu in used:
            gpu.processes.discard(PID)
        over(devices)
        yield event("bye", ok=True, reason=None)

    return script


@dataclass
class Site:
    """A host with eight GPUs, and a job of two ranks with two cells."""

    world: World
    fake: FakeNvml
    settings: Settings
    number: int

    def gpu(self, name: str) -> Gpu:
        return next(gpu for gpu in self.fake.gpus if gpu.uuid == name)

    def work(self, executor: Scripted, *, claims: int = 0) -> None:
        """Work until the submission is over, or until so many containers were tried."""
        inventory = gpus_of(self.fake)
        tried: list[int] = []

        def done() -> bool:
            tried.append(1)
            return not self.world.view(self.number).live or 0 < claims <= len(self.attempts())

        with Monitor(self.fake, inventory.devices(), patience_s=0.0) as monitor:
            loop = Loop(
                self.settings, self.world.db, host=local_host(self.settings, inventory), executor=executor,
                broker=LocalBroker(), listener=lambda event: None, models=inventory.models, monitor=monitor,
            )  # fmt: skip
            loop.run(threading.Event(), done)

    def attempts(self) -> list[tuple[str, str]]:
        with self.world.db.read() as session:
            return [(row.state, row.note) for row in session.scalars(sa.select(Attempt).order_by(Attempt.id))]

    def failures(self) -> int:
        with self.world.db.read() as session:
            return session.scalars(sa.select(Job.failures)).one()

    def verdicts(self) -> dict[str, str | None]:
        return {row.mode: row.verdict for row in self.world.rows(self.number)}

    def sick(self) -> dict[str, str]:
        with self.world.db.read() as session:
            (host,) = store.hosts(session)
        found: tuple[DeviceView, ...] = host.devices
        return {device.name: device.reason for device in found if device.state == "sick"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    spec, tree = runtime("2.11.0"), checkout("toy==1")
    monkeypatch.setattr("workers.loop.catalogue", lambda: CaseCatalogue((CASE,), (CONTROL,)))
    monkeypatch.setattr("workers.loop.load_catalog", lambda settings: Catalog((spec,), "index"))
    monkeypatch.setattr("workers.package.pack", lambda checkout: b"a tar")
    world = open_world(tmp_path)
    planned = plan([tree], [spec], ["nccl"], [2], [CASE], [RIGHT, WRONG])
    with world.db.session() as session:
        submit = partial(store.submit, session, requester="x", reason="manual", priority=0, request={})
        number = submit(checkouts=[tree], runtimes=[spec], plan=planned).id
    yield Site(world, machine(), Settings(home=tmp_path), number)
    world.db.dispose()


def test_on_gpus_that_are_well_a_wrong_gradient_is_one(site: Site) -> None:
    said: list[dict[str, str | None]] = []

    def look(devices: tuple[str, ...]) -> None:
        deadline = time.monotonic() + 30
        while site.verdicts()[RIGHT] is None and time.monotonic() < deadline:
            time.sleep(0.01)
        said.append(site.verdicts())

    executor = Scripted(played(site.fake, over=look))
    site.work(executor)
    assert site.verdicts() == {RIGHT: "agree", WRONG: "zero_gradient"}
    assert executor.started == [("GPU-0", "GPU-1")]
    assert said == [{RIGHT: "agree", WRONG: None}], "what is wrong is stored when the GPUs were looked at"
    assert (site.attempts(), site.sick()) == ([("done", "")], {})


FAULTS: dict[str, tuple[Callable[[FakeNvml, Gpu], object], str]] = {
    "memory": (lambda fake, gpu: setattr(gpu, "uncorrected", 1), "has 1 uncorrectable memory errors more than before"),
    "row": (lambda fake, gpu: setattr(gpu, "rows", (0, 1, 1, 0)), "waits for a reset to replace a faulty row"),
    "bus": (lambda fake, gpu: setattr(gpu, "lost", pynvml.NVML_ERROR_GPU_IS_LOST), "does not answer any more"),
    "unlisted": (lambda fake, gpu: fake.gpus.remove(gpu), "does not answer any more: Not Found"),
    "xid": (lambda fake, gpu: fake.report(gpu, 79), "reported Xid 79"),
}


@pytest.mark.parametrize("when", ["begun", "seen", "over"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_gpu_that_falls_sick_makes_nothing_red_and_gets_no_job(site: Site, fault: str, when: str) -> None:
    happens, says = FAULTS[fault]
    broken = played(site.fake, **{when: lambda devices: happens(site.fake, site.gpu(devices[1]))})
    red: list[str | None] = []
    again = played(site.fake, begun=lambda devices: red.append(site.verdicts()[WRONG]))
    executor = Scripted(broken, again)
    site.work(executor)
    assert list(site.sick()) == ["GPU-1"]
    assert says in site.sick()["GPU-1"]
    first, second = site.attempts()
    assert (first[0], second[0]) == ("lost", "done")
    assert f"GPU-1 {site.sick()['GPU-1']}" in first[1]
    assert red == [None], "the wrong answer of the sick GPU was never stored"
    assert executor.started == [("GPU-0", "GPU-1"), ("GPU-2", "GPU-3")], "the others stay aligned"
    assert site.verdicts() == {RIGHT: "agree", WRONG: "zero_gradient"}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_a_fault_of_the_program_is_the_subjects(site: Site, xid: int) -> None:
    site.work(Scripted(played(site.fake, seen=lambda devices: site.fake.report(site.gpu(devices[0]), xid))))
    assert site.verdicts() == {RIGHT: "agree", WRONG: "zero_gradient"}
    assert (site.attempts(), site.sick()) == ([("done", "")], {})


def test_a_container_that_dies_of_its_gpu_is_no_crash_of_the_subject(site: Site) -> None:
    def dies(spec: AttemptSpec, devices: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        yield from opening()
        site.fake.report(site.gpu(devices[0]), 48)

    site.work(Scripted(dies, played(site.fake)))
    assert site.verdicts() == {RIGHT: "agree", WRONG: "zero_gradient"}
    assert [state for state, _ in site.attempts()] == ["lost", "done"]
    assert list(site.sick()) == ["GPU-0"]


def test_a_job_that_had_not_begun_when_its_container_broke_has_not_failed(site: Site) -> None:
    spec, tree = runtime("2.11.0"), checkout("toy==1")
    planned = plan([tree], [spec], ["nccl"], [4], [CASE], [RIGHT])
    with site.world.db.session() as session:
        submit = partial(store.submit, session, requester="x", reason="manual", priority=0, request={})
        submit(checkouts=[tree], runtimes=[spec], plan=planned)

    def dies(spec: AttemptSpec, devices: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        assert len(spec.jobs) == 2
        yield from opening()
        site.fake.report(site.gpu(devices[0]), 79)

    def stops(spec: AttemptSpec, devices: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        yield from ()

    site.work(Scripted(dies, stops), claims=2)
    assert [state for state, _ in site.attempts()][:2] == ["lost", "released"]


def test_a_gpu_that_is_sick_before_is_found_and_the_job_has_not_failed(site: Site) -> None:
    site.gpu("GPU-0").rows = (0, 1, 0, 1)
    site.gpu("GPU-2").mig = 1
    executor = Scripted(played(site.fake))
    site.work(executor)
    assert executor.started == [("GPU-4", "GPU-5")]
    assert [state for state, _ in site.attempts()] == ["released", "released", "done"]
    assert site.failures() == 0
    assert set(site.sick()) == {"GPU-0", "GPU-2"}
    assert site.sick()["GPU-2"] == "is divided by MIG, and only whole ones are leased"


def test_a_gpu_that_others_use_is_not_sick_and_rests_until_it_is_free(site: Site) -> None:
    site.gpu("GPU-1").processes = {77}
    executor = Scripted(played(site.fake))
    site.work(executor)
    assert executor.started == [("GPU-2", "GPU-3")]
    assert site.attempts() == [("released", "GPU-1 is in use by others: process 77"), ("done", "")]
    assert (site.sick(), site.failures()) == ({}, 0)


def test_what_others_do_to_a_gpu_meanwhile_is_no_fault_of_the_subject(site: Site) -> None:
    def comes(devices: tuple[str, ...]) -> None:
        site.gpu(devices[0]).processes.add(77)

    executor = Scripted(played(site.fake, seen=comes), played(site.fake))
    site.work(executor)
    assert [state for state, _ in site.attempts()] == ["lost", "done"]
    assert executor.started == [("GPU-0", "GPU-1"), ("GPU-2", "GPU-3")]
    assert (site.sick(), site.verdicts()) == ({}, {RIGHT: "agree", WRONG: "zero_gradient"})


def test_a_job_that_only_meets_sick_gpus_is_given_up_and_is_not_red(site: Site) -> None:
    breaks = played(site.fake, over=lambda devices: site.fake.report(site.gpu(devices[0]), 79))
    site.work(Scripted(breaks))
    (job,) = site.world.view(site.number).jobs
    assert site.verdicts() == {RIGHT: "agree", WRONG: "infra"}
    (row,) = (row for row in site.world.rows(site.number) if row.mode == WRONG)
    assert row.detail == "given up after 3 attempts: GPU-4 reported Xid 79"
    assert (job.state, job.counts) == ("done", {"agree": 1, "infra": 1})
    assert job.note == "given up with 1 cells unanswered: GPU-4 reported Xid 79"


def test_a_gpu_that_a_person_says_is_well_is_used_again(site: Site) -> None:
    breaks = played(site.fake, over=lambda devices: site.fake.report(site.gpu(devices[0]), 79))

    def mended(devices: tuple[str, ...]) -> None:
        (host, *_) = _hosts(site)
        with site.world.db.session() as session:
            store.set_device(session, host, "GPU-0", "well", "")

    stays = played(site.fake, begun=mended, over=lambda devices: site.gpu(devices[0]).processes.add(77))
    executor = Scripted(breaks, stays, played(site.fake))
    site.work(executor)
    assert executor.started == [("GPU-0", "GPU-1"), ("GPU-2", "GPU-3"), ("GPU-0", "GPU-1")]
    assert (site.sick(), site.attempts()[-1]) == ({}, ("done", "")), "the old Xid does not count any more"


def _hosts(site: Site) -> list[str]:
    with site.world.db.read() as session:
        return [host.name for host in store.hosts(session)]
