"""The engine family's cases as data: what the default set covers, how tokens are dealt out, and what ids say."""

from __future__ import annotations

import itertools

from jobs import probes
from jobs.probes.control import implementation_of
from jobs.probes.engine.cases import catalogue, id_of
from jobs.probes.engine.controls import MUTANTS, controls
from jobs.probes.engine.shapes import LIVE, RECIPES, Training, params_of
from jobs.probes.model.shapes import TOKENS

DEFAULT = [params_of(case) for case in catalogue() if case.suite == "default"]


def test_the_default_set_has_every_stage_with_every_recipe_wiring_and_deal_at_least_once() -> None:
    assert {params.stage for params in DEFAULT} == {0, 1, 2, 3}
    assert {params.recipe for params in DEFAULT} == set(RECIPES)
    assert {params.tokens for params in DEFAULT} == set(LIVE)
    assert {params.wiring for params in DEFAULT} == {"unit", "state", "mesh"}
    assert {params.stage for params in DEFAULT if params.look == "step"} == {1, 2, 3}
    assert {params.sp for params in DEFAULT} == {0, 2}


def test_the_full_set_has_every_stage_with_every_recipe_and_deal() -> None:
    there = {(params.stage, params.recipe, params.tokens) for params in map(params_of, catalogue())}
    assert there >= set(itertools.product(range(4), RECIPES, LIVE))


def test_eager_alone_runs_by_default_but_for_the_steps_that_a_traced_layer_would_not_make() -> None:
    traced = [case for case in catalogue() if case.suite == "default" and case.modes != ("eager",)]
    assert {(case.probe, params_of(case).stage) for case in traced} == {("step", 2)}


def test_the_full_set_traces_the_layers_of_every_stage_and_looks_at_gradients_and_steps() -> None:
    traced = {(case.probe, params_of(case).stage, params_of(case).via) for case in catalogue() if len(case.modes) > 1}
    assert traced == set(itertools.product(("gradient", "step"), range(4), ("distributed", "ulysses")))


def test_ids_are_the_catalogue_s_own_and_are_found_again() -> None:
    ids = [case.id for case in catalogue()]
    assert len(set(ids)) == len(ids)
    assert all(id_of(params_of(case)) == case.id for case in catalogue())
    assert id_of(Training(stage=2)) == "engine/gradient[stage=2,wiring=unit,recipe=all_reduce,tokens=uneven]"
    assert id_of(Training(look="step", sp=2)).startswith("engine/step[stage=0,")


def test_tokens_are_dealt_out_unevenly_where_the_case_says_so_and_some_always_count() -> None:
    for ranks, (name, live) in itertools.product((2, 4, 8), LIVE.items()):
        counts = [live(ranks, place) for place in range(ranks)]
        assert all(0 <= count <= TOKENS for count in counts)
        assert sum(counts) > 0
        assert (len(set(counts)) == 1) == (name == "even")
        assert (counts[-1] == 0) == (name == "one_empty")
        labels = [Training(tokens=name).labels(ranks, place) for place in range(ranks)]
        assert [sum(label != -100 for label in mine) for mine in labels] == counts


def test_a_recipe_says_how_often_the_whole_counts() -> None:
    assert Training(recipe="all_gather").times(4) == 4
    assert Training(recipe="all_gather", sp=2).times(4) == 2
    assert Training(recipe="in_place").times(4) == 1
    assert Training(recipe="all_gather", stage=3, scatter="on").times(4) == 1
    assert Training(recipe="in_place", stage=3, scatter="on", sp=2).times(4) == 0.5
    assert Training(recipe="in_place", stage=2, scatter="on").times(4) == 1


def test_only_weights_need_a_gradient() -> None:
    specs = Training(passes="two").tensors(2, 1)
    assert {spec.name for spec in specs if spec.role == "input"} == set(Training().decoder().weights(2))
    assert {spec.name for spec in specs if spec.role == "frozen"} == {"x", "x2", "labels"}


def test_each_case_says_what_it_calls_and_by_which_convention_it_is_judged() -> None:
    for case in catalogue():
        assert "deepspeed.initialize" in case.api
        assert "mean over groups" in case.summary
        params = params_of(case)
        assert ("divides by the ranks of a group as well" in case.summary) == (
            params.stage == 3 and params.scatter == "on"
        )


def test_every_mutant_stands_on_a_case_and_the_few_that_run_always_have_a_reference_per_mode() -> None:
    known = {case.id: case for case in catalogue()}
    assert {implementation_of(one) for one in controls()} >= set(MUTANTS)
    always = [one for one in controls() if one.suite == "default"]
    assert {mode for one in always if "agree" in one.expected for mode in one.modes} == {"eager", "aot_eager"}
    for one in controls():
        assert set(one.modes) <= set(known[one.case].modes), one.id
    assert all(one in probes.controls() for one in always)
