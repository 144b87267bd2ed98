from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from workers.cli.progress import LiveWatcher, PlainWatcher, Watcher, watcher
from workers.events import CellDone, JobDone, JobStarted, LogLine, PhaseDone

JOB = JobStarted(7, "deepspeed==0.18.3", "2.11.0", 2, 48)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[PlainWatcher, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    return PlainWatcher(Console(file=out, width=80, markup=False, highlight=False), clock), out, clock


def test_a_plain_log_of_a_job_has_one_line_per_step() -> None:
    watch, out, clock = plain()
    watch.names[3] = "exchange/dim0[loss=square] aot_eager"
    watch(JOB)
    clock.now += 4.2
    watch(PhaseDone(7, "import torch", 4.2))
    watch(CellDone(7, 1, "agree", ""))
    watch(LogLine("noise of the subject"))
    watch(CellDone(7, 3, "zero_gradient", "grad/x is zero"))
    clock.now += 60
    watch(CellDone(7, 4, "agree", ""))
    watch(JobDone(7, 64.2, "done"))
    assert out.getvalue().splitlines() == [
        "[  0.0 s] deepspeed==0.18.3 · torch 2.11.0 · 2 ranks: started, 48 cells",
        "[  4.2 s] deepspeed==0.18.3 · torch 2.11.0 · 2 ranks: import torch in 4.2 s",
        "[  4.2 s] deepspeed==0.18.3 · torch 2.11.0 · 2 ranks: zero: exchange/dim0[loss=square] aot_eager",
        "[1 min 4 s] deepspeed==0.18.3 · torch 2.11.0 · 2 ranks: 3 of 48 cells",
        "[1 min 4 s] deepspeed==0.18.3 · torch 2.11.0 · 2 ranks: 2 agree, 1 zero in 1 min 4 s",
    ]


def test_a_step_that_only_grows_is_repeated_seldom_and_a_new_step_at_once() -> None:
    watch, out, clock = plain()
    step = watch.growing("2.11.0-index")
    step("2.11.0-index: asking the package index", 0, 5_000_000_000)
    for second in range(12):
        clock.now += 1
        step("2.11.0-index: downloading", second * 100_000_000, 5_000_000_000)
    watch.ended("2.11.0-index", "built, 5.0 GB, in 12 s")
    assert [line[10:] for line in out.getvalue().splitlines()] == [
        "2.11.0-index: asking the package index",
        "2.11.0-index: downloading",
        "2.11.0-index: downloading, 500 MB of 5.0 GB",
        "2.11.0-index: downloading, 1.0 GB of 5.0 GB",
        "2.11.0-index: built, 5.0 GB, in 12 s",
    ]


def test_several_builds_have_a_moving_line_each_and_lose_it_as_they_end() -> None:
    with LiveWatcher(Console(file=io.StringIO(), force_terminal=True, width=100)) as watch:

        def shown() -> list[tuple[str, str]]:
            return [(task.description, str(task.fields["amount"])) for task in watch._progress.tasks]

        first, second = watch.growing("2.2.2-index"), watch.growing("2.11.0-index")
        first("2.2.2-index: downloading", 1_000_000_000, 5_000_000_000)
        second("2.11.0-index: downloading", 20_000_000, 4_000_000_000)
        first("2.2.2-index: compiling", 4_800_000_000, 5_000_000_000)
        assert shown() == [
            ("2.2.2-index: compiling", "4.8 GB of 5.0 GB"),
            ("2.11.0-index: downloading", "20 MB of 4.0 GB"),
        ]
        watch.ended("2.2.2-index", "built")
        assert [name for name, _ in shown()] == ["2.11.0-index: downloading"]


def test_several_builds_in_a_log_keep_their_own_rhythm() -> None:
    watch, out, clock = plain()
    for second in range(6):
        for name in ("2.2.2-index", "2.11.0-index")[: 1 + (second > 2)]:
            watch.growing(name)(f"{name}: downloading", second, 9)
        clock.now += 1
    assert [line[10:] for line in out.getvalue().splitlines()] == [
        "2.2.2-index: downloading",
        "2.11.0-index: downloading, 3 B of 9 B",
        "2.2.2-index: downloading, 5 B of 9 B",
    ]


def test_what_is_right_has_no_line_and_what_did_not_answer_has_its_reason() -> None:
    watch, out, _ = plain()
    watch(JOB)
    for verdict in ("agree", "agree_untraced", "refused", "unsupported", "insensitive"):
        watch(CellDone(7, 1, verdict, "as it should"))
    watch(CellDone(7, 2, "raised", "KeyError: '0'"))
    assert [line.partition("2 ranks: ")[2] for line in out.getvalue().splitlines()] == [
        "started, 48 cells",
        "raised: cell 2 (KeyError: '0')",
    ]


def test_jobs_to_come_have_their_names_before_they_start() -> None:
    watch, out, _ = plain()
    watch.expect([JOB])
    watch(PhaseDone(7, "import torch", 4.2))
    assert out.getvalue().endswith("deepspeed==0.18.3 · torch 2.11.0 · 2 ranks: import torch in 4.2 s\n")


def test_a_job_that_did_not_end_well_says_so() -> None:
    watch, out, _ = plain()
    watch(JOB)
    watch(JobDone(7, 1.0, "the container was killed"))
    assert out.getvalue().splitlines()[-1].endswith("2 ranks: the container was killed; no cells in 1.0 s")


def test_events_of_unknown_jobs_and_verdicts_are_shown_rather_than_fatal() -> None:
    watch, out, _ = plain()
    watch(CellDone(1, 2, "novel", "\x1b[31m[red]"))
    watch(JobDone(1, 1.0, "done"))
    assert out.getvalue().splitlines() == [
        r"[  0.0 s] job 1: novel: cell 2 (\x1b[31m[red])",
        "[  0.0 s] job 1: 1 novel in 1.0 s",
    ]


def test_a_silent_job_says_every_15_s_how_long_it_waits() -> None:
    watch, out, clock = plain()
    watch.patience = "a cell may take 20 s"
    watch(JOB)
    watch(PhaseDone(7, "subject", 3.0))
    watch(CellDone(7, 1, "agree", ""))
    before = len(out.getvalue().splitlines())
    for _ in range(40):
        clock.now += 1
        watch.tick()
    watch(JobDone(7, 40.0, "done"))
    clock.now += 60
    watch.tick()
    label = "deepspeed==0.18.3 · torch 2.11.0 · 2 ranks"
    assert out.getvalue().splitlines()[before:] == [
        f"[   15 s] {label}: 1 of 48 cells, waiting 15 s (a cell may take 20 s)",
        f"[   30 s] {label}: 1 of 48 cells, waiting 30 s (a cell may take 20 s)",
        f"[   40 s] {label}: 1 agree in 40 s",
    ]


def test_what_a_cell_may_take_is_no_reason_before_cells_run() -> None:
    watch, out, clock = plain()
    watch.patience = "a cell may take 20 s"
    watch(JOB)
    clock.now += 20
    watch.tick()
    assert out.getvalue().endswith("2 ranks: 0 of 48 cells, waiting 20 s\n")


def test_a_step_of_no_time_has_no_line() -> None:
    watch, out, _ = plain()
    watch(JOB)
    watch(PhaseDone(7, "controls", 0.049))
    watch(PhaseDone(7, "oracle", 0.05))
    assert [line.partition("2 ranks: ")[2] for line in out.getvalue().splitlines()] == [
        "started, 48 cells",
        "oracle in 0.1 s",
    ]


def test_the_live_line_of_a_job_is_about_its_cells_once_they_run() -> None:
    clock = Clock()
    with LiveWatcher(Console(file=io.StringIO(), force_terminal=True, width=100), clock) as watch:

        def said() -> str:
            return str(watch._progress.tasks[0].fields["amount"])

        watch(JOB)
        watch(PhaseDone(7, "import torch", 4.2))
        assert said() == "import torch done"
        watch(PhaseDone(7, "subject", 4.2))
        assert said() == "0 of 48 cells"
        clock.now += 4
        watch.tick()
        assert said() == "0 of 48 cells"
        clock.now += 8
        watch.tick()
        assert said() == "0 of 48 cells, waiting 12 s"
        watch(CellDone(7, 3, "agree", ""))
        assert said() == "1 of 48 cells"


def test_the_heartbeat_ends_with_the_run() -> None:
    watch, _, _ = plain()
    with watch:
        assert "heartbeat" in {thread.name for thread in threading.enumerate()}
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("terminal", "environment", "kind"),
    [
        (True, {}, LiveWatcher),
        (False, {}, PlainWatcher),
        (True, {"CI": "1"}, PlainWatcher),
        (True, {"NO_COLOR": "1"}, PlainWatcher),
        (True, {"TERM": "dumb"}, PlainWatcher),
    ],
)
def test_only_a_real_terminal_gets_a_live_display(
    terminal: bool, environment: dict[str, str], kind: type[Watcher]
) -> None:
    with watcher(Console(file=io.StringIO(), force_terminal=terminal, width=80), environment) as watch:
        assert type(watch) is kind


def test_the_live_display_goes_away_and_leaves_what_matters() -> None:
    out = io.StringIO()
    with LiveWatcher(Console(file=out, force_terminal=True, width=100, highlight=False)) as watch:
        watch.growing("2.9.1-index")("downloading {x} [red]", 10, 100)
        watch.ended("2.9.1-index", "built")
        watch(JOB)
        watch(PhaseDone(7, "import torch", 4.2))
        watch(CellDone(7, 3, "hang", "rank 1"))
        watch._progress.refresh()
        watch(JobDone(7, 64.2, "done"))
    text = out.getvalue()
    assert "1 of 48 cells" in text
    assert "hang" in text
    assert "\x1b[?25h" in text[-20:]
    assert text.rstrip("\r").endswith(("\x1b[2K", "\x1b[?25h"))
    assert list(watch._tasks) == ["all"]
