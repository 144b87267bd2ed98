"""Torch's own family on real ranks: oracle against autograd, our reference and mutants, and faults that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs import probes
from jobs.probes.control import implementation_of
from service.evidence import ErrorInfo
from service.signature import name_error
from tests.jobs.inside import answer_of

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
OLD, NEW = "2.2.2-index", "2.11.0-index"
FAMILY = "torch-itself/"
CASES = {case.id: case for case in probes.catalogue() if case.id.startswith(FAMILY)}
OF_FORWARD = {
    "wrong_shape": {"output"},
    "averaged": {"output", "fd"},
    "mean_of_means": {"output", "grad"},
    "input_mutated": {"input"},
    "cotangent_mutated": {"cotangent"},
    "reference": set(),
    "traced_reference": set(),
}
"""What goes wrong where it is not the gradient and the central difference beside it."""


def answer(torch: str, *arguments: str, program: str = "tests/jobs/torch_itself_ranks.py") -> Any:
    return answer_of(program, torch, *arguments, timeout=240)


def told(torch: str, world_size: int, transport: str, mode: str, *cases: str) -> list[Any]:
    answers = answer(torch, str(world_size), "cases", transport, mode, *(FAMILY + case for case in cases))
    return [answers[FAMILY + case] for case in cases]


@pytest.mark.parametrize("world_size", ["2", "4", "8"])
def test_the_oracle_equals_autograd_through_one_process_that_holds_all_ranks(world_size: str) -> None:
    answers = answer(NEW, world_size, "dense")
    assert set(answers) == {case.id for case in CASES.values() if case.runs_at(int(world_size))}
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize("torch", [OLD, NEW])
@pytest.mark.parametrize("transport", ["gloo", "nccl-dispatch"])
def test_collectives_of_our_own_agree_in_every_case(torch: str, transport: str) -> None:
    answers = answer(torch, "4", "reference", transport, "eager")
    assert set(answers) == set(CASES)
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize("torch", [OLD, NEW])
@pytest.mark.parametrize(("world_size", "transport"), [("2", "gloo"), ("4", "nccl-dispatch")])
def test_every_mutant_goes_wrong_where_it_should_and_nowhere_else(torch: str, world_size: str, transport: str) -> None:
    answers = answer(torch, world_size, "mutants", transport, "eager")
    here = [one for one in probes.controls() if one.id in answers]
    assert len(here) >= 20
    for control in here:
        expected = OF_FORWARD.get(implementation_of(control), {"grad", "fd"})
        assert set(answers[control.id]) == expected, control.id


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_the_traced_references_agree(torch: str) -> None:
    answers = answer(torch, "2", "mutants", "gloo", "aot_eager")
    assert len(answers) == 2
    assert not any(answers.values())


def test_traced_on_2_11_a_buffer_filled_inside_an_autograd_function_loses_the_gradient() -> None:
    ways = ("buffer_in_function", "nn_in_function", "nn", "functional_in_function", "functional_autograd")
    cases = [f"dim0[api={way},dtype=float32,loss=square]" for way in ways]
    assert told(NEW, 2, "gloo", "aot_eager", *cases) == [["grad"], ["grad"], [], [], []]
    assert told(NEW, 2, "gloo", "eager", *cases) == [[]] * 5
    assert told(OLD, 2, "gloo", "aot_eager", *cases[:4]) == [[]] * 4


def test_what_a_torch_has_not_is_unsupported_by_name() -> None:
    (reason,) = told(OLD, 2, "gloo", "eager", "dim0[api=functional_autograd,dtype=float32,loss=square]")
    assert reason.startswith("unsupported: torch 2.2.2")
    assert reason.endswith("has no torch.distributed._functional_collectives.all_to_all_single_autograd")
    (reason,) = told(OLD, 2, "gloo", "eager", "reduce_scatter[api=nn,dtype=float32,loss=square]")
    assert reason == "unsupported: over gloo, torch refuses: ProcessGroupGloo does not support reduce_scatter"


def test_the_branch_for_nccl_of_a_gather_s_backward_is_wrong_on_2_2_in_two_ways() -> None:
    cases = (
        "all_gather[api=nn,dtype=float32,loss=square,sp=2]",
        "all_gather[api=nn,dtype=float32,loss=weighted,cotangent=transposed]",
    )
    sub_group, transposed = told(OLD, 4, "nccl-dispatch", "eager", *cases)
    assert sub_group == ["ok", "raised IndexError: tuple index out of range"]
    assert set(transposed) == {"grad", "fd", "not a number"}
    assert told(NEW, 4, "nccl-dispatch", "eager", *cases) == [[], []]


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_over_gloo_a_gather_has_no_backward_outside_the_first_sub_group(torch: str) -> None:
    (statuses,) = told(torch, 4, "gloo", "eager", "all_gather[api=nn,dtype=float32,loss=square,sp=2]")
    assert statuses[0] == "ok"
    assert all(status.startswith("raised ValueError") for status in statuses[1:])


RACE = "\nThis is a race: the calls are equal, and some raise while others do not."
GATHERS = (
    "all_gather[api=functional,dtype=float32,loss=square]",
    "all_gather[api=functional,dtype=float64,loss=weighted,sp=2]",
)


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        # The world's last rank alone, and with it one of two sub-groups: 8 of its 24 calls.
        ("racing", f"raised OddError: in 8 of 96 equal calls: went wrong{RACE}"),
        # Not in the tries, but in the pass itself.
        ("late", f"raised OddError: in 1 of 100 equal calls: went wrong{RACE}"),
        ("steady", "raised OddError: in 96 of 96 equal calls: went wrong"),
    ],
)
def test_what_raises_some_of_the_time_on_some_rank_is_raised_on_all_alike(raises: str, said: Any) -> None:
    answers = answer(NEW, "4", raises, "gloo", "eager", *(FAMILY + case for case in GATHERS))
    assert answers == {FAMILY + case: said for case in GATHERS}


def test_what_one_sub_group_always_raises_and_the_other_never_is_left_to_it() -> None:
    answers = answer(NEW, "4", "elsewhere", "gloo", "eager", FAMILY + GATHERS[1])
    assert answers == {FAMILY + GATHERS[1]: ["ok", "raised OddError: went wrong"]}


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_race_of_2_2_has_one_name_on_every_rank_and_there_is_none_on_2_11(world_size: int) -> None:
    cases = GATHERS if world_size == 4 else GATHERS[:1]
    for status in told(OLD, world_size, "gloo", "eager", *cases):
        named = name_error(ErrorInfo("RuntimeError", str(status).removeprefix("raised RuntimeError: ")))
        assert named.signature.startswith("RuntimeError: in <n> of <n> equal calls: A view was created in no_grad mode")
    assert told(NEW, world_size, "gloo", "eager", *cases) == [[]] * len(cases)
    assert told(NEW, 4, "gloo", "eager", *GATHERS) == [[], []]


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_a_reduced_loss_is_right_with_any_count_of_tokens(torch: str) -> None:
    cases = [case.id.removeprefix(FAMILY) for case in CASES.values() if case.params.get("recipe") == "all_reduce"]
    assert told(torch, 4, "gloo", "eager", *cases) == [[]] * len(cases)


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_dispatch_stands_in_for_what_gloo_lacks_and_refuses_what_nccl_refuses(torch: str, tmp_path: Path) -> None:
    program = tmp_path / "dispatch.py"
    program.write_text(DISPATCH)
    assert answer(torch, program=str(program)) == {
        "backend is the object": True,
        "gloo is still gloo": "gloo",
        "reduce_scatter": [12.0, 24.0],
        "reduce_scatter_tensor": [12.0, 24.0],
        "_reduce_scatter_base": [12.0, 24.0],
        "all_to_all": [1.0, 2.0],
        "reduce_scatter of strided parts": [1.0, 3.0, 2.0, 4.0],
        "as it lies in memory": True,
        "refused": ["ValueError: Tensors must be contiguous"] * 2,
        "unsupported": [
            "nccl-dispatch stands in for all_to_all of contiguous tensors only",
            "nccl-dispatch stands in for sums only, not for RedOpType.MAX",
            "nccl-dispatch stands in for collectives that are waited for only, not for async_op=True",
            "nccl-dispatch stands in for reduce_scatter of parts that have the shape of the output only",
        ],
        "left alone": True,
    }


DISPATCH = """
import json, tempfile
import torch, torch.distributed as dist
from jobs.dispatch import take_nccl_branches
from jobs.subject.base import Unsupported

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 1), rank=0, world_size=1)
    backend = dist.distributed_c10d.get_backend
    take_nccl_branches()
    x = torch.tensor([12.0, 24.0])
    answer = {
        "backend is the object": dist.get_backend() is dist.Backend.NCCL,
        "gloo is still gloo": backend(),
    }
    for name, given in (("reduce_scatter", [x]), ("reduce_scatter_tensor", x), ("_reduce_scatter_base", x)):
        y = torch.zeros(2)
        getattr(dist, name)(y, given)
        answer[name] = y.tolist()
    y = [torch.zeros(2)]
    dist.all_to_all(y, [torch.tensor([1.0, 2.0])])
    answer["all_to_all"] = y[0].tolist()
    y = torch.zeros(2, 2)
    dist.reduce_scatter(y, [torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()])
    answer["reduce_scatter of strided parts"] = y.flatten().tolist()
    # NCCL is handed memory: what lies with its channels last arrives so.
    last = torch.arange(16.0).reshape(1, 4, 2, 2).to(memory_format=torch.channels_last)
    y = torch.zeros_like(last)
    dist.reduce_scatter_tensor(y, last)
    z = torch.zeros(1, 4, 2, 2)
    dist.reduce_scatter_tensor(z, last)
    lying = last.permute(0, 2, 3, 1).flatten()
    answer["as it lies in memory"] = torch.equal(y, last) and torch.equal(z.flatten(), lying)
    answer["refused"], answer["unsupported"] = [], []
    strided = torch.ones(4, 4)[:, :1]
    calls = (
        lambda: dist.reduce_scatter(strided, [torch.ones(4, 1)]),
        lambda: dist.reduce_scatter_tensor(torch.ones(4, 1), strided),
        lambda: dist.all_to_all([torch.zeros(4, 1)], [strided]),
        lambda: dist.reduce_scatter(torch.zeros(2), [x], op=dist.ReduceOp.MAX),
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), x, async_op=True),
        lambda: dist.reduce_scatter(torch.zeros(3), [x]),
    )
    for call in calls:
        try:
            call()
        except ValueError as error:
            answer["refused"].append(f"ValueError: {error}")
        except Unsupported as reason:
            answer["unsupported"].append(str(reason))
    answer["left alone"] = x.tolist() == [12.0, 24.0]
    print(json.dumps(answer))
"""
