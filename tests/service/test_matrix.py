"""The laws of axes, exclusions and inclusions."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.contract import MODES, WORLD_SIZES, CaseInfo
from service.errors import UsageError
from service.globs import matches
from service.matrix import Plan, Rule, plan
from tests.support.stored import case, checkout, runtime

CHECKOUTS = (checkout("deepspeed==1"), checkout("deepspeed==2"))
RUNTIMES = (runtime("2.9.1"), runtime("2.11.0"))
CASES = (case("a"), case("b", modes=("eager",)), case("sub", sp=2, modes=MODES), case("loss", family="loss"))

Cell = tuple[str, str, int, str, str]


def cells(planned: Plan) -> list[Cell]:
    return [(j.checkout, j.runtime, j.world_size, c.case_id, c.mode) for j in planned.jobs for c in j.cells]


def product(sizes: tuple[int, ...], modes: tuple[str, ...]) -> set[Cell]:
    """The whole matrix, told apart from the code: four cases, of which ``sub`` needs a world larger than 2."""
    of = {"a": ("eager", "aot_eager"), "b": ("eager",), "sub": MODES, "loss": ("eager", "aot_eager")}
    known: dict[str, CaseInfo] = dict(zip(of, CASES, strict=True))
    return {
        (c.digest, r.digest, size, known[name].id, mode)
        for c in CHECKOUTS
        for r in RUNTIMES
        for size in sizes
        for name in of
        for mode in of[name]
        if mode in modes and (name != "sub" or size > 2)
    }


def test_torchs_own_family_is_of_the_subject_torch_and_of_no_other() -> None:
    torch = dataclasses.replace(checkout("torch"), subject="torch")
    own = case("own", family="torch-itself")
    both = plan([torch, CHECKOUTS[0]], RUNTIMES[:1], ["gloo"], [2], [*CASES, own], ["eager"])
    asked = {job.checkout: {cell.case_id for cell in job.cells} for job in both.jobs}
    assert asked == {torch.digest: {own.id}, CHECKOUTS[0].digest: {CASES[0].id, CASES[1].id, CASES[3].id}}
    over = dataclasses.replace(own, transports=("nccl-dispatch",))
    with pytest.raises(UsageError, match=r"run for deepspeed==1: none .* left over nccl-dispatch .* over gloo, nccl,"):
        plan([torch, CHECKOUTS[0]], RUNTIMES, ["nccl-dispatch"], [2], [*CASES, over], ["eager"])
    for subject, cases in ((torch, CASES), (CHECKOUTS[0], (own,))):
        with pytest.raises(UsageError, match=f"run for {subject.label}: none .* is of it; .*family torch-itself is"):
            plan([subject], RUNTIMES, ["gloo"], [2], cases, ["eager"])


def test_a_case_runs_only_over_its_own_transports_each_in_a_job_of_its_own() -> None:
    both = case("both", transports=("gloo", "nccl-dispatch"))
    jobs = plan(CHECKOUTS[:1], RUNTIMES[:1], ["gloo", "nccl-dispatch"], [2], [CASES[0], both], ["eager"]).jobs
    assert {job.transport: {cell.case_id for cell in job.cells} for job in jobs} == {
        "gloo": {CASES[0].id, both.id},
        "nccl-dispatch": {both.id},
    }


def test_in_the_default_suite_a_case_of_another_transport_stands_for_nothing_here() -> None:
    elsewhere = dataclasses.replace(case("a"), params={"batch": "1"}, transports=("nccl",), modes=MODES)
    here = dataclasses.replace(case("b"), params={"batch": "1"}, transports=("gloo", "nccl"), modes=MODES)
    cases = [dataclasses.replace(one, id=f"exchange/probe[{one.params}{one.transports}]") for one in (elsewhere, here)]
    found = plan(CHECKOUTS[:1], RUNTIMES[:1], ["gloo", "nccl"], [2], cases, ["aot_eager"], suite="default").jobs
    assert {job.transport: [cell.case_id for cell in job.cells] for job in found} == {
        "gloo": [cases[1].id],
        "nccl": [cases[0].id],
    }


def planned(sizes: tuple[int, ...] = (2, 4), modes: tuple[str, ...] = ("eager",), **rules: list[Rule]) -> Plan:
    return plan(CHECKOUTS, RUNTIMES, ["gloo"], sizes, CASES, modes, **rules)  # type: ignore[arg-type]


SIZES = st.lists(st.sampled_from(WORLD_SIZES), min_size=1, unique=True).map(tuple)
SOME_MODES = st.lists(st.sampled_from(MODES), min_size=1, unique=True).map(lambda m: tuple({*m, "eager"}))
VALUES: dict[str, list[str | int]] = {
    "checkout": ["deepspeed==1", "deepspeed*", CHECKOUTS[1].digest],
    "torch": ["2.9.1", "2.*", "2.11.0-index"],
    "world_size": [2, 4, "8", "*"],
    "family": ["exchange", "loss"],
    "case": ["exchange/*", "exchange/a", "loss/loss[dtype=float32]", "*"],
    "mode": ["eager", "aot_eager", "*eager"],
}
RULE = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True).flatmap(
    lambda axes: st.fixed_dictionaries({axis: st.sampled_from(VALUES[axis]) for axis in axes})
)


def falls_under(rule: Rule, cell: Cell) -> bool:
    """The meaning of a rule, said a second time."""
    by_digest = {item.digest: item for item in CHECKOUTS}
    runtimes = {item.digest: item for item in RUNTIMES}
    names = {
        "checkout": {cell[0], by_digest[cell[0]].label},
        "torch": {runtimes[cell[1]].torch, runtimes[cell[1]].name},
        "world_size": {str(cell[2])},
        "family": {cell[3].split("/")[0]},
        "case": {cell[3], cell[3].split("[")[0]},
        "mode": {cell[4]},
    }
    return all(any(matches(str(value), name) for name in names[axis]) for axis, value in rule.items())


@given(sizes=SIZES, modes=SOME_MODES)
def test_without_rules_it_is_the_product_of_what_exists(sizes: tuple[int, ...], modes: tuple[str, ...]) -> None:
    got = cells(planned(sizes, modes))
    assert set(got) == product(sizes, modes)
    assert len(got) == len(set(got))


@given(sizes=SIZES, modes=SOME_MODES, rules=st.lists(RULE, min_size=1, max_size=3))
def test_an_exclusion_removes_exactly_what_falls_under_it(
    sizes: tuple[int, ...], modes: tuple[str, ...], rules: list[Rule]
) -> None:
    wanted = {cell for cell in product(sizes, modes) if not any(falls_under(rule, cell) for rule in rules)}
    try:
        got = set(cells(planned(sizes, modes, exclude=rules)))
    except UsageError as error:
        assert "nothing to run" in str(error)
        got = set()
    assert got == wanted


@given(
    sizes=SIZES, modes=SOME_MODES, exclude=st.lists(RULE, max_size=2), include=st.lists(RULE, min_size=1, max_size=2)
)
def test_an_inclusion_is_stronger_and_widens_only_the_axes_that_it_names(
    sizes: tuple[int, ...], modes: tuple[str, ...], exclude: list[Rule], include: list[Rule]
) -> None:
    everything = product(WORLD_SIZES, MODES)
    wanted = {cell for cell in product(sizes, modes) if not any(falls_under(rule, cell) for rule in exclude)}
    for rule in include:
        wanted |= {
            cell
            for cell in everything
            if falls_under(rule, cell)
            and ("world_size" in rule or cell[2] in sizes)
            and ("mode" in rule or cell[4] in modes)
        }
    try:
        got = cells(planned(sizes, modes, exclude=exclude, include=include))
    except UsageError as error:
        assert "nothing to run" in str(error)
        got = []
    assert set(got) == wanted
    assert len(got) == len(wanted)


def test_one_runtime_gets_one_more_mode() -> None:
    got = cells(planned((4,), ("eager",), include=[{"torch": "2.11.0", "mode": "inductor"}]))
    assert {cell[1:] for cell in got if cell[4] == "inductor"} == {(RUNTIMES[1].digest, 4, CASES[2].id, "inductor")}


def test_jobs_come_by_checkout_runtime_and_world_size_and_cells_as_listed() -> None:
    jobs = planned((4, 2), ("aot_eager", "eager")).jobs
    assert [(j.checkout, j.runtime, j.world_size) for j in jobs] == [
        (c.digest, r.digest, size) for c in CHECKOUTS for r in RUNTIMES for size in (2, 4)
    ]
    assert [(c.case_id.split("[")[0], c.mode) for c in jobs[0].cells] == [
        ("exchange/a", "eager"),
        ("exchange/a", "aot_eager"),
        ("exchange/b", "eager"),
        ("loss/loss", "eager"),
        ("loss/loss", "aot_eager"),
    ]


def test_a_plan_holds_the_cases_that_occur_and_no_others() -> None:
    assert [info.id for info in planned((2,)).cases] == [CASES[0].id, CASES[1].id, CASES[3].id]
    assert planned((2,)).cells == 3 * 4


def test_one_content_under_two_names_is_planned_once() -> None:
    twice = (checkout("deepspeed==1", "same"), checkout("path:x", "same"))
    assert len(plan(twice, RUNTIMES[:1], ["gloo"], [2], CASES[:1], ["eager"]).jobs) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"transports": ["glo"]}, "unknown transport glo: did you mean gloo"),
        ({"transports": ["nccl-dispatch"]}, "none of the cases .* is left over nccl-dispatch in mode eager"),
        ({"world_sizes": [3]}, "unknown world size 3: known: 2, 4, 8"),
        ({"modes": ["eage"]}, "unknown mode eage: did you mean eager"),
        ({"modes": []}, "no mode was asked for"),
        ({"cases": []}, "no case was asked for"),
        ({"checkouts": []}, "no checkout was asked for"),
        ({"cases": [CASES[2]], "world_sizes": [2]}, "nothing to run for .*: .* mode eager at world size 2"),
        ({"exclude": [{"mod": "eager"}]}, "unknown axis 'mod' in a rule: did you mean mode"),
        ({"exclude": [{"torch": "2.9.2"}]}, "the rule torch=2.9.2 fits nothing here: did you mean 2.9.1"),
        ({"include": [{}]}, "an empty rule would fit every cell"),
    ],
)
def test_bad_input_is_named_with_the_nearest_known(changed: dict[str, object], message: str) -> None:
    values: dict[str, object] = {
        "checkouts": CHECKOUTS,
        "runtimes": RUNTIMES,
        "transports": ["gloo"],
        "world_sizes": [2],
        "cases": CASES,
        "modes": ["eager"],
    }
    with pytest.raises(UsageError, match=message):
        plan(**{**values, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("glob", "text", "fits"),
    [
        ("exchange/dim0[dtype=float32,loss=square]", "exchange/dim0[dtype=float32,loss=square]", True),
        ("exchange/dim0[*]", "exchange/dim0[dtype=float32]", True),
        ("exchange/dim0[d]", "exchange/dim0d", False),
        ("exchange/dim?", "exchange/dim0", True),
        ("exchange/dim?", "exchange/dim", False),
        ("exchange", "exchange/dim0", False),
        ("*/dim.", "exchange/dim0", False),
    ],
)
def test_globs_take_brackets_as_they_are(glob: str, text: str, fits: bool) -> None:
    assert matches(glob, text) is fits
