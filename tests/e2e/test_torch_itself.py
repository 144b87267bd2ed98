"""Torch's own behaviours, on real torch through the whole line: no checkout, and the values of public reports.

Sources: the zero gradient of a traced collective inside an autograd.Function on torch 2.11 is what DeepSpeed's public
report #8491 comes from; that the backward of all_gather takes a global rank for one of its group on NCCL, up to 2.2, is
PyTorch's report #120213; that a plain functional collective has no gradient, and none that is missed, is #152127.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from service import store
from tests.support.running import Run, run_tree, submit, work
from tests.support.runtimes import runtime
from workers import events

pytestmark = pytest.mark.torch
DIM0 = "torch-itself/dim0[api={},dtype=float32,loss=square]"
GATHER = "torch-itself/all_gather[api=nn,dtype=float32,{}]"
SUBGROUP, TRANSPOSED = GATHER.format("loss=square,sp=2"), GATHER.format("loss=weighted,cotangent=transposed")
APIS = ("buffer_in_function", "nn_in_function", "nn", "functional_in_function", "functional_autograd", "functional")


def verdicts(run: Run, **where: object) -> dict[tuple[str, str], str]:
    """Verdict by API and mode."""
    return {
        (row.case.partition("api=")[2].partition(",")[0], row.mode): str(row.verdict)
        for row in run.rows
        if all(getattr(row, name) == value for name, value in where.items())
    }


def exchange(home: Path, torch: str, *modes: str) -> Run:
    return run_tree(home, "torch", [runtime(torch)], cases=[*map(DIM0.format, APIS)], modes=modes)


def test_on_2_11_0_a_traced_exchange_that_fills_a_buffer_in_a_function_has_a_zero_gradient(tmp_path: Path) -> None:
    run = exchange(tmp_path, "2.11.0-index", "eager", "aot_eager", "inductor")
    said = verdicts(run)
    zero = {api for (api, mode), verdict in said.items() if mode == "aot_eager" and verdict == "zero_gradient"}
    assert zero == {"buffer_in_function", "nn_in_function"}
    for api in APIS:
        assert said[api, "eager"] == "agree"
        assert said[api, "inductor"] == said[api, "aot_eager"]
        assert said[api, "aot_eager"] in ("agree", "zero_gradient")
    # It was run again alone, and still says whether there can be one whole graph, which the first pass had found out.
    (cell,) = [row.cell for row in run.rows if (row.case, row.mode) == (DIM0.format(APIS[0]), "aot_eager")]
    with run.database.read() as session:
        trace = store.find_cell(session, cell).evidence["trace"]
    assert (trace["fullgraph"], trace["collective_in_graph"], trace["breaks"]) == ("ok", True, [])


def test_on_2_2_2_what_agrees_when_traced_was_never_in_a_graph(tmp_path: Path) -> None:
    run = exchange(tmp_path, "2.2.2-index", "eager", "aot_eager")
    said = verdicts(run)
    for api in ("buffer_in_function", "nn_in_function", "nn"):
        assert (said[api, "eager"], said[api, "aot_eager"]) == ("agree", "agree_untraced")
    assert said["functional_in_function", "eager"] == "agree"
    assert said["functional_autograd", "eager"] == "unsupported"
    assert (said["functional", "eager"], said["functional", "aot_eager"]) == ("no_gradient", "no_gradient")
    (cell,) = [row.cell for row in run.rows if (row.case, row.mode) == (DIM0.format(APIS[0]), "aot_eager")]
    with run.database.read() as session:
        trace = store.find_cell(session, cell).evidence["trace"]
    assert not trace["collective_in_graph"]
    assert trace["breaks"]
    assert trace["breaks"][0]["reason"]
    assert trace["fullgraph"].startswith("Unsupported: ")


def test_what_was_one_graph_is_said_to_be_one_although_the_graph_as_captured_would_raise(tmp_path: Path) -> None:
    case = "torch-itself/all_gather[api=functional,dtype=float32,loss=square]"
    run = run_tree(tmp_path, "torch", [runtime("2.2.2-index")], cases=(case,), modes=("aot_eager",))
    with run.database.read() as session:
        trace = store.find_cell(session, run.rows[0].cell).evidence["trace"]
    assert (trace["graphs"], trace["fullgraph"]) == (1, "ok")


@pytest.mark.parametrize(("torch", "branch"), [("2.2.2-index", "IndexError"), ("2.11.0-index", "")])
def test_a_sub_groups_all_gather_fails_on_ranks_2_and_3_in_another_way_on_each_transport(
    tmp_path: Path, torch: str, branch: str
) -> None:
    over = ("gloo", "nccl-dispatch")
    run = run_tree(tmp_path, "torch", [runtime(torch)], cases=[SUBGROUP, TRANSPOSED], world_sizes=(4,), transports=over)
    row = {(one.case, one.transport): one for one in run.rows}
    over_gloo, over_branch = row[SUBGROUP, "gloo"], row[SUBGROUP, "nccl-dispatch"]
    assert over_gloo.verdict == "partial_raise"
    assert over_gloo.signature.startswith("ValueError")
    assert "on ranks 2 and 3 of 4 only" in over_gloo.detail
    # The second fault of the branch is silent: what its reduce_scatter filled is a copy that nobody looks at.
    if branch:
        assert over_branch.verdict == "partial_raise"
        assert over_branch.signature.startswith(branch)
        assert "on ranks 2 and 3 of 4 only" in over_branch.detail
        assert row[TRANSPOSED, "nccl-dispatch"].verdict not in ("agree", "raised")
        assert row[TRANSPOSED, "nccl-dispatch"].forward_ok is True
    else:
        assert over_branch.verdict == "agree"
        assert row[TRANSPOSED, "nccl-dispatch"].verdict == "agree"


@pytest.mark.parametrize("torch", ["2.2.2-index", "2.11.0-index"])
def test_a_loss_whose_sums_and_counts_are_reduced_apart_is_right_everywhere(tmp_path: Path, torch: str) -> None:
    cases = ["torch-itself/loss_aggregation[recipe=all_reduce*"]
    run = run_tree(tmp_path, "torch", [runtime(torch)], cases=cases, world_sizes=(2, 4))
    assert {str(row.verdict) for row in run.rows} == {"agree"}
    assert {row.world_size for row in run.rows if "one_empty" in row.case} == {2, 4}


def test_adding_a_version_to_a_stored_matrix_runs_only_its_own_jobs(tmp_path: Path) -> None:
    case = [DIM0.format("nn")]
    run_tree(tmp_path, "torch", [runtime("2.2.2-index")], cases=case)
    seen: list[events.Event] = []
    both = submit(tmp_path, "torch", [runtime("2.2.2-index"), runtime("2.11.0-index")], cases=case)
    work(both, seen.append)
    assert [event.torch for event in seen if isinstance(event, events.JobStarted)] == ["2.11.0"]
    assert {row.torch: row.verdict for row in both.rows} == {"2.2.2": "agree", "2.11.0": "agree"}


@pytest.mark.parametrize(("torch", "verdict"), [("2.2.2-index", "forward_mismatch"), ("2.11.0-index", "raised")])
def test_a_strided_input_is_silently_wrong_in_old_versions_and_refused_in_new_ones(
    tmp_path: Path, torch: str, verdict: str
) -> None:
    case = "torch-itself/dim0[api=buffer_in_function,dtype=float32,loss=square,input=transposed]"
    (row,) = run_tree(tmp_path, "torch", [runtime(torch)], cases=(case,)).rows
    assert row.verdict == verdict
    assert "is wrong by" in row.detail or "must be contiguous" in row.detail
