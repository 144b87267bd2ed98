"""Subjects that change what is not theirs, leave processes behind, or take memory without end, through the whole line:
the cell says what happened, its neighbours are as they should be, and nothing is left running."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.processes import processes_in
from tests.support.running import ONE_CASE, Run, run_tree
from tests.support.runtimes import runtime
from tests.support.subjects import write_subject

pytestmark = pytest.mark.torch
RUNTIME = "2.11.0-index"
DIM0 = "exchange/dim0[dtype={},loss=square]"
FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = (DIM0.format(name) for name in ("float32", "float64", "bfloat16", "float16"))
ORDER = (FLOAT32, FLOAT64, BFLOAT16, FLOAT16)
SEQ_HEAD = "exchange/seq_head[layout=bshd,scatter=heads,heads=double,dtype=float32,loss=square]"
TWO_GIBIBYTES = 2 * 2**30
FAKE_DEEPSPEED = {
    "deepspeed/__init__.py": "__version__ = '9.9'\ndef init_distributed(*args, **kwargs):\n    pass\n",
    "deepspeed/comm/__init__.py": "",
    "deepspeed/comm/torch.py": "",
    "deepspeed/utils/__init__.py": "",
    "deepspeed/utils/groups.py": "",
    "deepspeed/sequence/__init__.py": "",
    "deepspeed/sequence/layer.py": """
import torch

def single_all_to_all(plan, input, *, stream):
    return input

class _SeqAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, input):
        return input
""",
}


def detail_of(run: Run, case: str) -> str:
    return next(row.detail for row in run.rows if row.case == case)


def verdicts(run: Run) -> dict[str, str]:
    return {row.case: str(row.verdict) for row in run.rows}


def in_turn(**calls: str) -> str:
    """A call that does something else in each type."""
    blocks = []
    for dtype, code in calls.items():
        body = textwrap.indent(textwrap.dedent(code).strip(), "    ")
        blocks.append(f"if x.dtype == torch.{dtype} and not torch.compiler.is_compiling():\n{body}")
    return "\n".join(blocks)


def odd(tmp_path: Path, cases: tuple[str, ...] = ORDER, rank_memory_bytes: int = 0, **misbehaviour: str) -> Run:
    tree = write_subject(tmp_path / "odd", **misbehaviour)
    home = tmp_path / "home"
    run = run_tree(home, tree, [runtime(RUNTIME)], cases=cases, rank_memory_bytes=rank_memory_bytes)
    assert not processes_in(home)
    return run


def test_switches_functions_and_processes_are_told_of_and_put_back(tmp_path: Path) -> None:
    run = odd(
        tmp_path,
        call=in_turn(
            float32="""
                torch.manual_seed(7)
                torch.use_deterministic_algorithms(True, warn_only=True)
                torch.set_default_dtype(torch.float64)
            """,
            float64="""
                y = Exchange.apply(x, ctx.group)
                torch.nn.functional.softmax = None
                torch.Tensor.contiguous = lambda tensor, **more: tensor * 0
                return y
            """,
            bfloat16="""
                import subprocess
                subprocess.Popen(['sleep', '999'])
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0: os.execvp('sleep', ['sleep', '998'])
                    os._exit(0)
                if os.fork() == 0:
                    import ctypes, time
                    ctypes.CDLL(None).prctl(15, b'addr2line')  # as torch's own, which looks up a stack
                    time.sleep(999)
                    os._exit(0)
            """,
            float16="""
                if torch.initial_seed() == 7 or torch.get_default_dtype() != torch.float32:
                    raise ValueError('another case is still here')
                if torch.are_deterministic_algorithms_enabled() or torch.nn.functional.softmax is None:
                    raise ValueError('another case is still here')
                try:
                    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    raise ValueError('another case is still here')
                except ChildProcessError:
                    pass
            """,
        ),
    )
    said = verdicts(run)
    assert (said[FLOAT32], said[BFLOAT16], said[FLOAT16]) == ("agree", "agree", "agree"), detail_of(run, FLOAT16)
    assert said[FLOAT64] == "forward_mismatch"  # the second of its two passes met the function that it replaced
    for told in ("random seed", "became 7", "deterministic algorithms: False became True", "default dtype"):
        assert told in detail_of(run, FLOAT32)
    assert "functions of torch: " in detail_of(run, FLOAT64)
    assert "torch.Tensor.contiguous" in detail_of(run, FLOAT64)
    assert "torch.nn.functional.softmax" in detail_of(run, FLOAT64)
    assert "processes left running: sleep, sleep" in detail_of(run, BFLOAT16)
    assert "addr2line" not in detail_of(run, BFLOAT16)
    assert "also changed" not in detail_of(run, FLOAT16)


def test_drawing_random_numbers_is_no_fault_and_the_next_case_draws_the_same(tmp_path: Path) -> None:
    draw = """
        import random
        mine = (torch.rand(1).item(), random.random())
        drawn = globals().setdefault('DRAWN', {}).setdefault(x.dtype, []).append(mine)
        if x.dtype == torch.float16 and DRAWN[torch.float16][0] != DRAWN[torch.float32][0]:
            raise ValueError('another case has drawn before')
    """
    run = odd(tmp_path, (FLOAT32, FLOAT16), call=draw)
    assert set(verdicts(run).values()) == {"agree"}, detail_of(run, FLOAT16)
    assert "also changed" not in detail_of(run, FLOAT16)


def test_what_torch_wraps_by_itself_when_its_tracer_is_imported_late_is_no_change(tmp_path: Path) -> None:
    run = odd(tmp_path, (FLOAT32,), load="import torch._dynamo", call="raise ValueError('no')")
    assert verdicts(run) == {FLOAT32: "raised"}
    assert "also changed" not in detail_of(run, FLOAT32)


def test_what_set_up_and_import_change_is_told_in_every_cell(tmp_path: Path) -> None:
    leave = "import subprocess; subprocess.Popen(['sleep', '997'])"
    run = odd(tmp_path, (FLOAT32, FLOAT64), load=leave, setup="torch.set_default_dtype(torch.float64)")
    assert set(verdicts(run).values()) == {"agree"}
    for case in (FLOAT32, FLOAT64):
        assert "processes left running: sleep" in detail_of(run, case)
        assert "default dtype: torch.float32 became torch.float64" in detail_of(run, case)


def test_memory_without_bound_ends_in_its_own_cell(tmp_path: Path) -> None:
    hog = "hog = []\nwhile True: hog.append(torch.empty(2**24))"
    bytes_too = "hog = []\nwhile True: hog.append(bytearray(2**22))"
    call = in_turn(float32=hog, bfloat16="if ctx.rank == 1:\n    " + textwrap.indent(bytes_too, "    ").lstrip())
    run = odd(tmp_path, rank_memory_bytes=TWO_GIBIBYTES, call=call)
    said = verdicts(run)
    assert (said[FLOAT32], said[BFLOAT16]) == ("raised", "partial_raise")
    assert (said[FLOAT64], said[FLOAT16]) == ("agree", "agree")
    for case in (FLOAT32, BFLOAT16):
        assert "more memory than one rank may take here, 2.1 GB" in detail_of(run, case)
        assert "gradmatrix_adapter.py" in detail_of(run, case)


def test_an_import_that_takes_memory_without_bound_is_unimportable(tmp_path: Path) -> None:
    run = odd(tmp_path, (ONE_CASE,), TWO_GIBIBYTES, load="hog = []\nwhile True: hog.append(torch.empty(2**24))")
    assert set(verdicts(run).values()) == {"unimportable"}
    assert "more memory than one rank may take here" in detail_of(run, ONE_CASE)


def test_an_api_that_is_absent_or_of_another_signature_is_unsupported_and_named(tmp_path: Path) -> None:
    for name, text in FAKE_DEEPSPEED.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = run_tree(tmp_path / "home", tmp_path / "tree", [runtime(RUNTIME)], cases=[ONE_CASE, SEQ_HEAD])
    assert set(verdicts(run).values()) == {"unsupported"}
    assert "has neither _dim_zero_all_to_all nor _DimZeroAllToAll" in detail_of(run, ONE_CASE)
    assert "single_all_to_all(plan, input, *, stream) is of no known signature" in detail_of(run, SEQ_HEAD)
