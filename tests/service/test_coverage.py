"""The table of what is covered, over hand-written packages and over the newest real release that it was written for."""

from __future__ import annotations

import textwrap
from collections import Counter

import pytest

from service.cases import catalogue, fits
from service.config import load_settings
from service.coverage import CoverageError, Map, Row, coverage, load_map, parse_map, stale
from service.holding import held
from service.subjects import Cache, Unreachable, parse_subject, resolve
from workers.cli.coverage import sources_of

NEWEST = "deepspeed==0.19.8"
TABLE = """
skip = ["tests"]
skip_files = ["test_*.py"]
modules = ["lib/seq/*.py"]
[probes]
"lib.seq.a:Step" = ["exchange/dim0", "attention/*"]
"lib.seq.*:plain" = ["exchange/seq_head"]
"lib.seq.a:gone" = ["exchange/dim0"]
[former]
"lib.seq.a:old" = ["exchange/dim0"]
[uncovered]
"lib.moe:*" = "not split"
"""
STEP = """
    import torch, torch.distributed as dist
    class Step(torch.autograd.Function):
        def forward(ctx, x): return dist.all_reduce(x)
"""
TREE = {
    "lib/seq/a.py": textwrap.dedent(STEP) + "def plain(x): return x\ndef other(x): return x\n",
    "lib/moe.py": textwrap.dedent(STEP) + "def plain(x): return x\n",
    "lib/seq/deep/b.py": "def plain(): ...\n",
    "lib/seq/test_a.py": textwrap.dedent(STEP),
    "tests/seq/a.py": textwrap.dedent(STEP),
}
CASES = ("exchange/dim0[a=b]", "exchange/dim0[a=c]", "exchange/seq_head[a=b]", "tiled/mlp[a=b]")


def rows(table: str = TABLE) -> dict[str, Row]:
    return {f"{row.module}:{row.name}": row for row in coverage(TREE, CASES, parse_map(table))}


def test_what_holds_a_collective_and_public_names_of_modules_under_test_are_listed() -> None:
    assert set(rows()) == {"lib.seq.a:Step", "lib.seq.a:plain", "lib.seq.a:other", "lib.moe:Step"}


def test_each_has_the_probes_that_reach_it_or_why_there_are_none() -> None:
    found = rows()
    assert (found["lib.seq.a:Step"].probes, found["lib.seq.a:Step"].public) == (("exchange/dim0",), True)
    assert (found["lib.seq.a:plain"].probes, found["lib.seq.a:plain"].reason) == (("exchange/seq_head",), "")
    assert (found["lib.seq.a:other"].probes, found["lib.seq.a:other"].reason) == ((), "")
    assert (found["lib.moe:Step"].reason, found["lib.moe:Step"].public) == ("not split", False)


def test_a_probe_without_a_case_covers_nothing() -> None:
    found = rows(TABLE.replace('["exchange/dim0", "attention/*"]', '["attention/*"]'))
    assert (found["lib.seq.a:Step"].probes, found["lib.seq.a:Step"].reason) == ((), "no case of attention/*")


def test_a_name_that_is_gone_and_a_former_one_that_is_there_are_stale() -> None:
    table = parse_map(TABLE.replace("lib.seq.a:old", "lib.seq.a:other"))
    assert stale(coverage(TREE, CASES, table), table) == (
        "lib.seq.a:gone is in [probes], and there is no such name",
        "lib.seq.a:other is in [former], and is there",
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("skip_files", "skip_file", "unknown key 'skip_file': did you mean skip_files"),
        ('skip = ["tests"]', 'skip = "tests"', "skip is not a list"),
        ('"lib.seq.a:gone"', '"lib.seq.a"', "'lib.seq.a' is not MODULE:NAME"),
        ('["exchange/seq_head"]', "[]", "'lib.seq.*:plain' is not MODULE:NAME = a list of probes"),
        ("[former]", "[former", "not TOML"),
    ],
)
def test_a_table_of_another_form_is_refused_and_named(old: str, new: str, said: str) -> None:
    with pytest.raises(CoverageError) as caught:
        parse_map(TABLE.replace(old, new))
    assert said in str(caught.value)


def test_every_probe_that_the_table_names_has_a_case() -> None:
    table, ids = load_map(), [case.id for case in catalogue().cases]
    for name, globs in {**table.probes, **table.former}.items():
        for glob in globs:
            assert any(fits(glob, case) for case in ids), f"{name}: {glob}"


# -- a real release ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release() -> dict[str, str]:
    settings = load_settings()
    try:
        checkout = resolve(parse_subject(NEWEST, settings), settings)
    except Unreachable as error:
        pytest.skip(str(error))
    return sources_of(Cache(settings.home).folder / f"{checkout.digest}.tar", load_map())


@pytest.mark.torch
def test_every_name_of_the_table_is_in_the_newest_release_and_no_former_one(release: dict[str, str]) -> None:
    table: Map = load_map()
    assert stale(coverage(release, [case.id for case in catalogue().cases], table), table) == ()


@pytest.mark.torch
def test_what_a_search_for_text_finds_in_the_newest_release_is_found(release: dict[str, str]) -> None:
    found = held(release)
    kinds = Counter(one.kind for one in found)
    # Every decorator in the release's text, of operators whose body or derivative calls dist.
    assert {one.name for one in found if one.kind == "operator"} == {
        "deepspeed::dim_zero_all_to_all",
        "autosp::all_to_all",
        "autosp::all_gather_sequence",
        "autosp::reduce_scatter_sequence",
        "autotp::copy_to_tp_region",
        "autotp::reduce_from_tp_region",
        "autotp::gather_from_tp_region",
    }
    reached = {one.key: one.collectives for one in found}
    assert reached["deepspeed.sequence.layer:_SeqAllToAll"] == ("all_to_all_single",)
    assert reached["deepspeed.moe.mappings:_GatherTokens"] == ("all_gather_into_tensor",)
    assert reached["deepspeed.moe.sharded_moe:_AllToAll"] == ("all_to_all_single",)
    assert "deepspeed.sequence.fpdt_layer:FPDT_FFN" not in reached  # its text names no collective
    assert kinds["function"] >= 20
