"""Runtimes that are kept or not: real store, loop, executor and uv; torch and what a job says are made up."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from service import store
from service.store.views import SubmissionView
from tests.support.running import Run, submit
from tests.support.subjects import write_subject
from tests.workers.matter import HELLO, SUBJECT
from tests.workers.runtimes.conftest import Bench
from workers.cli.executing import execute
from workers.cli.progress import PlainWatcher
from workers.events import Event, JobStarted
from workers.runtimes import RuntimeBuildError, inventory, venv
from workers.runtimes.guard import Guard

JOB = """
import json, pathlib, sys, time
spec = json.loads(sys.stdin.buffer.readline())
sys.stdin.buffer.read(spec["tar_bytes"])
runtime = pathlib.Path(sys.prefix)
with open({log!r}, "a") as log:
    print(runtime.name, *sorted(path.name for path in runtime.parent.glob("[0-9]*") if path != runtime), file=log)
def say(**fields):
    print(json.dumps(fields), flush=True)
for event in {opening!r}:
    say(**event)
if pathlib.Path({hang!r}).exists():
    time.sleep(999)
version = {version!r}
for job in spec["jobs"]:
    for cell in job["cells"]:
        ranks = [
            dict(rank=rank, status="unsupported", phase="run", error=None, seconds=0.0, repeat_equal=None, reason="no")
            for rank in range(job["world_size"])
        ]
        at = dict(job=job["job"], cell=cell["cell"])
        say(v=version, t="case", **at, **{{"pass": 1}}, ranks=ranks, trace=None, seconds=0.0)
    say(v=version, t="phase", name="job %d" % job["job"], seconds=0.0)
say(v=version, t="bye", ok=True, reason=None)
"""
"""A job that says of every cell that there is no such API, and notes which other runtimes lie beside its own."""


class Listener(PlainWatcher):
    """Lets a test act on what it hears."""

    on: Callable[[Event], None]

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self.on(event)


class Scene:
    """A submission over both runtimes of the bench, and what its jobs see."""

    def __init__(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench, self.log, self.hang = bench, tmp_path / "log", tmp_path / "hang"
        script = tmp_path / "job.py"
        words = {"log": str(self.log), "hang": str(self.hang), "opening": [HELLO, SUBJECT], "version": HELLO["v"]}
        script.write_text(JOB.format(**words), "utf-8")
        monkeypatch.setattr(venv, "_BOOTSTRAP", script)
        self.specs = [bench.spec("9.9.9"), bench.spec("8.8.8")]
        self.run: Run = submit(bench.settings.home, write_subject(tmp_path / "odd"), self.specs)
        self.on: Callable[[Event], None] = lambda event: None
        self.said = ""

    def execute(self, *, keep: bool) -> bool:
        """Execute what is left of the submission; what was said is in ``said``."""
        out = io.StringIO()
        with Listener(Console(file=out, width=200, markup=False, highlight=False)) as watch:
            watch.on = self.on
            try:
                return execute(self.view(), self.bench.settings, self.run.database, watch, keep_runtimes=keep)
            finally:
                self.said = out.getvalue()

    def view(self) -> SubmissionView:
        with self.run.database.read() as session:
            return store.submission(session, self.run.submission)

    def seen(self) -> list[list[str]]:
        """Per job the runtime that it ran in, and those that lay beside it."""
        return [[name.partition("-")[0] for name in line.split()] for line in self.log.read_text().splitlines()]


@pytest.fixture
def scene(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(bench, tmp_path, monkeypatch)


def test_kept_runtimes_are_all_built_before_anything_runs(scene: Scene) -> None:
    assert scene.execute(keep=True)
    assert sorted(scene.seen()) == [["8.8.8", "9.9.9"], ["9.9.9", "8.8.8"]]
    assert len(scene.bench.left()) == 2
    assert not scene.view().live


def test_runtimes_that_are_not_kept_are_there_one_at_a_time(scene: Scene) -> None:
    assert scene.execute(keep=False)
    assert scene.seen() == [["9.9.9"], ["8.8.8"]]
    assert scene.bench.left() == []
    assert not list(scene.bench.settings.home.glob("cache/uv/archive*/*"))
    assert (scene.view().done, scene.view().live) == (2, False)
    assert scene.said.count("index: removed, ") == 2


def test_what_was_there_before_stays(scene: Scene) -> None:
    scene.bench.executor.ensure(scene.specs[1], scene.bench.progress)
    assert scene.execute(keep=False)
    assert scene.seen() == [["9.9.9", "8.8.8"], ["8.8.8"]]
    assert scene.bench.left() == [inventory.key(scene.specs[1])]
    assert scene.bench.executor.check(scene.specs[1]).problems == ()


def test_what_another_process_uses_stays_and_the_rest_goes_on(scene: Scene) -> None:
    with Guard(inventory.lock_path(scene.bench.executor.root, inventory.key(scene.specs[0]))) as guard:

        def take(event: Event) -> None:
            if isinstance(event, JobStarted) and event.torch == "9.9.9":
                assert guard.take(shared=True)

        scene.on = take
        assert scene.execute(keep=False)
    assert scene.bench.left() == [inventory.key(scene.specs[0])]
    assert "9.9.9-index: not removed: runtime 9.9.9-index-" in scene.said
    assert scene.view().done == 2


@pytest.mark.parametrize("keep", [True, False])
def test_a_runtime_that_cannot_be_built_keeps_no_other_from_running(scene: Scene, keep: bool) -> None:
    wheel = scene.bench.wheels["torch-9.9.9"]
    content = wheel.read_bytes()
    wheel.unlink()
    with pytest.raises(RuntimeBuildError, match=r"torch==9\.9\.9"):
        scene.execute(keep=keep)
    assert "9.9.9-index: could not be built" in scene.said
    assert scene.seen() == [["8.8.8"]]
    assert (scene.view().done, len(scene.bench.left())) == (1, int(keep))
    wheel.write_bytes(content)
    assert scene.execute(keep=False)
    assert [names[0] for names in scene.seen()] == ["8.8.8", "9.9.9"]
    assert scene.view().done == 2


@pytest.mark.parametrize("keep", [True, False])
def test_of_several_that_cannot_be_built_the_first_is_told_and_the_others_are_counted(scene: Scene, keep: bool) -> None:
    for name in ("torch-9.9.9", "torch-8.8.8"):
        scene.bench.wheels[name].unlink()
    with pytest.raises(RuntimeBuildError, match="1 other runtime could not be built either"):
        scene.execute(keep=keep)
    assert scene.view().done == 0


def test_ctrl_c_removes_what_was_built_and_the_next_run_goes_on(scene: Scene) -> None:
    scene.hang.touch()
    scene.on = lambda event: os.kill(os.getpid(), signal.SIGINT) if isinstance(event, JobStarted) else None
    assert not scene.execute(keep=False)
    assert scene.bench.left() == []
    assert (scene.view().done, scene.view().live) == (0, True)
    scene.hang.unlink()
    scene.on = lambda event: None
    assert scene.execute(keep=False)
    assert scene.seen() == [["9.9.9"], ["9.9.9"], ["8.8.8"]]


def test_ctrl_c_while_a_runtime_is_built_stops_too(scene: Scene) -> None:
    scene.bench.index.fail("torch-9.9.9-py3-none-any.whl", "held")

    def stop(event: Event) -> None:
        if "downloading" in getattr(event, "what", ""):
            os.kill(os.getpid(), signal.SIGINT)

    scene.on = stop
    assert not scene.execute(keep=False)
    assert "9.9.9-index: stopped" in scene.said
    assert (scene.bench.left(), scene.view().done) == ([], 0)
