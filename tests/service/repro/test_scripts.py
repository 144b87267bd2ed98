from __future__ import annotations

import ast
import dataclasses
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import CaseInfo
from jobs.probes import catalogue
from service import repro
from service.evidence import Evidence, TensorEvidence
from service.repro import NothingToReproduce
from service.repro.families import FAMILIES
from service.store.origin import Origin
from tests.service.repro.made import FILES, given, source

LONG = ("model", "engine")
"""Families whose scripts may have 120 lines and more."""
NOT_HERE = re.compile(r"gradmatrix|\bjobs\b|[\"' ]/(root|work|home|tmp)\b|https?://")
DIM0 = "exchange/dim0[dtype=float32,loss=square]"


def case_of(case_id: str) -> CaseInfo:
    return next(case for case in catalogue() if case.id == case_id)


def script(case_id: str, folder: Path, generation: str = "process heads", mode: str = "eager", **more: Any) -> str:
    case = case_of(case_id)
    return repro.script(given(case, mode, more.pop("world", 2), source(folder, FILES[generation]), **more))


def imported(text: str) -> set[str]:
    """The packages that a script imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def undefined(text: str) -> set[str]:
    """Names that are read somewhere and bound nowhere."""
    import builtins
    import symtable

    free: set[str] = set()
    top = symtable.symtable(text, "script", "exec")
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    waiting = [top]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        free |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return free - bound - set(dir(builtins))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_case_of_every_generation_gives_a_short_script_of_torch_and_the_subject_alone(
    family: str, tmp_path: Path
) -> None:
    written = 0
    sources = {name: source(tmp_path / name.replace(" ", "-"), files) for name, files in FILES.items()}
    for case in catalogue():
        if case.family != family or (family in LONG and case.suite != "default"):
            continue
        world = 4 if case.runs_at(4) else 8
        for generation, files in sources.items():
            for answered in (True, False):
                try:
                    text = repro.script(given(case, case.modes[-1], world, files, answered))
                except NothingToReproduce:
                    continue
                written += 1
                where = f"{case.id}, {generation}"
                compile(text, "script", "exec")
                assert imported(text) <= {
                    *("faulthandler", "math", "multiprocessing", "os", "pickle", "random", "sys", "tempfile", "types"),
                    *("traceback", "concurrent", "contextlib", "importlib", "torch", "deepspeed"),
                }, where
                assert undefined(text) == set(), where
                assert not NOT_HERE.search(text), where
                if family not in LONG:
                    assert text.count("\n") < 120, where
    assert written > 20


def test_it_says_what_was_found_on_what_and_how_to_run_it(tmp_path: Path) -> None:
    text = script(DIM0, tmp_path, mode="aot_eager", detail="gradient of x is zero", verdict="zero_gradient")
    said = str(ast.get_docstring(ast.parse(text)))
    assert said.startswith("Zero gradient: gradient of x is zero.\n")
    assert 'torch 2.11.0, 2 processes over gloo, traced by torch.compile(backend="aot_eager").' in said
    assert "pip install torch==2.11.0 deepspeed==0.0 numpy 'setuptools<81'" in said
    assert "python3.11 -m venv" in said
    assert "docker run" in said
    assert "python:3.11" in said
    assert 'torch.compile(call, backend="aot_eager")' in text


def test_what_a_strangers_code_said_can_neither_end_the_docstring_nor_name_a_folder(tmp_path: Path) -> None:
    detail = 'No file "/home/me/.cache/x/y.so": """ + exec("1") \\ \x1b[31m'
    text = script(DIM0, tmp_path, detail=detail)
    tree = ast.parse(text)
    assert isinstance(tree.body[1], ast.Import)
    said = str(ast.get_docstring(tree))
    assert "…/y.so" in said
    assert "/home" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("generation", "called"),
    [
        ("gather index", "_SeqAllToAll.apply(group, x, 2, 1)\n"),
        ("process heads", "_SeqAllToAll.apply(group, x, 2, 1, 0)\n"),
        ("keyword heads", "_SeqAllToAll.apply(group, x, 2, 1, 0, None, None, None, True, 4)\n"),
    ],
)
def test_the_call_is_that_of_the_checkouts_own_generation(tmp_path: Path, generation: str, called: str) -> None:
    heads = "exchange/seq_head[layout=bshd,scatter=heads,heads=double,dtype=float32,loss=square]"
    text = script(heads, tmp_path, generation)
    assert called in text
    assert ("register_all_to_all_group(group)" in text) == (generation == "keyword heads")
    assert ("build_shm_op" in text) == (generation == "process heads")


def test_uneven_heads_are_stated_as_their_generation_wants_it(tmp_path: Path) -> None:
    uneven = "exchange/seq_head[layout=bshd,scatter=sequence,heads=uneven,dtype=float64,loss=weighted]"
    assert "tp_shard.set_num_kv_heads(3)" in script(uneven, tmp_path)
    assert ", True, 3)" in script(uneven, tmp_path, "keyword heads")
    # 3 heads on 2 ranks: the first has one more, so that what they hand in differs.
    assert '"x": draw("x", rank, (1, 8, [2, 1][rank], 4)).requires_grad_()' in script(uneven, tmp_path)


def test_losses_strides_and_groups_are_written_where_a_case_has_them(tmp_path: Path) -> None:
    plain = script(DIM0, tmp_path)
    assert "GROUP" not in plain
    assert "(y * y).sum().backward()" in plain
    assert "permute" not in plain
    assert "((y * y).sum() * 1024.0).backward()" in script("exchange/dim0[dtype=float32,loss=scaled]", tmp_path)
    strided = script("exchange/dim0[dtype=float32,loss=weighted,input=transposed,cotangent=transposed]", tmp_path)
    assert strided.count(".permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2)") == 2
    grouped = script("exchange/dim0[dtype=float32,loss=square,sp=2]", tmp_path, world=4)
    assert "WORLD, GROUP, DTYPE = 4, 2, torch.float32" in grouped
    assert "groups[rank // GROUP]" in grouped
    assert "y2.backward(w2)" in script("exchange/dim0[dtype=float32,loss=accumulate]", tmp_path)


def test_an_error_is_caught_only_where_a_rank_raised(tmp_path: Path) -> None:
    assert "except BaseException" not in script(DIM0, tmp_path)
    assert "except BaseException" in script(DIM0, tmp_path, answered=False)


def test_a_refusal_is_right_where_every_rank_refuses(tmp_path: Path) -> None:
    text = script("exchange/dim0[dtype=float32,loss=square,blocks=extra]", tmp_path, verdict="refused")
    assert "agrees: refused on every rank" in text
    assert "def truth" not in text


@pytest.mark.parametrize(("wrong", "status"), [([], 0), (["grad/x on rank 1"], 1)])
@pytest.mark.parametrize("case", [DIM0, "exchange/dim0[dtype=float32,loss=square,blocks=extra]"])
def test_the_exit_status_says_what_the_last_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, wrong: list[str], status: int
) -> None:
    text = script(case, tmp_path, verdict="refused" if "extra" in case else "mismatch")
    last_word = textwrap.dedent("\n".join(text.splitlines()[-2:]))
    with pytest.raises(SystemExit) as left:
        exec(last_word, {"wrong": wrong, "sys": sys})  # noqa: S102 - our own text
    assert left.value.code == status
    assert capsys.readouterr().out.startswith("does not agree: grad/x on rank 1\n" if wrong else "agrees")


def test_a_checkout_that_cannot_be_imported_is_imported(tmp_path: Path) -> None:
    text = script(DIM0, tmp_path, verdict="unimportable")
    assert "    sys.exit(1)\nelse:" in text
    assert imported(text) == {"os", "sys", "traceback", "torch", "deepspeed"}
    assert text.count("\n") < 40


def test_what_was_changed_is_compared_too(tmp_path: Path) -> None:
    made = given(case_of(DIM0), "eager", 2, source(tmp_path, FILES["process heads"]))
    changed = TensorEvidence("input", "x", 0, dtype="float32", shape=(4,), expected_shape=(4,), numel=4)
    said = repro.script(dataclasses.replace(made, evidence=Evidence(made.evidence.ranks, (changed,))))
    assert 'got["input/x"] = x.detach()' in said
    assert '"input/x": h["x"].detach()' in said


def test_room_for_rounding_comes_from_the_policy(tmp_path: Path) -> None:
    case = next(case for case in catalogue() if case.family == "tiled" and case.dtype == "float32")
    text = repro.script(given(case, "eager", 2, source(tmp_path, FILES["process heads"])))
    # Four elements of float32: c * eps * sqrt(n) = 4 * 2**-23 * 2.
    assert 'ROOM = {"grad/x": 9.54e-07}' in text


@pytest.mark.parametrize(
    ("kind", "label", "meta", "said"),
    [
        (
            "commit",
            "deepspeed@0123456789ab",
            {"repository": "https://git.example/ds"},
            "git+https://git.example/ds@abc",
        ),
        ("commit", "deepspeed@0123456789ab", {"repository": "/home/me/ds"}, "PYTHONPATH=subject python repro.py"),
        ("path", "path:mine", {}, "subject is a folder with the files of path:mine."),
    ],
)
def test_commits_and_folders_are_named_as_others_can_have_them(
    tmp_path: Path, kind: str, label: str, meta: dict[str, str], said: str
) -> None:
    made = given(case_of(DIM0), "eager", 2, source(tmp_path, FILES["process heads"]), label=label)
    text = repro.script(dataclasses.replace(made, origin=Origin(kind, "abc", meta)))
    assert said in text
    assert "/home/me" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": "unsupported"}, "the checkout or the runtime has no such call"),
        ({"verdict": "infra"}, "the machine failed"),
        ({"verdict": "invalid"}, "a control of ours failed"),
        ({"verdict": "leak"}, "only what ran before it"),
        ({"verdict": None}, "gradmatrix run --resume"),
        ({"subject": "checkout"}, "gradmatrix_adapter.py"),
    ],
)
def test_where_there_is_nothing_to_show_that_is_said(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NothingToReproduce, match=re.escape(said)):
        script(DIM0, tmp_path, **changes)


def test_a_family_without_a_template_is_named_with_those_that_have_one() -> None:
    with pytest.raises(NothingToReproduce, match="no scripts for family 'exchanges' yet: did you mean exchange"):
        repro.refuse("mismatch", "deepspeed", "exchanges")


def test_a_gradient_that_must_not_be_there_is_looked_for(tmp_path: Path) -> None:
    case = case_of("exchange/dim0[dtype=float32,loss=frozen]")
    made = given(case, "eager", 2, source(tmp_path, FILES["keyword heads"]))
    one = TensorEvidence("grad", "c", 0, dtype="float32", shape=(4,), numel=4, expected_missing=True)
    there = dataclasses.replace(made.evidence, tensors=(*made.evidence.tensors, one))
    text = repro.script(dataclasses.replace(made, evidence=there))
    assert 'got["grad/c"] = c.grad' in text
    assert '"grad/c": None' in text
    assert "grad/c" not in repro.script(made)
