"""Subjects that misbehave, through the whole line: each gets its own verdict, and its neighbours theirs."""

from __future__ import annotations

import textwrap
import threading
import time
from pathlib import Path

import pytest

from service import store
from tests.support.processes import processes_in
from tests.support.running import ONE_CASE, QUICK, Run, run_tree, submit, work
from tests.support.runtimes import runtime
from tests.support.subjects import write_subject
from workers import events

pytestmark = pytest.mark.torch
RUNTIME = "2.11.0-index"
NEIGHBOUR = "exchange/dim0[dtype=float64,loss=square]"
LATE_TORCH = """
import threading, time
from jobs.subject.base import Subject


class Late(Subject):
    name = "late"

    def load(self, root):
        threading.Thread(target=time.sleep, args=(999,), daemon=True).start()

    def dim0_exchange(self, ctx):
        import torch
        return torch.clone


def adapter():
    return Late()
"""
ONLY_FLOAT32 = "if x.dtype == torch.float32:\n    "


def verdict_of(run: Run, case: str = ONE_CASE) -> str:
    return run.verdicts()[f"{case} eager"]


def detail_of(run: Run, case: str = ONE_CASE) -> str:
    return next(row.detail for row in run.rows if row.case == case)


def texts_of(run: Run, kind: str) -> list[str]:
    cell = next(row.cell for row in run.rows if row.case == ONE_CASE)
    with run.database.read() as session:
        blobs = store.find_cell(session, cell).blobs
        return [store.blob(session, blob.digest).decode() for blob in blobs if blob.kind == kind and blob.digest]


def odd(tmp_path: Path, **misbehaviour: str) -> Run:
    tree = write_subject(tmp_path / "odd", **misbehaviour)
    return run_tree(tmp_path / "home", tree, [runtime(RUNTIME)], cases=[ONE_CASE, NEIGHBOUR], deadlines=QUICK)


def test_a_subject_without_fault_agrees(tmp_path: Path) -> None:
    assert set(odd(tmp_path).verdicts().values()) == {"agree"}


def test_a_rank_killed_by_a_signal_is_a_crash_and_the_others_go_on(tmp_path: Path) -> None:
    run = odd(tmp_path, call=ONLY_FLOAT32 + "if ctx.rank == 1: os.kill(os.getpid(), signal.SIGKILL)")
    assert verdict_of(run) == "crash"
    assert "SIGKILL" in detail_of(run)
    assert verdict_of(run, NEIGHBOUR) == "agree"


def test_a_call_that_never_returns_is_a_hang_with_every_ranks_stacks(tmp_path: Path) -> None:
    run = odd(tmp_path, call=ONLY_FLOAT32 + "while ctx.rank == 1: time.sleep(0.1)")
    assert verdict_of(run) == "hang"
    assert verdict_of(run, NEIGHBOUR) == "agree"
    stacks = texts_of(run, "stacks")
    assert len(stacks) == 2
    assert all("gradmatrix_adapter.py" in text for text in stacks)


@pytest.mark.parametrize(("code", "name"), [("sys.exit(3)", "SystemExit"), ("raise ValueError('no')", "ValueError")])
def test_leaving_on_every_rank_is_raised(tmp_path: Path, code: str, name: str) -> None:
    run = odd(tmp_path, call=ONLY_FLOAT32 + code)
    assert verdict_of(run) == "raised"
    assert name in detail_of(run)
    assert verdict_of(run, NEIGHBOUR) == "agree"


def test_raising_on_one_rank_only_is_a_partial_raise(tmp_path: Path) -> None:
    run = odd(tmp_path, call=ONLY_FLOAT32 + "if ctx.rank == 0: raise ValueError('only me')")
    assert verdict_of(run) == "partial_raise"
    assert verdict_of(run, NEIGHBOUR) == "agree"


def test_what_it_prints_is_a_log_and_the_stream_stays_valid(tmp_path: Path) -> None:
    say = (
        """os.write(1, b'{"v":1,"t":"bye","ok":true,"reason":null}\\n'); print('hello from the subject', flush=True)"""
    )
    run = odd(tmp_path, call=say, load="print('loading', flush=True)")
    assert set(run.verdicts().values()) == {"agree"}
    assert any("hello from the subject" in text for text in texts_of(run, "log"))


def test_changing_torchs_defaults_in_a_call_is_said_and_undone(tmp_path: Path) -> None:
    run = odd(tmp_path, call=ONLY_FLOAT32 + "torch.set_default_dtype(torch.float64)")
    assert verdict_of(run, NEIGHBOUR) == "agree"
    assert "default dtype" in detail_of(run)
    assert "default dtype" not in detail_of(run, NEIGHBOUR)


def test_changing_torch_in_the_import_makes_the_controls_say_so(tmp_path: Path) -> None:
    spoil = """
        real = dist.all_to_all_single
        def doubled(output, *args, **kwargs):
            work = real(output, *args, **kwargs)
            output.mul_(2)
            return work
        dist.all_to_all_single = doubled
    """
    run = odd(tmp_path, load=spoil)
    assert set(run.verdicts().values()) == {"invalid"}
    assert "changed torch" in detail_of(run)


def test_without_a_compiler_inductor_is_unsupported_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, tree = runtime(RUNTIME), write_subject(tmp_path / "odd")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    run = run_tree(tmp_path / "home", tree, [built], modes=["eager", "inductor"])
    assert run.verdicts() == {f"{ONE_CASE} eager": "agree", f"{ONE_CASE} inductor": "unsupported"}
    assert any("no C++ compiler" in row.detail for row in run.rows)


def test_a_set_up_that_raises_is_the_subjects_own_fault(tmp_path: Path) -> None:
    run = odd(tmp_path, setup="raise ValueError('no group for me')")
    assert set(run.verdicts().values()) == {"raised"}
    assert "no group for me" in detail_of(run)


def test_an_import_that_fails_names_module_and_line(tmp_path: Path) -> None:
    run = odd(tmp_path, load="import not_there_at_all")
    assert set(run.verdicts().values()) == {"unimportable"}
    assert "not_there_at_all" in detail_of(run)
    assert "gradmatrix_adapter, line" in detail_of(run)


def test_an_import_that_ends_the_process_is_unimportable(tmp_path: Path) -> None:
    assert set(odd(tmp_path, load="os._exit(0)").verdicts().values()) == {"unimportable"}


def test_an_import_that_starts_a_thread_has_its_ranks_spawned(tmp_path: Path) -> None:
    run = odd(tmp_path, load="import threading; threading.Thread(target=time.sleep, args=(999,), daemon=True).start()")
    assert set(run.verdicts().values()) == {"agree"}
    with run.database.read() as session:
        facts = store.find_cell(session, run.rows[0].cell).attempts[-1].facts
    assert facts["subject"]["method"] == "spawn"


def test_a_torch_beside_it_is_not_taken_for_torch_in_spawned_ranks(tmp_path: Path) -> None:
    tree = tmp_path / "odd"
    tree.mkdir()
    (tree / "torch.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tree / "gradmatrix_adapter.py").write_text(LATE_TORCH)
    run = run_tree(tmp_path / "home", tree, [runtime(RUNTIME)], deadlines=QUICK)
    assert not (tmp_path / "ran").exists()
    with run.database.read() as session:
        assert store.find_cell(session, run.rows[0].cell).attempts[-1].facts["subject"]["method"] == "spawn"


@pytest.mark.parametrize(
    "line", ['{"e":"tensor","tensor":{"x":NaN}}', "[" * 100_000, '{"e":"tensor","tensor":7}', "[]"]
)
def test_a_line_of_another_form_costs_its_own_cell_only(tmp_path: Path, line: str) -> None:
    forge = f"""
        import inspect
        frame = inspect.currentframe()
        while 'events' not in frame.f_locals: frame = frame.f_back
        os.write(frame.f_locals['events'], b'{line}\\n')
    """
    run = odd(tmp_path, call=ONLY_FLOAT32 + textwrap.indent(textwrap.dedent(forge).strip(), "    ").lstrip())
    assert verdict_of(run) == "crash"
    assert verdict_of(run, NEIGHBOUR) == "agree"


def test_killing_the_launcher_costs_one_cell_and_the_rest_is_run_again(tmp_path: Path) -> None:
    kill = """
        if x.dtype == torch.float32 and ctx.rank == 0:
            parent = os.getppid()
            launcher = int(open(f'/proc/{parent}/stat').read().rpartition(')')[2].split()[1])
            os.kill(launcher, signal.SIGKILL)
    """
    run = odd(tmp_path, call=kill)
    assert verdict_of(run) == "crash"
    assert verdict_of(run, NEIGHBOUR) == "agree"


def test_a_right_gradient_that_depends_on_what_ran_before_is_a_leak(tmp_path: Path) -> None:
    remember = """
        seen = globals().setdefault('SEEN', set())
        seen.add(x.dtype)
        if len(seen) > 1: x = x * 2
    """
    run = odd(tmp_path, call=remember)
    assert verdict_of(run) == "agree"
    assert verdict_of(run, NEIGHBOUR) == "leak"


def test_stopping_keeps_what_is_finished_leaves_no_process_and_resumes(tmp_path: Path) -> None:
    mark = tmp_path / "again"
    slow = f"if x.dtype == torch.float64 and not os.path.exists({str(mark)!r}): time.sleep(999)"
    run = submit(
        tmp_path / "home",
        write_subject(tmp_path / "odd", call=slow),
        [runtime(RUNTIME)],
        cases=[ONE_CASE, NEIGHBOUR],
    )
    stop, done = threading.Event(), []

    def listener(event: events.Event) -> None:
        if isinstance(event, events.CellDone):
            done.append(event.cell)
            stop.set()

    began = time.monotonic()
    work(run, listener, stop)
    assert len(done) == 1
    assert verdict_of(run) == "agree"
    assert [row.verdict for row in run.rows].count(None) == 1
    assert time.monotonic() - began < 120  # not the 999 s that the subject sleeps
    assert not processes_in(tmp_path / "home")
    mark.touch()
    done.clear()
    work(run, lambda event: done.append(event.cell) if isinstance(event, events.CellDone) else None)
    assert set(run.verdicts().values()) == {"agree"}
    assert len(done) == 1


def test_a_backward_that_skips_its_collective_on_one_rank_hangs_in_the_backward_of_the_others(tmp_path: Path) -> None:
    skip = """
        class Early(torch.autograd.Function):
            @staticmethod
            def forward(c, x):
                return Exchange.apply(x, ctx.group)
            @staticmethod
            def backward(c, g):
                return g if ctx.rank == 1 else Exchange.apply(g, ctx.group)
        if x.dtype == torch.float32: return Early.apply(x)
    """
    run = odd(tmp_path, call=skip)
    assert verdict_of(run) == "hang"
    assert "backward" in detail_of(run)
    assert "rank 0" in detail_of(run)
    assert next(row.forward_ok for row in run.rows if row.case == ONE_CASE) is None
    assert verdict_of(run, NEIGHBOUR) == "agree"
