"""A job's process: what it sees, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.runtimes.process import MARK, JobProcess, _members, _Seen, sweep_orphans

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[[str], JobProcess]

FAMILY = """
import os, signal, subprocess, sys, time
def stay(how):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        how()
        print(os.getpid(), flush=True)
        time.sleep(600)
def daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
def stranger():
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    subprocess.run([sys.executable, "-c", code], env={})
stay(lambda: None)     # a plain child
stay(os.setsid)        # a session of its own
stay(daemon)           # and no parent any more
stay(stranger)         # no mark in its environment
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[JobProcess] = []

    def _start(code: str, wall_s: float = 60) -> JobProcess:
        processes.append(JobProcess([sys.executable, "-c", code], workdir=tmp_path, wall_s=wall_s))
        return processes[-1]

    yield _start
    for process in processes:
        process.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_job_sees_nothing_of_ours(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_TOKEN", "PYTHONPATH", "GRADMATRIX_HOME", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CXX", "/opt/c++")
    process = start(
        "import os; print(os.getcwd(), os.getsid(0) == os.getpid(), *sorted(os.environ.items()), sep='\\n')"
    )
    said = process.stdout.read().decode().splitlines()
    assert said[:2] == [str(tmp_path), "True"]
    seen = dict(eval(line) for line in said[2:])  # noqa: S307 - our own child's words
    assert seen["HOME"] == seen["TMPDIR"] == str(tmp_path)
    assert seen["CXX"] == "/opt/c++"
    allowed = {"PATH", "CC", "CXX", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", MARK}
    assert {name for name in seen if not name.startswith("OPENBLAS_")} <= allowed


def test_kill_ends_everything_that_the_job_started(start: Start) -> None:
    process = start(FAMILY + "time.sleep(600)")
    pids = [int(process.stdout.readline()) for _ in range(4)]
    assert all(alive(pid) for pid in [process.pid, *pids])
    process.kill()
    assert [pid for pid in [process.pid, *pids] if alive(pid)] == []
    assert process.wait(0) == -signal.SIGKILL
    process.kill()  # gone already: no error


def test_kill_after_the_job_ended_ends_what_it_left(start: Start) -> None:
    process = start(FAMILY + "sys.stdin.read()")
    pids = [int(process.stdout.readline()) for _ in range(4)]
    process.stdin.close()
    assert process.wait(30) == 0
    assert all(alive(pid) for pid in pids)
    process.kill()
    assert [pid for pid in pids if alive(pid)] == []


def test_the_wall_limit_ends_a_job(tmp_path: Path) -> None:
    ended: list[bool] = []
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with JobProcess(command, workdir=tmp_path, wall_s=0.3, on_end=lambda: ended.append(True)) as process:
        assert process.wait(0.01) is None
        assert process.wait(30) == -signal.SIGKILL
        assert process.timed_out
    assert ended == [True]


def test_a_job_that_dies_by_itself_or_is_killed_did_not_time_out(start: Start) -> None:
    died = start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert died.wait(30) == -signal.SIGKILL
    killed = start("import time; time.sleep(600)")
    killed.kill()
    assert not died.timed_out
    assert not killed.timed_out


def test_standard_error_is_kept_only_at_its_end(start: Start) -> None:
    process = start("import sys; sys.stderr.write('first' + 'x' * 3_000_000 + 'last'); sys.exit(3)")
    assert process.wait(30) == 3
    tail = process.stderr_tail()
    assert tail.endswith("xlast")
    assert len(tail) == 64 * 1024


def test_jobs_of_a_worker_that_was_killed_are_ended_and_others_left(start: Start, tmp_path: Path) -> None:
    worker = (
        "import sys, time\nfrom pathlib import Path\nfrom workers.runtimes.process import JobProcess\n"
        "code = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        "job = JobProcess([sys.executable, '-c', code], workdir=Path(sys.argv[1]), wall_s=600)\n"
        "print(int(job.stdout.readline()), flush=True)\ntime.sleep(600)\n"
    )
    ours = start("import time; time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", worker, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        sweep_orphans()
        assert alive(pid), "its worker lives"
        process.kill()
    assert alive(pid)
    sweep_orphans()
    assert not alive(pid)
    assert alive(ours.pid)


def test_jobs_of_a_worker_in_another_namespace_are_its_own(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the worker is process 1: out here that is somebody else, or nobody."""
    with monkeypatch.context() as inside:
        inside.setattr("workers.runtimes.process._namespace", lambda: "4026531999")
        inside.setattr("workers.runtimes.process._born", lambda pid: 12345)
        theirs = start("import time; time.sleep(600)")
    sweep_orphans()
    assert alive(theirs.pid)


def test_a_number_taken_over_by_a_later_process_is_left_alone() -> None:
    leader = _Seen(pid=2**22 + 1, parent=1, session=2**22 + 1, born=50, dead=False)
    child = _Seen(pid=2**22 + 2, parent=1, session=leader.session, born=51, dead=False)
    grandchild = _Seen(pid=2**22 + 3, parent=child.pid, session=7, born=52, dead=False)
    family = [leader, child, grandchild]
    assert _members(family, leader=(leader.pid, 50), mark="none") == set(family)
    assert _members(family[1:], leader=(leader.pid, 50), mark="none") == set(family[1:])
    assert _members(family, leader=(leader.pid, 49), mark="none") == set()


def test_a_job_that_does_not_read_does_not_block_its_end(start: Start) -> None:
    process = start("import time; time.sleep(600)")
    os.set_blocking(process.stdin.fileno(), False)
    written = 0
    for _ in range(100):
        written += process.stdin.write(b"x" * 4096) or 0
        if written > 8192:
            break
    process.close()
    assert process.wait(0) == -signal.SIGKILL
