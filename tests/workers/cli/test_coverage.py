from __future__ import annotations

import json
from pathlib import Path

from tests.workers.cli.conftest import Gradmatrix

SOURCE = """
import torch
import torch.distributed as dist


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return dist.all_to_all_single(x, x)


def plain(x):
    return x
"""


def text(name: str) -> str:
    if name.endswith("__init__.py"):
        return ""
    return SOURCE.replace("_Swap", "_SeqAllToAll") if "layer" in name else SOURCE


def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name in ("deepspeed/__init__.py", "deepspeed/sequence/layer.py", "tests/layer.py", "other/swap.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(name))
    return folder


def test_a_tree_is_read_and_what_is_covered_is_told_from_what_is_not(gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    status, out, _ = gradmatrix("cases", "--coverage", str(tree(tmp_path)))
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert ["deepspeed.sequence.layer"] in lines
    covered = next(line for line in out.splitlines() if "_SeqAllToAll" in line)
    assert "exchange/seq_head" in covered
    assert "function (all_to_all_single)" in covered
    assert next(line for line in out.splitlines() if "_Swap" in line).split()[1:3] == ["not", "covered"]
    assert "2 functions and operators with a collective: 1 covered, 1 not" in out
    assert "1 public name of the modules under test: 0 covered, 1 not" in out
    assert "that is a table written by hand, service/coverage.toml" in " ".join(out.split())


def test_the_json_has_every_row(gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    status, out, _ = gradmatrix("cases", "--coverage", str(tree(tmp_path)), "--json", "-")
    rows = {f"{row['module']}:{row['name']}": row for row in json.loads(out)["rows"]}
    assert status == 0
    assert rows["other.swap:_Swap"]["collectives"] == ["all_to_all_single"]
    assert rows["deepspeed.sequence.layer:plain"]["public"] is True


def test_torch_has_no_checkout_and_an_unknown_path_is_named(gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    status, _, err = gradmatrix("cases", "--coverage", "torch")
    assert (status, "torch has no checkout" in err) == (2, True)
    status, _, err = gradmatrix("cases", "--coverage", str(tmp_path / "nothing"))
    assert status == 2
    assert "nothing" in err
