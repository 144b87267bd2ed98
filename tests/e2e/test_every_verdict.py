"""Verdicts of calls that answer, through the whole line: one subject, wrong in another way for each type of tensor.

What does not answer (a crash, a hang, an error, an import that fails) and what leaks is in ``test_odd_subjects``.
``insensitive``, of a case whose every right gradient is below the noise, is in ``test_known_faults``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.running import ONE_CASE, QUICK, Run, run_tree
from tests.support.runtimes import runtime

pytestmark = pytest.mark.torch
RUNTIME = "2.11.0-index"
TYPES = ("float32", "float64", "bfloat16", "float16")
REFUSAL = "exchange/dim0[dtype=float32,loss=square,blocks=extra]"

ADAPTER = """
import torch
import torch.distributed as dist
from jobs.subject.base import Subject

HOW = {how!r}
BACKWARDS = [0]


def sent(x, group):
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x.contiguous(), group=group)
    return y


def half(g):
    g = g.clone()
    g.view(-1)[g.numel() // 2 :] = 0
    return g


def unsteady(g):
    BACKWARDS[0] += 1
    return g * 2 if BACKWARDS[0] == 1 else g


BACKWARD = {{
    "zero_gradient": torch.zeros_like,
    "partial_zero": half,
    "scaled": lambda g: 2 * g,
    "permuted": lambda g: g.reshape(-1).flip(0).view_as(g),
    "mismatch": lambda g: g + torch.arange(g.numel(), dtype=g.dtype).view_as(g),
    "nondeterministic": unsteady,
}}


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, how):
        ctx.group, ctx.how = group, how
        return sent(x, group)

    @staticmethod
    def backward(ctx, g):
        return BACKWARD.get(ctx.how, lambda g: g)(sent(g, ctx.group)), None, None


class Wrong(Subject):
    name = "wrong"

    def load(self, root):
        pass

    def dim0_exchange(self, ctx):
        def call(x):
            if x.shape[0] != ctx.sp_size:
                raise ValueError(f"{{x.shape[0]}} blocks for {{ctx.sp_size}} ranks")
            how = HOW.get(str(x.dtype).removeprefix("torch."), "agree")
            if how == "infra":
                raise OSError(28, "No space left on device")
            if how == "no_gradient":
                y = Exchange.apply(x.detach(), ctx.group, how)
                return y + torch.zeros_like(y).requires_grad_()
            apply = torch._dynamo.disable(Exchange.apply) if how == "agree_untraced" else Exchange.apply
            y = apply(x, ctx.group, how)
            if how == "mutated":
                x.data.neg_()
            return y.unsqueeze(0) if how == "wrong_shape" else 2 * y if how == "forward_mismatch" else y

        return call


def adapter():
    return Wrong()
"""


def wrong(folder: Path, *verdicts: str, modes: tuple[str, ...] = ("eager",), more: tuple[str, ...] = ()) -> Run:
    """A run of one case per type of tensor, each wrong in the way that the verdict of its place names."""
    tree = folder / "wrong"
    tree.mkdir()
    how = dict(zip(TYPES, verdicts, strict=False))
    (tree / "gradmatrix_adapter.py").write_text(ADAPTER.format(how=how))
    cases = [ONE_CASE.replace("float32", dtype) for dtype in how]
    return run_tree(folder / "home", tree, [runtime(RUNTIME)], cases=[*cases, *more], modes=modes, deadlines=QUICK)


WAYS = [
    ("zero_gradient", "partial_zero", "no_gradient", "scaled"),
    ("permuted", "mismatch", "wrong_shape", "forward_mismatch"),
    ("mutated", "nondeterministic", "infra", "agree"),
]


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: ways[0])
def test_each_way_of_being_wrong_has_its_verdict(tmp_path: Path, ways: tuple[str, ...]) -> None:
    run = wrong(tmp_path, *ways, more=(REFUSAL,) if "agree" in ways else ())
    said = run.verdicts()
    assert [said[f"{ONE_CASE.replace('float32', dtype)} eager"] for dtype in TYPES] == list(ways)
    assert said.get(f"{REFUSAL} eager", "refused") == "refused"


def test_a_graph_break_before_the_collective_is_agreement_that_proved_nothing(tmp_path: Path) -> None:
    run = wrong(tmp_path, "agree_untraced", modes=("aot_eager",))
    assert set(run.verdicts().values()) == {"agree_untraced"}
