"""The loss family as data: what is covered, which shapes and labels follow, and what the controls stand on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import probes
from jobs.contract import SUITES, WORLD_SIZES, CaseInfo, ControlInfo
from jobs.probes.case import FLOATS
from jobs.probes.control import implementation_of
from jobs.probes.loss.cases import PROBES, id_of, made
from jobs.probes.loss.controls import MUTANTS
from jobs.probes.loss.shapes import IGNORED, TOKENS, Aggregate, Shards, Steps, Tokens, params_of

ROOT = Path(__file__).parents[2]
FAMILY = "loss"
CASES = {case.id: case for case in probes.catalogue() if case.family == FAMILY}
CONTROLS = [control for control in probes.controls() if control.family == FAMILY]
AXES = {
    "vocab_cross_entropy": {
        "how": {"gathered", "summed", "local"},
        "dtype": {"float32", "float64", "bfloat16", "float16"},
        "loss": {"square", "weighted", "scaled", "shared", "accumulate", "frozen", "forward_only"},
        "vocabulary": {"tiny", "small", "large"},
        "ignored": {"none", "uneven", "one_empty"},
        "size": {"plain", "wide", "huge"},
        "batch": {"1", "2", "3"},
        "input": {"contiguous", "transposed", "expanded", "offset"},
        "cotangent": {"contiguous", "transposed", "expanded"},
        "wrap": {"call", "layer"},
        "shape": {"aligned", "swapped"},
        "gather": {"nccl", "strict"},
    },
    "aggregate": {
        "recipe": {"all_gather", "all_reduce", "weighted_all_reduce", "own"},
        "reduction": {"mean", "sum"},
        "tokens": {"uneven", "one_empty"},
        "dtype": {"float32", "float64", "bfloat16"},
        "batch": {"1", "2", "3"},
        "sp": {"0", "2"},
    },
    "loader": {"labels": {"all", "uneven", "one_empty"}, "length": {"even", "uneven", "indivisible"}},
    "fwd_loss_bwd": {"labels": {"all", "inner", "uneven", "one_empty"}, "sp": {"0", "2"}},
}
"""Per probe and parameter, the values that the default suite has."""


def of(probe: str, suite: str = "full") -> list[CaseInfo]:
    wanted = SUITES[: SUITES.index(suite) + 1]
    return [case for case in CASES.values() if case.probe == probe and case.suite in wanted]


def test_the_definitions_are_read_without_torch() -> None:
    code = "import sys; from jobs.probes.loss import cases, controls; cases.catalogue(); controls.controls(); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_ids_are_unique_and_those_that_others_rely_on_exist() -> None:
    assert len(CASES) == sum(case.family == FAMILY for case in probes.catalogue())
    for stable in (
        "vocab_cross_entropy[how=gathered,vocabulary=large,ignored=uneven,dtype=float32,loss=weighted]",
        "vocab_cross_entropy[how=gathered,vocabulary=small,ignored=none,dtype=float32,loss=square,size=huge]",
        "aggregate[recipe=all_gather,reduction=mean,tokens=uneven,dtype=float32,loss=sum]",
        "aggregate[recipe=all_reduce,reduction=mean,tokens=uneven,dtype=float32,loss=sum]",
        "loader[labels=all,length=even,dtype=float32,loss=weighted,batch=2]",
        "fwd_loss_bwd[labels=inner,length=even,dtype=float32,loss=weighted]",
    ):
        assert f"{FAMILY}/{stable}" in CASES


@pytest.mark.parametrize(("probe", "axis"), [(probe, axis) for probe, axes in AXES.items() for axis in axes])
def test_the_default_suite_has_every_value_of_every_axis(probe: str, axis: str) -> None:
    assert {case.params[axis] for case in of(probe, "default")} >= AXES[probe][axis]


def test_the_default_suite_is_small_and_each_probe_is_in_it() -> None:
    default = [case for case in CASES.values() if case.suite == "default"]
    assert {case.probe for case in default} == set(PROBES)
    assert len(default) <= 36
    assert sum("aot_eager" in case.modes for case in default) <= 3
    assert sum("inductor" in case.modes for case in CASES.values()) >= 2


def test_cases_and_controls_cross_the_border_unchanged() -> None:
    for case in CASES.values():
        assert CaseInfo.from_json(json.loads(json.dumps(case.to_json()))) == case
        assert case.summary.endswith(".")
        assert case.api.endswith(".")
    for control in CONTROLS:
        assert ControlInfo.from_json(json.loads(json.dumps(control.to_json()))) == control


def test_every_case_says_whose_loss_its_gradient_is_of() -> None:
    for case in CASES.values():
        params = params_of(case)
        if not isinstance(params, Shards) and getattr(params, "how", "") != "local":
            assert ("counts once" in case.summary) == params.once, case.id
    assert {params_of(case).once for case in CASES.values()} == {True, False}


def test_what_a_release_calculates_in_float32_is_judged_so() -> None:
    for case in CASES.values():
        converts = case.probe == "vocab_cross_entropy" or case.params.get("recipe") == "own"
        expected = "float32" if converts and case.dtype == "float64" else case.dtype
        assert case.params["effective"] == expected, case.id


def test_a_refusal_says_why() -> None:
    outside = {case.id for case in CASES.values() if case.expect == "refusal"}
    assert outside == {case.id for case in CASES.values() if "outside the contract" in case.summary}
    assert {CASES[one].probe for one in outside} == {"vocab_cross_entropy", "loader", "fwd_loss_bwd"}


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_labels_that_count_are_as_many_as_said(size: int) -> None:
    def live(params: Tokens | Aggregate) -> list[int]:
        handed = [params.tensors(size, place)[1].integers for place in range(size)]
        assert {len(labels) for labels in handed} == {TOKENS * params.batch}
        return [sum(label != IGNORED for label in labels) for labels in handed]

    assert live(Tokens(batch=2)) == [12] * size
    assert live(Tokens(ignored="uneven", batch=2))[:2] == [10, 4]
    assert live(Tokens(ignored="one_empty")).count(0) == 1
    assert live(Aggregate(tokens="even")) == [4] * size
    assert live(Aggregate(tokens="one_empty", batch=3))[-1] == 0
    assert live(Aggregate(tokens="none")) == [0] * size


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_shards_hold_as_many_labels_that_count_as_said_before_and_after_the_shift(size: int) -> None:
    def counts(labels: str, shifted: bool) -> list[int]:
        values = Steps(labels=labels).tensors(size, 0)[2].integers
        values = (*values[1:], IGNORED) if shifted else values
        chunk = len(values) // size
        return [sum(one != IGNORED for one in values[at : at + chunk]) for at in range(0, len(values), chunk)]

    assert counts("inner", shifted=True) == counts("inner", shifted=False) == [2] * size
    assert counts("all", shifted=True) == [4] * (size - 1) + [3]
    assert counts("one_empty", shifted=True).count(0) == 1
    assert len(set(counts("uneven", shifted=True))) > 1
    assert all(counts("uneven", shifted=True))


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_every_token_of_every_sequence_has_a_row_of_its_own(size: int) -> None:
    for params in (Shards(batch=2), Shards(length="uneven", batch=3)):
        ids = [row for place in range(size) for row in params.tensors(size, place)[1].integers]
        assert sorted(ids) == list(range(params.tensors(size, 0)[0].shape[0]))
        lengths = {params.tensors(size, place)[1].shape[1] for place in range(size)}
        assert all(length % size == 0 for length in lengths)
        assert len(lengths) == (2 if params.length == "uneven" else 1)
    assert Shards(length="indivisible").tensors(size, 0)[1].shape[1] % size == 1


def test_every_mutant_is_tried_in_every_type_and_few_stand_beside_every_run() -> None:
    tried = {(implementation_of(control), CASES[control.case].dtype) for control in CONTROLS}
    assert {name for name, _ in tried} == {*MUTANTS, "reference", "traced_reference"}
    assert {(name, dtype) for name in MUTANTS if name != "wrong_shape" for dtype in FLOATS} <= tried
    beside = [control for control in CONTROLS if control.suite == "default"]
    assert len(beside) <= 9
    assert {CASES[control.case].dtype for control in beside} == {"float32"}
    assert {CASES[control.case].probe for control in beside} == set(PROBES)
    assert {mode for control in beside if control.expected[0] == "agree" for mode in control.modes} == {
        "eager",
        "aot_eager",
    }


def test_an_id_is_that_of_the_parameters() -> None:
    for case in CASES.values():
        values = {name: value for name, value in case.params.items() if name != "effective"}
        typed = {name: int(value) if name in ("batch", "pieces", "sp") else value for name, value in values.items()}
        assert id_of(case.probe, typed) == case.id
        assert made(case.probe, typed) == params_of(case)
