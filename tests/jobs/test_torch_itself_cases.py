"""Torch's own family as data: what is covered, which shapes follow, and what the controls stand on."""

from __future__ import annotations

import json
import math

import pytest

from jobs import probes
from jobs.contract import MODES, TRACED_MODES, WORLD_SIZES, CaseInfo, ControlInfo
from jobs.probes.case import TensorSpec, input_key
from jobs.probes.control import implementation_of
from jobs.probes.torch_itself.cases import DISPATCHED, WAYS
from jobs.probes.torch_itself.controls import MUTANTS
from jobs.probes.torch_itself.shapes import CLASSES, IGNORED, TOKENS, Aggregation, Collective, params_of

FAMILY = "torch-itself"
CASES = {case.id: case for case in probes.catalogue() if case.family == FAMILY}
CONTROLS = [control for control in probes.controls() if control.family == FAMILY]
COLLECTIVES = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter", "broadcast")


def of(probe: str) -> list[CaseInfo]:
    return [case for case in CASES.values() if case.probe == probe]


def test_ids_are_unique_and_those_that_others_rely_on_exist() -> None:
    assert len(CASES) == sum(case.family == FAMILY for case in probes.catalogue())
    for stable in (
        "dim0[api=buffer_in_function,dtype=float32,loss=square]",
        "dim0[api=functional_autograd_waited,dtype=float32,loss=square]",
        "all_gather[api=nn,dtype=float32,loss=square,sp=2]",
        "all_gather[api=nn,dtype=float32,loss=weighted,cotangent=transposed]",
        "broadcast[api=functional,dtype=float32,loss=weighted,root=place,sp=2]",
        "loss_aggregation[recipe=all_gather,tokens=one_empty,dtype=float32,loss=sum,sp=2]",
    ):
        assert f"{FAMILY}/{stable}" in CASES


def test_each_of_seven_ways_to_exchange_along_dim0_is_there_in_every_mode() -> None:
    ways = {case.params["api"] for case in of("dim0") if case.params["loss"] == "square" and case.modes == MODES}
    assert ways == {
        "buffer_in_function",
        "nn_in_function",
        "nn",
        "functional_in_function",
        "functional_autograd",
        "functional_autograd_waited",
        "functional",
    }


def test_every_way_of_every_collective_is_traced_at_least_once() -> None:
    seen: dict[tuple[str, str], set[str]] = {}
    for case in CASES.values():
        if "api" in case.params:
            seen.setdefault((case.params["collective"], case.params["api"]), set()).update(case.modes)
    assert {collective for collective, _ in seen} == set(COLLECTIVES)
    assert {api for _, api in seen} == set(WAYS)
    assert all({"eager", "aot_eager"} <= modes for modes in seen.values())


def test_in_a_sub_group_too_what_torch_differentiates_and_what_a_function_fills_is_traced() -> None:
    traced = {
        (case.params["collective"], case.params["api"])
        for case in CASES.values()
        if case.sp and "aot_eager" in case.modes
    }
    for collective in COLLECTIVES:
        ways = {api for one, api in traced if one == collective}
        assert ways & {"functional", "functional_autograd"}
        assert ways & {"nn", "buffer_in_function"}
    assert {api for _, api in traced} == {"nn", "buffer_in_function", "functional", "functional_autograd"}


@pytest.mark.parametrize("probe", ["dim0", *COLLECTIVES])
def test_every_collective_runs_in_inductor(probe: str) -> None:
    assert {case.modes for case in of(probe)} >= {MODES, ("eager",)}


def test_summaries_say_whose_loss_counts_and_how_a_functional_broadcast_names_its_root() -> None:
    assert all("every rank's loss" in case.summary for case in CASES.values() if "api" in case.params)
    named = [case for case in CASES.values() if "root named" in case.summary]
    assert {(case.probe, case.params["api"], case.sp) for case in named} == {("broadcast", "functional", 2)}
    told = {case.params["root"]: case.summary for case in named}
    assert set(told) == {"global", "place"}
    assert "by global rank" in told["global"]
    assert "by place in the group" in told["place"]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_meets_strides_a_sub_group_both_types_and_both_losses(collective: str) -> None:
    cases = [case for case in CASES.values() if case.params.get("collective") == collective]
    assert {case.params["cotangent"] for case in cases} > {"contiguous"}
    assert {case.params["input"] for case in cases} > {"contiguous"}
    assert {case.sp for case in cases} == {0, 2}
    assert {case.dtype for case in cases} == {"float32", "float64"}
    assert {case.params["loss"] for case in cases} == {"square", "weighted"}


def test_every_recipe_meets_every_count_of_tokens_on_the_world_and_in_a_sub_group() -> None:
    met = {(case.params["recipe"], case.params["tokens"]) for case in of("loss_aggregation")}
    assert met == {(one, tokens) for one in ("all_gather", "all_reduce") for tokens in ("even", "uneven", "one_empty")}
    assert {(case.params["recipe"], case.sp) for case in of("loss_aggregation")} == {
        (recipe, sp) for recipe in ("all_gather", "all_reduce") for sp in (0, 2)
    }
    assert not any(case.exact for case in of("loss_aggregation"))


def test_only_eager_cases_that_have_such_code_are_dispatched_as_to_nccl() -> None:
    dispatched = [case for case in CASES.values() if "nccl-dispatch" in case.transports]
    assert {case.modes for case in dispatched} == {("eager",)}
    met = {(case.params["collective"], case.params["api"]) for case in dispatched if "api" in case.params}
    assert met == DISPATCHED
    assert {case.params["recipe"] for case in dispatched if "recipe" in case.params} == {"all_gather"}
    assert all({"gloo", "nccl"} <= set(case.transports) for case in CASES.values())


def test_traced_cases_are_few() -> None:
    counts = {mode: sum(mode in case.modes for case in CASES.values()) for mode in MODES}
    assert counts["eager"] == len(CASES) <= 90
    assert counts["aot_eager"] <= 36
    assert counts["inductor"] == 12
    assert all(case.modes == MODES[: len(case.modes)] for case in CASES.values())


def test_cases_and_controls_cross_the_border_unchanged() -> None:
    for case in CASES.values():
        assert CaseInfo.from_json(json.loads(json.dumps(case.to_json()))) == case
        assert case.summary.endswith(".")
    for control in CONTROLS:
        assert ControlInfo.from_json(json.loads(json.dumps(control.to_json()))) == control


@pytest.mark.parametrize(
    ("params", "world_size", "place", "expected"),
    [
        (Collective("all_to_all"), 2, 1, ((2, 2, 4, 4), (2, 2, 4, 4))),
        (Collective("all_to_all", sp=2), 8, 1, ((2, 2, 4, 4), (2, 2, 4, 4))),
        (Collective("all_reduce"), 4, 3, ((2, 2, 4, 4), (2, 2, 4, 4))),
        (Collective("broadcast"), 4, 3, ((2, 2, 4, 4), (2, 2, 4, 4))),
        (Collective("all_gather"), 4, 0, ((2, 2, 4, 4), (8, 2, 4, 4))),
        (Collective("reduce_scatter", sp=2), 4, 0, ((4, 2, 4, 4), (2, 2, 4, 4))),
        # Of two ranks, the first sends 1 and 3 rows, the second 2 and 1.
        (Collective("all_to_all", splits="uneven"), 2, 0, ((4, 2, 4, 4), (3, 2, 4, 4))),
        (Collective("all_to_all", splits="uneven"), 2, 1, ((3, 2, 4, 4), (4, 2, 4, 4))),
    ],
)
def test_shapes(
    params: Collective, world_size: int, place: int, expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert params.shapes(world_size, place) == expected


def test_the_gradient_of_the_dim0_exchange_has_64_elements_on_two_ranks() -> None:
    params = params_of(CASES[f"{FAMILY}/dim0[api=nn,dtype=float32,loss=square]"])
    assert isinstance(params, Collective)
    assert [math.prod(params.shapes(size, 0)[0]) for size in WORLD_SIZES] == [64, 128, 256]


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_uneven_rows_differ_there_and_back_and_none_are_lost(size: int) -> None:
    params = Collective("all_to_all", splits="uneven")
    counts = [params.counts(size, source) for source in range(size)]
    assert [list(column) for column in zip(*counts, strict=True)] == [
        list(params.received(size, t)) for t in range(size)
    ]
    assert any(counts[source][target] != counts[target][source] for source in range(size) for target in range(size))
    assert all(count > 0 for row in counts for count in row)


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("tokens", ["even", "uneven", "one_empty"])
def test_labels_count_as_many_tokens_as_said(size: int, tokens: str) -> None:
    params = Aggregation(recipe="all_reduce", tokens=tokens)
    labels = [params.labels(size, place) for place in range(size)]
    counts = [sum(label != IGNORED for label in mine) for mine in labels]
    assert {len(mine) for mine in labels} == {TOKENS}
    assert all(label == IGNORED or 0 <= label < CLASSES for mine in labels for label in mine)
    assert (len(set(counts)) == 1) == (tokens == "even")
    assert counts.count(0) == (1 if tokens == "one_empty" else 0)
    assert sum(counts) > 0


def test_every_tensor_has_keys_of_its_own() -> None:
    specs = [TensorSpec(name, "input", (1,), (1,)) for name in ("x", "w")]
    keys = [input_key(case, spec, rank) for case in CASES.values() for spec in specs for rank in range(8)]
    assert len(keys) == len(set(keys))


def test_few_controls_stand_beside_every_run() -> None:
    assert sum(control.suite == "default" for control in CONTROLS) <= 25


def test_every_mutant_is_tried_and_every_mode_and_probe_has_a_reference() -> None:
    assert set(MUTANTS) <= {implementation_of(control) for control in CONTROLS}
    agreeing = [control for control in CONTROLS if control.expected[0] == "agree"]
    assert {mode for control in agreeing for mode in control.modes} == set(MODES)
    assert {CASES[control.case].probe for control in agreeing} == {case.probe for case in CASES.values()}
    assert any(CASES[control.case].sp for control in agreeing)
    for name in MUTANTS:
        stands = {CASES[control.case].dtype for control in CONTROLS if implementation_of(control) == name}
        # A broadcast whose loss is a square is there in one type only, and no other loss lets a wrong shape answer.
        assert stands == ({"float32"} if name == "wrong_shape" else {"float32", "float64"}), name
    traced = [control for control in CONTROLS if set(control.modes) & set(TRACED_MODES)]
    assert all(implementation_of(control) == "traced_reference" for control in traced)
