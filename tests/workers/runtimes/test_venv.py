"""Building runtimes from a stand-in index: once, whole or not at all, and with errors that say what to do."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from service.catalog import RuntimeSpec
from service.config import Settings
from tests.support.index import StandInIndex, wait_for_request
from tests.support.wheels import make_catalog, make_lock, make_torch, make_wheel
from tests.workers.runtimes.conftest import Bench
from workers.runtimes import NotEnoughDiskError, RuntimeBuildError, SourceUnavailableError
from workers.runtimes.building import Check, build_all
from workers.runtimes.guard import Guard
from workers.runtimes.inventory import MARKER, key, lock_path
from workers.runtimes.venv import VenvExecutor

ROOT = Path(__file__).resolve().parents[3]
TORCH_9, TORCH_8 = "torch-9.9.9-py3-none-any.whl", "torch-8.8.8-py3-none-any.whl"

BUILDER = """
import sys
from pathlib import Path
from service import catalog
from service.config import Settings
from workers.runtimes.venv import VenvExecutor
settings = Settings(home=Path(sys.argv[1]), catalog=Path(sys.argv[2]), connect_s=3, disk_spare_bytes=0)
spec = catalog.load(settings).select(["9.9.9"])[0]
VenvExecutor(settings).ensure(spec, lambda what, done, total: print(what, flush=True))
"""


def builder(settings: Settings) -> subprocess.Popen[str]:
    """Another process that builds 9.9.9 and prints its progress."""
    command = [sys.executable, "-c", BUILDER, str(settings.home), str(settings.catalog)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_runtime_is_built_once_and_is_what_its_lock_says(bench: Bench) -> None:
    spec = bench.spec()
    bench.executor.ensure(spec, bench.progress)
    assert bench.said[-1] == ("9.9.9-index: built", 9_000_000, 9_000_000)
    assert bench.left() == [f"9.9.9-index-{spec.digest[:12]}"]
    check = bench.executor.check(spec)
    assert (check.torch, check.git, check.packages, check.problems) == ("9.9.9", "feedbeef", 2, ())

    bench.index.requests.clear()
    bench.said.clear()
    bench.executor.ensure(spec, bench.progress)
    assert (bench.index.requests, bench.said) == ([], []), "a built runtime is taken as it is"


def test_another_lock_is_another_runtime(bench: Bench) -> None:
    bench.executor.ensure(bench.spec(), bench.progress)
    make_lock(bench.spec().lock, [bench.wheels["torch-9.9.9"]])
    bench.executor.ensure(bench.spec(), bench.progress)
    assert len(bench.left()) == 2
    assert bench.executor.check(bench.spec()).packages == 1


def test_check_names_what_differs_from_the_lock(bench: Bench) -> None:
    spec = bench.spec()
    bench.executor.ensure(spec, bench.progress)
    packages = next(bench.executor.folder(spec).glob("lib/python*/site-packages"))
    (packages / "extra-1.0.dist-info").rename(packages / "other-2.0.dist-info")
    metadata = packages / "other-2.0.dist-info" / "METADATA"
    text = metadata.read_text().replace("extra", "other").replace("1.0", "2.0")
    metadata.unlink()  # a hard link into the package cache: written to, it would change there too
    metadata.write_text(text)
    problems = bench.executor.check(spec).problems
    assert problems == ("extra is missing, locked is 1.0", "other 2.0 is installed and not locked")


def test_a_wrong_hash_is_named_and_nothing_is_left(bench: Bench) -> None:
    right = bench.spec().lock.read_text()
    lines = right.splitlines()
    name, digest = lines[1].split(" --hash=sha256:")
    bench.spec().lock.write_text(f"{lines[0]}\n{name} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(RuntimeBuildError) as caught:
        bench.executor.ensure(bench.spec(), bench.progress)
    assert all(word in str(caught.value) for word in ("not installed", "extra==1.0", "0" * 64, digest))
    assert bench.left() == []
    bench.spec().lock.write_text(right)
    bench.executor.ensure(bench.spec(), bench.progress)
    assert bench.executor.ready(bench.spec())


def test_an_index_that_does_not_answer(bench: Bench) -> None:
    bench.index.fail("torch", "stall")
    with pytest.raises(SourceUnavailableError, match="cannot be reached") as caught:
        bench.executor.ensure(bench.spec(), bench.progress)
    assert bench.index.url in str(caught.value)
    assert bench.left() == []


def test_a_port_where_nobody_listens(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
        with pytest.raises(SourceUnavailableError, match="cannot be reached"):
            bench.executor.ensure(bench.spec(), bench.progress)


def test_a_package_that_no_index_holds(bench: Bench) -> None:
    bench.wheels["torch-9.9.9"].unlink()
    with pytest.raises(SourceUnavailableError, match=r"(?s)holds that package.*torch==9\.9\.9"):
        bench.executor.ensure(bench.spec(), bench.progress)


def test_too_little_disk_is_said_before_the_download_with_both_numbers(bench: Bench) -> None:
    asked: list[Path] = []

    def almost(folder: Path) -> int:
        asked.append(folder)
        return 10_999_999  # one byte less than 9 MB to install and 2 MB to spare

    with pytest.raises(NotEnoughDiskError) as caught:
        VenvExecutor(bench.settings, free_bytes=almost).ensure(bench.spec(), bench.progress)
    assert all(words in str(caught.value) for words in ("9.0 MB", "4.0 MB to download", "11.0 MB is free", "2.0 MB"))
    assert set(asked) == {bench.settings.home}
    assert bench.left() == []
    VenvExecutor(bench.settings, free_bytes=lambda folder: 11_000_000).ensure(bench.spec(), bench.progress)


def test_builds_that_do_not_fit_together_wait_for_each_other(bench: Bench) -> None:
    """12 MB beside what must stay free, 9 MB each: either fits alone, and the second one once the first is built."""
    bench.index.fail(TORCH_9, "held")
    executor = VenvExecutor(bench.settings, free_bytes=lambda folder: 14_000_000)

    def build(spec: RuntimeSpec, check: Check) -> None:
        def progress(what: str, done: int, total: int | None) -> None:
            bench.progress(what, done, total)
            if what == "8.8.8-index: waiting for room on the disk":
                bench.index.released.set()

        if spec.torch == "8.8.8":
            wait_for_request(bench.index, TORCH_9)
        executor.ensure(spec, progress)

    build_all(build, [bench.spec("9.9.9"), bench.spec("8.8.8")], at_once=2)
    said = [what for what, _, _ in bench.said]
    waited = said.index("8.8.8-index: waiting for room on the disk")
    assert waited < said.index("9.9.9-index: built") < said.index("8.8.8-index: built")
    assert len(bench.left()) == 2


def test_what_does_not_fit_beside_what_was_built_meanwhile_is_refused(bench: Bench) -> None:
    bench.index.fail(TORCH_9, "held")
    free = [14_000_000]
    executor = VenvExecutor(bench.settings, free_bytes=lambda folder: free[0])

    def build(spec: RuntimeSpec, check: Check) -> None:
        def progress(what: str, done: int, total: int | None) -> None:
            if what == "8.8.8-index: waiting for room on the disk":
                free[0] = 5_000_000
                bench.index.released.set()

        if spec.torch == "8.8.8":
            wait_for_request(bench.index, TORCH_9)
        executor.ensure(spec, progress)

    with pytest.raises(NotEnoughDiskError, match=r"8\.8\.8-index needs 9\.0 MB.* 5\.0 MB is free"):
        build_all(build, [bench.spec("9.9.9"), bench.spec("8.8.8")], at_once=2)
    assert bench.left() == [key(bench.spec("9.9.9"))]


def test_what_the_cache_holds_needs_no_disk(bench: Bench) -> None:
    bench.executor.ensure(bench.spec(), bench.progress)
    (bench.executor.folder(bench.spec()) / MARKER).unlink()
    VenvExecutor(bench.settings, free_bytes=lambda folder: 0).ensure(bench.spec(), bench.progress)
    assert ("9.9.9-index: clearing an unfinished build", 0, None) in bench.said
    assert bench.executor.ready(bench.spec())


def test_an_interruption_leaves_nothing(bench: Bench) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        if "downloading" in what:
            raise KeyboardInterrupt

    bench.index.fail("torch-9.9.9-py3-none-any.whl", "stall")
    with pytest.raises(KeyboardInterrupt):
        bench.executor.ensure(bench.spec(), interrupt)
    assert bench.left() == []
    with Guard(lock_path(bench.executor.root, key(bench.spec()))) as guard:
        assert guard.take(), "uv was ended too: it holds the lock while it lives"


def test_builds_that_are_stopped_leave_nothing_in_the_cache_either(bench: Bench) -> None:
    """Two at once, each with half of a file unpacked: whichever ends last tidies for both."""
    for name in (TORCH_9, TORCH_8):
        bench.index.fail(name, "held")
    executor, stop, downloading = bench.executor, threading.Event(), set[str]()

    def half_unpacked() -> list[Path]:
        return list(bench.settings.home.glob("cache/uv/.tmp*"))

    def build(spec: RuntimeSpec, check: Check) -> None:
        def progress(what: str, done: int, total: int | None) -> None:
            downloading.update({spec.torch} if "downloading" in what else ())
            if len(downloading) == 2 and len(half_unpacked()) >= 2:
                stop.set()
            check()

        executor.ensure(spec, progress)

    with pytest.raises(InterruptedError):
        build_all(build, [bench.spec("9.9.9"), bench.spec("8.8.8")], at_once=2, stop=stop)
    assert (bench.left(), half_unpacked()) == ([], [])


def test_an_index_that_does_not_answer_can_be_left(bench: Bench) -> None:
    bench.index.fail("torch", "stall")

    def interrupt(what: str, done: int, total: int | None) -> None:
        if any(path.startswith("/simple/torch") for path in bench.index.requests):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        bench.executor.ensure(bench.spec(), interrupt)
    assert bench.left() == []


def test_a_build_shows_its_own_bytes_and_no_other_builds(bench: Bench) -> None:
    """8 MB of one are on their way, half of them here; of the other a kilobyte."""
    files = {"torch/__init__.py": "", "torch/data.bin": "x" * 8_000_000}
    make_lock(bench.spec("9.9.9").lock, [make_wheel(bench.index.folder, "torch", "9.9.9", files)])
    for name in (TORCH_9, TORCH_8):
        bench.index.fail(name, "held")
    executor, stop, most = bench.executor, threading.Event(), dict[str, int]()

    def build(spec: RuntimeSpec, check: Check) -> None:
        def progress(what: str, done: int, total: int | None) -> None:
            if "downloading" in what:
                # two looks of the small one after the big one has its half: by then it would have seen that
                big = most.get("9.9.9", 0) > 3_000_000
                looks["8.8.8"] += spec.torch == "8.8.8" and big
                most[spec.torch] = max(done, most.get(spec.torch, 0))
                if looks["8.8.8"] == 2:
                    stop.set()
            check()

        executor.ensure(spec, progress)

    looks = Counter[str]()
    with pytest.raises(InterruptedError):
        build_all(build, [bench.spec("9.9.9"), bench.spec("8.8.8")], at_once=2, stop=stop)
    assert most["8.8.8"] < 1_000_000 < 3_000_000 < most["9.9.9"] < 9_000_000


def test_a_killed_builder_is_followed_by_another(bench: Bench, only_index: pytest.MonkeyPatch) -> None:
    bench.index.fail("torch-9.9.9-py3-none-any.whl", "stall")
    with builder(bench.settings) as first:
        wait_for_request(bench.index, "/files/torch-9.9.9")
        first.send_signal(signal.SIGKILL)
    spec = bench.spec()
    assert bench.left() == [key(spec)], "it was killed half-way"
    assert not bench.executor.ready(spec)
    with StandInIndex(bench.index.folder) as healthy:
        only_index.setenv("PIP_INDEX_URL", healthy.url)
        executor = bench.executor

        def progress(what: str, done: int, total: int | None) -> None:
            bench.progress(what, done, total)
            bench.index.closing.set()  # now the killed builder's uv, still waiting for its file, comes to its end

        executor.ensure(spec, progress)
    assert bench.said[0][0] == "9.9.9-index: waiting for another builder"
    assert bench.said[-1][0] == "9.9.9-index: built"
    assert executor.check(spec).problems == ()


def test_two_builders_at_once_build_once(bench: Bench) -> None:
    with Guard(lock_path(bench.executor.root, key(bench.spec()))) as guard:
        assert guard.take()
        builders = [builder(bench.settings), builder(bench.settings)]
        for process in builders:
            assert process.stdout
            assert process.stdout.readline() == "9.9.9-index: waiting for another builder\n"
    said = [process.communicate(timeout=60)[0] for process in builders]
    assert [process.returncode for process in builders] == [0, 0], said
    assert sum("asking the package index" in text for text in said) == 1, said
    assert bench.executor.check(bench.spec()).problems == ()


def test_the_users_settings_of_uv_and_python_change_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UV_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_PYTHON": "3.9", "VIRTUAL_ENV": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    bench.executor.ensure(bench.spec(), bench.progress)
    assert bench.executor.check(bench.spec()).problems == ()


def test_find_links_are_passed_on_and_absent_ones_ignored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"/nonexistent/wheels {bench.index.folder}")
    bench.executor.ensure(bench.spec(), bench.progress)
    assert bench.executor.check(bench.spec()).problems == ()
    assert bench.index.requests == []


def test_a_second_index_counts_like_the_first(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for pip; uv by itself would look for extra only in the first index that knows the name at all."""
    make_wheel(tmp_path / "more", "extra", "7.0")
    with StandInIndex(tmp_path / "more") as more:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", more.url)
        bench.executor.ensure(bench.spec(), bench.progress)
    assert bench.executor.check(bench.spec()).problems == ()


def test_a_build_with_a_local_part_is_not_taken_for_the_locked_one(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_torch(tmp_path / "more", "9.9.9+cpu")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "more"))
    bench.executor.ensure(bench.spec(), bench.progress)
    assert bench.executor.check(bench.spec()).torch == "9.9.9"


def test_another_python_is_refused(bench: Bench, tmp_path: Path) -> None:
    path = make_catalog(tmp_path / "other", ["9.9.9"], python="3.12")
    make_lock(path.parent / "locks" / "9.9.9-index.txt", [bench.wheels["torch-9.9.9"]])
    settings = bench.settings.model_copy(update={"catalog": path})
    other = dataclasses.replace(bench, settings=settings)
    with pytest.raises(RuntimeBuildError, match=r"needs Python 3\.12, and this is 3\.11"):
        other.executor.ensure(other.spec(), bench.progress)


def test_a_runtime_whose_interpreter_is_gone_is_built_anew(bench: Bench) -> None:
    spec = bench.spec()
    bench.executor.ensure(spec, bench.progress)
    link = bench.executor.python(spec)
    link.unlink()
    link.symlink_to("/nonexistent/python3.11")
    assert not bench.executor.ready(spec)
    bench.executor.ensure(spec, bench.progress)
    assert bench.executor.check(spec).problems == ()


def test_a_cache_that_is_not_kept(bench: Bench) -> None:
    settings = bench.settings.model_copy(update={"keep_package_cache": False})
    VenvExecutor(settings).ensure(bench.spec(), bench.progress)
    assert bench.executor.check(bench.spec()).problems == ()
    assert not list(bench.settings.home.glob("cache/uv/archive*"))


def test_a_job_does_not_start_in_what_is_not_built(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(RuntimeBuildError, match="is not built"):
        bench.executor.start(bench.spec(), workdir=tmp_path, wall_s=5)


def test_a_job_runs_in_its_runtime_and_holds_it(bench: Bench, tmp_path: Path) -> None:
    bench.executor.ensure(bench.spec(), bench.progress)
    with bench.executor.start(bench.spec(), workdir=tmp_path, wall_s=60) as process:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert os.fsdecode(command[0]) == str(bench.executor.python(bench.spec()))
        with Guard(lock_path(bench.executor.root, key(bench.spec()))) as guard:
            assert not guard.take(), "a running job keeps its runtime from being removed"
    with Guard(lock_path(bench.executor.root, key(bench.spec()))) as guard:
        assert guard.take()


@pytest.mark.parametrize(
    ("devices", "seen"), [(("GPU-b", "GPU-a"), b"GPU-b,GPU-a"), (("cpu:0", "cpu:1"), b""), ((), b"")]
)
def test_a_job_sees_the_gpus_that_it_leased_and_no_others(
    bench: Bench, tmp_path: Path, devices: tuple[str, ...], seen: bytes
) -> None:
    bench.executor.ensure(bench.spec(), bench.progress)
    with bench.executor.start(bench.spec(), workdir=tmp_path, wall_s=60, devices=devices) as process:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        assert [line for line in environment if line.startswith(b"CUDA")] == [b"CUDA_VISIBLE_DEVICES=" + seen]
        assert process.pid in process.pids()
    assert process.pids() == frozenset()
