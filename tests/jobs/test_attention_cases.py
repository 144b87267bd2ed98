"""The attention family as data: which axes are covered, what follows from them, and what its controls stand on."""

from __future__ import annotations

import pytest

from jobs import probes
from jobs.contract import MODES, WORLD_SIZES, CaseInfo
from jobs.probes.attention.controls import MUTANTS, OF_REPLICAS
from jobs.probes.attention.shapes import (
    LAYOUTS,
    Attention,
    Chunked,
    Distributed,
    UlyssesHF,
    head_shares,
    params_of,
)
from jobs.probes.case import FLOATS, input_key
from jobs.probes.control import implementation_of

CASES = {case.id: case for case in probes.catalogue() if case.family == "attention"}
CONTROLS = [control for control in probes.controls() if control.family == "attention"]
AXES = {
    "dtype": {"float32", "float64", "bfloat16", "float16"},
    "loss": {"square", "weighted", "scaled", "shared", "accumulate", "forward_only"},
    "input": {"contiguous", "transposed", "expanded", "offset"},
    "cotangent": {"contiguous", "transposed", "expanded"},
    "wrap": {"call", "layer"},
    "sp": {"0", "2", "4"},
    "batch": {"1", "2", "3"},
    "length": {"even", "odd", "unequal"},
    "causal": {"yes", "no"},
}
OF_DISTRIBUTED = {
    "layout": {"bshd", "sbhd"},
    "heads": {"ranks", "double", "quadruple", "squared", "uneven", "uneven_large", "uneven_double", "uneven_shared"},
    "kv": {"same", "ranks", "double", "few", "uneven"},
    "rotary": {"no", "full", "half"},
    "gather": {"layout", "zero"},
    "told": {"no", "yes"},
    "overlap": {"no", "stand_in", "stream"},
    "before": {"nothing", "uneven"},
    "frozen": {"", "q", "kv"},
}
OF_ULYSSES = {
    "kv": {"same", "ranks", "double", "few", "one", "uneven"},
    "positions": {"running", "packed"},
    "lengths": {"fixed", "variable"},
    "before": {"nothing", "longer"},
}


def of(probe: str, suite: str = "default") -> list[CaseInfo]:
    return [case for case in CASES.values() if case.probe == probe and case.suite == suite]


def test_ids_are_unique_and_those_that_others_rely_on_exist() -> None:
    assert len(CASES) == sum(case.family == "attention" for case in probes.catalogue())
    for stable in (
        "attention/distributed[layout=bshd,heads=squared,kv=ranks,dtype=float32,causal=yes]",
        "attention/distributed[layout=bshd,heads=squared,kv=same,dtype=float32,causal=yes,overlap=stand_in]",
        "attention/ulysses_hf[heads=double,kv=same,dtype=float32,causal=yes]",
    ):
        assert stable in CASES


@pytest.mark.parametrize("axis", [*AXES, *OF_DISTRIBUTED])
def test_the_default_suite_of_distributed_covers_every_value(axis: str) -> None:
    assert {case.params[axis] for case in of("distributed")} == {**AXES, **OF_DISTRIBUTED}[axis]


@pytest.mark.parametrize("axis", [*AXES, *OF_ULYSSES])
def test_the_default_suite_of_ulysses_covers_every_value(axis: str) -> None:
    assert {case.params[axis] for case in of("ulysses_hf")} == {**AXES, **OF_ULYSSES}[axis]


def test_each_probe_is_traced_as_a_whole_call_and_inside_a_layer_in_every_mode() -> None:
    for probe in ("distributed", "ulysses_hf"):
        for wrap in ("call", "layer"):
            modes = {mode for case in of(probe) if case.params["wrap"] == wrap for mode in case.modes}
            assert modes == set(MODES)


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_heads_are_shared_by_whole_groups_except_where_a_refusal_is_due(size: int) -> None:
    for case in [case for case in CASES.values() if case.runs_at(size)]:
        params = params_of(case)
        heads, shared = params.head_count(size), params.kv_count(size)
        assert heads % shared == 0, case.id
        ranks = params.ranks(size)
        if isinstance(params, UlyssesHF) and case.expect == "values":
            assert heads % ranks == 0
            assert shared % ranks == 0 or ranks % shared == 0
        if isinstance(params, Distributed) and case.expect == "values":
            assert shared >= ranks


def test_shares_of_heads_keep_each_query_head_with_its_key_head() -> None:
    for shared in range(1, 30):
        for groups in (1, 2, 4):
            for ranks in WORLD_SIZES:
                query, key = head_shares(shared * groups, shared, ranks)
                assert sum(query) == shared * groups
                assert sum(key) == shared
                assert query == tuple(groups * share for share in key)
                assert key[0] - key[-1] in (0, 1)


def test_a_stand_in_for_a_stream_says_so_in_id_and_summary_and_runs_where_there_are_none() -> None:
    for case in CASES.values():
        if (overlap := case.params.get("overlap", "no")) == "no":
            assert case.transports == ("gloo", "nccl")
        elif overlap == "stand_in":
            assert "overlap=stand_in" in case.id
            assert "stand-ins" in case.summary
            assert case.transports == ("gloo",)
        else:
            assert case.transports == ("nccl",)


def test_a_refusal_says_why_and_only_refusals_are_outside_the_contract() -> None:
    outside = {case.id for case in CASES.values() if case.expect == "refusal"}
    assert outside == {case.id for case in CASES.values() if "outside the contract" in case.summary}
    assert len(outside) > 5


def test_every_case_says_what_it_calls() -> None:
    for case in CASES.values():
        assert case.api.startswith("deepspeed.")
        assert case.api.endswith(".")
        assert not case.exact


@pytest.mark.parametrize(
    ("params", "place", "shapes"),
    [
        (Distributed(layout="sbhd", kv="ranks", batch=3), 1, {"q": (4, 3, 4, 4), "k": (4, 3, 2, 4), "w": (4, 3, 4, 4)}),
        (Distributed(length="unequal"), 0, {"q": (2, 5, 4, 4)}),
        (Distributed(length="unequal"), 1, {"q": (2, 4, 4, 4)}),
        (Distributed(rotary="half", length="odd"), 0, {"cos": (10, 1, 1, 2), "sin": (10, 1, 1, 2)}),
        (Distributed(layout="sbhd", rotary="full"), 0, {"cos": (1, 8, 1, 4)}),
        (Distributed(wrap="layer"), 0, {"a_q": (4,), "a_k": (4,), "a_v": (4,)}),
        (Distributed(before="uneven"), 0, {"u_q": (2, 4, 3, 4), "u_v": (2, 4, 3, 4)}),
        (UlyssesHF(heads="quadruple", kv="one"), 0, {"q": (2, 8, 4, 4), "v": (2, 1, 4, 4), "w": (2, 4, 32)}),
        (UlyssesHF(before="longer"), 0, {"u_q": (2, 4, 7, 4), "u_positions": (2, 7), "positions": (2, 4)}),
        (Chunked(kv="ranks"), 0, {"x": (4, 2, 64), "w_qkv": (128, 64), "b_qkv": (128,), "w_out": (64, 64)}),
    ],
)
def test_shapes_on_two_ranks(params: Attention, place: int, shapes: dict[str, tuple[int, ...]]) -> None:
    there = {spec.name: spec.shape for spec in params.tensors(2, place)}
    assert {name: there[name] for name in shapes} == shapes


def test_positions_run_through_the_sequence_or_start_again_where_no_rank_does() -> None:
    running, packed = (
        [
            {spec.name: spec for spec in UlyssesHF(positions=kind).tensors(2, place)}["positions"].integers
            for place in range(2)
        ]
        for kind in ("running", "packed")
    )
    assert running == [(0, 1, 2, 3) * 2, (4, 5, 6, 7) * 2]
    assert packed == [(0, 1, 2, 3) * 2, (4, 0, 1, 2, 4, 5, 0, 1)]


def test_what_is_frozen_needs_no_gradient() -> None:
    roles = {spec.name: spec.role for spec in Distributed(frozen="kv").tensors(2, 0)}
    assert roles == {"q": "input", "k": "frozen", "v": "frozen", "w": "cotangent"}


def test_parameters_are_the_same_on_every_rank_and_activations_are_not() -> None:
    for case in CASES.values():
        size = 8 if case.sp else 2
        here, there = (
            {spec.name: input_key(case, spec, rank) for spec in params_of(case).tensors(size, rank)} for rank in (0, 1)
        )
        shared = {spec.name for spec in params_of(case).tensors(size, 0) if spec.shared}
        assert {name for name in here if here[name] == there[name]} == shared


def test_every_mutant_is_tried_in_every_type_and_a_few_beside_every_run() -> None:
    assert len({control.id for control in CONTROLS}) == len(CONTROLS)
    tried = {(implementation_of(control), CASES[control.case].dtype) for control in CONTROLS}
    assert {(name, dtype) for name in (*MUTANTS, *OF_REPLICAS) for dtype in FLOATS} <= tried
    usual = [control for control in CONTROLS if control.suite == "default"]
    assert 5 <= sum(control.expected[0] != "agree" for control in usual) <= 8
    assert {mode for control in usual if control.expected[0] == "agree" for mode in control.modes} == set(MODES)


def test_dimensions_have_a_name_each() -> None:
    for case in CASES.values():
        size = case.sp or 2
        for spec in params_of(case).tensors(size, 0):
            assert len(case.dims.get(spec.name, spec.shape)) == len(spec.shape), (case.id, spec.name)
        assert set(LAYOUTS[case.params["layout"]]) >= set(case.dims["y"]) - {"channel"}
