"""Several builds at once, with builds that only say when they begin and end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from service.catalog import RuntimeSpec
from tests.support.stored import runtime
from workers.runtimes.building import Check, build_all

SPECS = [runtime(f"2.{minor}.0") for minor in range(6)]


class Builds:
    """A build that waits until it is let go; notes how many there are at a time."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.most = 0
        self.changed = threading.Condition()

    def __call__(self, spec: RuntimeSpec, check: Check) -> None:
        with self.changed:
            self.begun.append(spec.torch)
            self.most = max(self.most, len(self.begun) - len(self.ended))
            self.changed.notify_all()
        try:
            self.build(spec, check)
        finally:
            with self.changed:
                self.ended.append(spec.torch)
                self.changed.notify_all()

    def build(self, spec: RuntimeSpec, check: Check) -> None:
        """What it does; the tests replace it."""

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 20)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_all_are_built_in_order_with_so_many_at_once(at_once: int) -> None:
    builds, together = Builds(), threading.Barrier(at_once)

    def build(spec: RuntimeSpec, check: Check) -> None:
        together.wait(20)

    builds.build = build  # type: ignore[method-assign]
    build_all(builds, SPECS, at_once=at_once)
    assert builds.most == at_once
    assert sorted(builds.ended) == [spec.torch for spec in SPECS]
    assert set(builds.begun[:at_once]) == {spec.torch for spec in SPECS[:at_once]}


def test_after_a_failure_none_is_begun_and_what_is_in_progress_ends() -> None:
    builds = Builds()

    def build(spec: RuntimeSpec, check: Check) -> None:
        if spec.torch == "2.0.0":
            builds.wait(lambda: len(builds.begun) == 2)
            raise OSError("first")
        builds.wait(lambda: "2.0.0" in builds.ended)
        check()
        raise OSError("second")

    builds.build = build  # type: ignore[method-assign]
    with pytest.raises(OSError, match="first"):
        build_all(builds, SPECS, at_once=2)
    assert (builds.begun, sorted(builds.ended)) == (["2.0.0", "2.1.0"], ["2.0.0", "2.1.0"])


def test_a_stop_reaches_every_build_and_begins_no_other() -> None:
    builds, stop = Builds(), threading.Event()

    def build(spec: RuntimeSpec, check: Check) -> None:
        builds.wait(lambda: len(builds.begun) == 2)
        stop.set()
        check()

    builds.build = build  # type: ignore[method-assign]
    with pytest.raises(InterruptedError):
        build_all(builds, SPECS, at_once=2, stop=stop)
    assert sorted(builds.ended) == ["2.0.0", "2.1.0"]
    with pytest.raises(InterruptedError):
        build_all(builds, SPECS, at_once=2, stop=stop)
    assert len(builds.begun) == 2


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python hears Ctrl-C, also where the tests were started in the background, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_without_a_stop_ends_the_builds_and_leaves_no_thread() -> None:
    builds = Builds()
    main = threading.main_thread()

    def build(spec: RuntimeSpec, check: Check) -> None:
        builds.wait(lambda: len(builds.begun) == 2)
        if spec.torch == "2.0.0":
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGINT)
        try:
            while True:
                check()
                time.sleep(0.01)
        finally:
            if spec.torch == "2.0.0":
                builds.wait(lambda: "2.1.0" in builds.ended)
                time.sleep(0.3)  # as uv's end and the removal of what it made take their time

    builds.build = build  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        build_all(builds, SPECS, at_once=2)
    assert sorted(builds.ended) == ["2.0.0", "2.1.0"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("build-")]
