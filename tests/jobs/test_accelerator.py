"""What a rank on a GPU is given, as far as it can be seen without one: names, numerics, and what counts as the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs import accelerator
from jobs.group import Group
from service.config import load_settings
from tests.jobs.inside import answer_of
from tests.support.runtimes import runtime
from workers.runtimes.venv import VenvExecutor

PROGRAM = "tests/jobs/accelerator_inside.py"
BUILDS_WITH_NCCL = ("2.2.2-index", "2.11.0-index")
LIBRARIES = ("libtorch_cuda.so", "libtorch_cpu.so")


def test_each_torch_is_told_in_the_names_that_it_knows() -> None:
    old, new = (accelerator.environment(version, 600.0) for version in ("2.7.1+cu126", "2.8.0"))
    assert old["TORCH_NCCL_TRACE_BUFFER_SIZE"] == new["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert "TORCH_FR_BUFFER_SIZE" not in old
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in new
    assert "TORCH_NCCL_NAN_CHECK" not in accelerator.environment("2.2.2", 1.0)
    assert accelerator.environment("2.15.0.dev20261101", 700.4)["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "700"
    assert old["NCCL_SOCKET_IFNAME"] == "lo"


@pytest.mark.torch
@pytest.mark.parametrize("name", BUILDS_WITH_NCCL)
def test_the_names_are_in_the_libraries_of_that_torch(name: str) -> None:
    spec = runtime(name)
    folder = VenvExecutor(load_settings()).folder(spec) / "lib" / "python3.11" / "site-packages" / "torch" / "lib"
    known = b"".join((folder / library).read_bytes() for library in LIBRARIES)
    told = [key for key in accelerator.environment(spec.torch, 1.0) if key.startswith("TORCH_")]
    assert [key for key in told if b"\0" + key.encode() + b"\0" not in known] == []


@pytest.mark.torch
@pytest.mark.parametrize("name", BUILDS_WITH_NCCL)
def test_products_are_not_rounded_and_attention_is_the_plain_one(name: str) -> None:
    said = answer_of(PROGRAM, name, timeout=120)
    wanted = {**accelerator.NUMERICS, **{f"attention {name}": value for name, value in accelerator.ATTENTION.items()}}
    there = {key: wanted[key] for key in said["numerics"]}
    assert said["numerics"] == there
    assert {"cuda.matmul.allow_tf32", "cudnn.allow_tf32", "attention math", "attention flash"} <= there.keys()
    assert said["precision"] == "highest"
    assert said["lacking"].startswith("64 ranks need a GPU each, and this job has ")


@pytest.mark.torch
def test_sums_in_another_order_are_the_same_and_nothing_else_is() -> None:
    said = answer_of(PROGRAM, "2.11.0-index", timeout=120)
    assert said["same"] == {
        "itself": True,
        "another order": True,
        "a small element off by little of the largest": True,
        "one element of another size": False,
        "an element less": False,
        "integers": False,
        "NaN elsewhere": False,
        "infinity elsewhere": False,
        "another name": False,
    }


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"type": "AcceleratorError", "message": "an illegal memory access was encountered"}, True),
        ({"type": "RuntimeError", "message": "CUDA error: device-side assert triggered"}, True),
        ({"type": "DistBackendError", "message": "NCCL error in: ProcessGroupNCCL.cpp"}, True),
        ({"type": "RuntimeError", "message": "shape '[2, 3]' is invalid for input of size 5"}, False),
        (None, False),
    ],
)
def test_an_error_of_the_device_ends_its_group(error: dict[str, Any] | None, expected: bool) -> None:
    assert accelerator.at_fault(error) is expected
    group = Group.__new__(Group)
    rank = type("Rank", (), {"ended": True, "gone": False, "answer": {"status": "raised", "error": error}})()
    group._ranks, group.usable = [rank, rank], True
    group._judge_usable()
    assert group.usable is not expected


def test_what_collectives_were_begun_stands_under_the_stacks_of_a_rank_that_hangs(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks-0"
    stacks.write_text('File "x.py", line 1')
    group = Group.__new__(Group)
    rank = type("Rank", (), {"gone": False, "pid": 0, "stacks": stacks})()
    group._ranks = [rank]
    group._listen = lambda until, deadline: (tmp_path / "stacks-0.flight").write_text('{"entries": 7}') > 0  # type: ignore[method-assign]
    assert group._read_stacks() == {0: 'File "x.py", line 1\nNCCL\'s flight recorder:\n{"entries": 7}\n'}


@pytest.mark.torch
def test_ranks_that_lack_a_gpu_are_no_fault_of_the_subject(tmp_path: Path) -> None:
    said = answer_of("tests/jobs/accelerator_job.py", "2.11.0-index", str(tmp_path), timeout=120)
    assert (said["t"], said["ok"]) == ("bye", False)
    assert said["reason"].startswith("64 ranks need a GPU each")
