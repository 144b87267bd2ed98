"""The detection table from hand-made trials: what counts as caught, as an alarm, as hidden and as absent."""

from __future__ import annotations

import json

from jobs.contract import CaseInfo, ControlInfo
from service.detection import Detection, Setting, Trial, detection, is_clean, name_of, trials
from service.judge import ControlVerdict, Judgement
from service.verdicts import Verdict
from tests.workers.matter import a_case

CASES = {
    case.id: case
    for case in (
        a_case(id="f/p[dtype=float32]"),
        a_case(id="f/p[dtype=bfloat16]", dtype="bfloat16"),
        a_case(id="f/p[sp=2]", sp=2),
    )
}
ZEROED = ControlInfo("f/p.zeroed", "f", "f/p[dtype=float32]", ("eager",), ("zero_gradient",), "zero")
ZEROED_16 = ControlInfo("f/p.zeroed[dtype=bfloat16]", "f", "f/p[dtype=bfloat16]", ("eager",), ("zero_gradient",))
FAINT = ControlInfo(
    "f/p.faint[dtype=bfloat16]", "f", "f/p[dtype=bfloat16]", ("eager",), ("mismatch",), hidden="below its rounding"
)
RIGHT = ControlInfo("f/p.reference", "f", "f/p[dtype=float32]", ("eager", "inductor"), ("agree",))
GROUPED = ControlInfo("f/p.reference[sp=2]", "f", "f/p[sp=2]", ("eager",), ("agree",))


def verdict(word: Verdict, ok: bool, detail: str = "why") -> ControlVerdict:
    return ControlVerdict(ok, Judgement(word, True, "", detail, None, None, None, None, None, "1"))


def table(*controls: ControlInfo, wrong: dict[Trial, ControlVerdict | None], **setting: object) -> Detection:
    where = Setting(**{"torch": "9.9.9", "world_sizes": (2,), "seeds": 3, **setting})  # type: ignore[arg-type]
    cases: dict[str, CaseInfo] = CASES
    found = {trial: verdict(Verdict.AGREE, True) for trial in trials(controls, cases, where)}
    for trial, said in wrong.items():
        if said is None:
            del found[trial]
        else:
            found[trial] = said
    return detection(controls, cases, where, found)


def test_a_control_is_tried_in_each_mode_size_and_seed_where_its_case_exists() -> None:
    everywhere = Setting("9.9.9", (2, 4), 2)
    assert len(list(trials([RIGHT], CASES, everywhere))) == 2 * 2 * 2
    assert len(list(trials([RIGHT], CASES, Setting("9.9.9", (2, 4), 2, compiler=False)))) == 2 * 2
    assert {size for _, _, size, _ in trials([GROUPED], CASES, everywhere)} == {4}


def test_when_every_verdict_is_right_all_is_caught_and_nothing_is_an_alarm() -> None:
    found = table(ZEROED, RIGHT, wrong={})
    assert found.ok
    assert [(line.name, line.counts["float32"].right, line.counts["float32"].of) for line in found.mutants] == [
        ("p.zeroed", 3, 3)
    ]
    assert [(line.name, line.counts["float32"].of) for line in found.clean] == [("p.reference", 6)]


def test_a_mutant_with_another_verdict_is_missed_and_named() -> None:
    at = (ZEROED.id, "eager", 2, 1)
    found = table(ZEROED, RIGHT, wrong={at: verdict(Verdict.AGREE, False, "1 gradient exact")})
    assert not found.ok
    assert not found.alarms
    assert [miss.sentence for miss in found.missed] == [
        "f/p.zeroed eager, 2 ranks, seed 1: agree, should be zero_gradient: 1 gradient exact"
    ]
    assert found.mutants[0].counts["float32"].right == 2


def test_a_control_that_gives_no_answer_is_not_caught() -> None:
    found = table(ZEROED, RIGHT, wrong={(ZEROED.id, "eager", 2, 0): None, (RIGHT.id, "eager", 2, 0): None})
    assert [miss.verdict for miss in (*found.missed, *found.alarms)] == ["nothing", "nothing"]
    assert not found.ok


def test_a_right_implementation_that_is_said_to_be_wrong_is_an_alarm_and_no_miss() -> None:
    found = table(ZEROED, RIGHT, wrong={(RIGHT.id, "inductor", 2, 2): verdict(Verdict.SCALED, False)})
    assert not found.ok
    assert not found.missed
    assert [miss.mode for miss in found.alarms] == ["inductor"]


def test_what_a_type_hides_is_listed_with_the_reason_and_does_not_count() -> None:
    found = table(FAINT, wrong={(FAINT.id, "eager", 2, seed): verdict(Verdict.AGREE, False) for seed in range(3)})
    assert found.ok
    assert [(where, count.hidden, count.right) for where, count in found.hidden] == [
        ("f/p.faint in bfloat16", "below its rounding", 0)
    ]


def test_what_the_runtime_cannot_do_is_absent_and_neither_caught_nor_missed() -> None:
    absent = verdict(Verdict.UNSUPPORTED, False, "no such operator")
    found = table(ZEROED, wrong={(ZEROED.id, "eager", 2, seed): absent for seed in range(3)})
    assert found.ok
    assert found.absent == {"no such operator": (ZEROED.id,)}
    assert found.mutants[0].counts["float32"].of == 0


def test_types_stand_side_by_side_under_one_name_widest_first() -> None:
    found = table(ZEROED_16, ZEROED, wrong={})
    assert found.types == ("float32", "bfloat16")
    assert [line.name for line in found.mutants] == ["p.zeroed"]
    assert name_of(ZEROED_16) == "p.zeroed"
    assert json.loads(json.dumps(found.to_json()))["mutants"][0]["types"]["bfloat16"]["of"] == 3


def test_a_control_is_clean_where_every_verdict_that_is_right_for_it_is_a_good_one() -> None:
    assert is_clean(RIGHT)
    assert is_clean(ControlInfo("f/x", "f", "c", ("eager",), ("agree", "agree_untraced")))
    assert not is_clean(ControlInfo("f/x", "f", "c", ("eager",), ("agree", "mismatch")))
