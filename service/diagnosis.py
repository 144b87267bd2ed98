"""What is wrong with a red cell in its reader's words, what it means for training, and where else it is so.

On the straight line this stands after ``service.judge``, beside ``service.findings``: that groups cells, this reads one
in full. Pure: a row, its evidence and the answers beside it in, sentences out. The words are in the tables below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.contract import CaseInfo
from service.amounts import BY_RANK, numbers
from service.edges import fault_of
from service.evidence import Evidence, TensorEvidence
from service.extents import Extent, along_releases, along_torch
from service.gradients import Finding, by_tensor
from service.lastwords import LABEL, last_words
from service.naming import KINDS, have, kind_of, spoken, stepped
from service.policy import Policy
from service.room import Room
from service.training import SILENT_OUTSIDE, WHOSE, clause, with_forward
from service.verdicts import Verdict
from service.wording import OUTSIDE

if TYPE_CHECKING:
    from service.compare import Row

STATES = {
    Verdict.ZERO_GRADIENT: "dead",
    Verdict.NO_GRADIENT: "dead",
    Verdict.PARTIAL_ZERO: "partly dead",
    Verdict.SCALED: "scaled",
    Verdict.PERMUTED: "permuted",
    Verdict.MISMATCH: "wrong",
}
NOT_FINITE = {
    "grad": ": they are NaN or infinite, and after one step so is what they are added to",
    "output": ": the output is NaN or infinite",
}
RIGHT, WEAK, UNDUE = "right", "too small to tell", "undue"
AS_WORDS = {"permuted": "the right values elsewhere", UNDUE: "there is one, and must be none"}
"""States that no number goes with."""
ANSWERED = (Verdict.WRONG_SHAPE, Verdict.FORWARD_MISMATCH, Verdict.MUTATED)
"""Faults that come before that of a gradient, of calls that came to their end."""


@dataclass(frozen=True)
class Beside:
    """The answers beside a cell.

    over_torch     the same row on every torch version, this one included
    over_releases  the same cell of other releases of the subject
    eager          the same case without the tracer, for a traced cell
    torches        every torch version that there is to try
    """

    over_torch: Sequence[Row] = ()
    over_releases: Sequence[Row] = ()
    eager: Row | None = None
    torches: Sequence[str] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What there is to say about one failing cell; texts are empty where there is nothing to say.

    what      what is wrong, tensor by tensor, with numbers
    training  what that means for a training run
    eager     what the same case says without the tracer
    api       what was called, and whether that is the documented way
    tensors   the names of the gradients by state: dead, partly dead, scaled, permuted, wrong, scaled by rank, undue,
              right, too small to tell
    """

    what: str
    training: str
    eager: str
    torch: Extent | None
    release: Extent | None
    api: str
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def diagnose(
    row: Row,
    evidence: Evidence,
    case: CaseInfo,
    policy: Policy,
    beside: Beside = Beside(),
    log: str = "",
) -> Diagnosis | None:
    """The diagnosis of a failing cell, under the policy that judged it; None for any other one.

    log  what its ranks wrote, for one that crashed
    """
    if row.verdict is None or not Verdict(row.verdict).failing:
        return None
    room = Room(evidence, case, policy)
    tensors = _tensors(room) if _answered(evidence) and case.expect == "values" else {}
    return Diagnosis(
        what=_what(row, room, tensors) + _last_words(row, log),
        training=_training(row, room, tensors),
        eager=_eager(row, beside.eager),
        torch=along_torch(row, beside.over_torch, beside.torches),
        release=along_releases(row, beside.over_releases),
        api=case.api,
        tensors={state: tuple(names) for state, names in tensors.items()},
    )


# -- what is wrong ---------------------------------------------------------------------------------------------------


def _answered(evidence: Evidence) -> bool:
    """Whether every rank came to its end, so that what it lacks is a fault and no consequence."""
    return evidence.stop is None and bool(evidence.ranks) and all(rank.status == "ok" for rank in evidence.ranks)


def _tensors(room: Room) -> dict[str, list[str]]:
    """The names of the gradients by what is wrong with them, the gravest state first."""
    found: dict[str, list[str]] = {word: [] for word in (*dict.fromkeys(STATES.values()), BY_RANK, UNDUE, RIGHT, WEAK)}
    for name, finding in by_tensor(room).items():
        if finding is not None:
            found[_state_of(finding)].append(name)
        else:
            mine = [tensor for tensor in room.evidence.of("grad") if tensor.name == name]
            there = [tensor for tensor in mine if not (tensor.missing or tensor.expected_missing)]
            weak = there and all(map(room.insensitive, there))
            if there:
                found[WEAK if weak else RIGHT].append(name)
    return {word: names for word, names in found.items() if names}


def _state_of(finding: Finding) -> str:
    if finding.factors:
        return BY_RANK
    return UNDUE if finding.tensor is not None and finding.tensor.expected_missing else STATES[finding.verdict]


def _what(row: Row, room: Room, tensors: Mapping[str, Sequence[str]]) -> str:
    """The state of every gradient in clauses; for what is not a gradient's fault, the judge's own sentence."""
    if Verdict(row.verdict or "").info.group != "gradient" or not (set(tensors) - {RIGHT, WEAK}):
        return row.detail.removeprefix(OUTSIDE) + _gradients_too(row, room, tensors)
    among = [name for names in tensors.values() for name in names]
    said = [text for word in tensors if word in _CLAUSES for text in _state(word, room, tensors[word], among)]
    for word, words in ((RIGHT, "right"), (WEAK, "below the noise")):
        if names := [name for name in tensors.get(word, ()) if not stepped(name)]:
            said.append(f"{spoken(names, among)} {have(names, 'is', 'are')} {words}")
    if moved := _moved(tensors):
        said.append(f"{spoken(moved, among)} moved as {have(moved, 'it', 'they')} should")
    if _right_moments(tensors):
        said.append("the optimiser's moments are right")
    return "; ".join(said)


def _last_words(row: Row, log: str) -> str:
    """What a rank that died wrote last, where its own outcome does not have it: of some rank, for a log is of all."""
    if row.verdict != Verdict.CRASH or LABEL in row.detail or not (words := last_words(log)):
        return ""
    return f"; {LABEL}{words}"


def _moved(tensors: Mapping[str, Sequence[str]]) -> list[str]:
    """The weights of which nothing but the optimiser's step is known, and that one is right."""
    other = {stepped(name) or name for word, names in tensors.items() if word != RIGHT for name in names}
    right = tensors.get(RIGHT, ())
    return list(dict.fromkeys(name for one in right if (name := stepped(one)) and name not in other | set(right)))


def _right_moments(tensors: Mapping[str, Sequence[str]]) -> bool:
    """Whether a step is wrong although all moments are right: it is not the gradient that is."""
    wrong = {kind_of(name) for word, names in tensors.items() if word not in (RIGHT, WEAK) for name in names}
    return wrong == {"step"} and any(kind_of(name) == "moment" for name in tensors.get(RIGHT, ()))


def _gradients_too(row: Row, room: Room, tensors: Mapping[str, Sequence[str]]) -> str:
    """Beside a fault that is none of the gradients': what these are like."""
    if Verdict(row.verdict or "") not in ANSWERED or not tensors:
        return ""
    states = [word for word in tensors if word not in (RIGHT, WEAK)]
    wrong = [name for word in states for name in tensors[word]]
    if not wrong:
        return "; the gradients are right"
    among = [name for names in tensors.values() for name in names]
    gradients = have(wrong, "the gradient", "the gradients")
    amount = AS_WORDS.get(states[0]) or numbers(states[0], room, tensors[states[0]])
    return f"; {gradients} of {spoken(wrong, among)} {have(wrong, 'is', 'are')} wrong too ({amount})"


_CLAUSES: dict[str, tuple[str, str, str]] = {
    "permuted": (
        "the gradient of {names} has the right values in the wrong places",
        "the optimiser's step of {names} goes to the wrong elements",
        "the optimiser's moments of {names} have the right values in the wrong places",
    ),
    "dead": (
        "{names} {receive} no gradient ({numbers})",
        "after the optimiser's step {names} {have} not moved{counted}",
        "the optimiser's moments of {names} are zero ({numbers})",
    ),
    "partly dead": (
        "a part of the gradient of {names} is zero ({numbers})",
        "a part of {names} has not moved ({numbers})",
        "a part of the optimiser's moments of {names} is zero ({numbers})",
    ),
    "scaled": (
        "the gradient of {names} is {numbers}",
        "the optimiser's step of {names} is {numbers}",
        "each of the optimiser's moments of {names} is {numbers}",
    ),
    BY_RANK: (
        "the gradient of {names} is right up to one factor per rank ({numbers})",
        "the optimiser's step of {names} is right up to one factor per rank ({numbers})",
        "the optimiser's moments of {names} are right up to one factor per rank ({numbers})",
    ),
    UNDUE: (
        "{names} {have} a gradient where none is due",
        "after the optimiser's step {names} {have} moved, and should not have",
        "the optimiser has moments of {names} where none are due",
    ),
    "wrong": (
        "the gradient of {names} is wrong ({numbers})",
        "the optimiser's step of {names} is wrong ({numbers})",
        "the optimiser's moments of {names} are wrong ({numbers})",
    ),
}
"""Per state, of gradients, of the step that the optimiser made of them, and of its moments."""


def _state(word: str, room: Room, names: Sequence[str], among: Sequence[str]) -> list[str]:
    """A clause on the gradients in one state, and those on steps and moments where they are news.

    A step or a moment in the state of its own gradient only follows from it, and no number is taken over several kinds.
    """
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name in names:
        kinds[kind_of(name)].append(name)
    moments = kinds["moment"] or kinds["root"]
    said, told = list[str](), set[str]()
    for template, keys in zip(_CLAUSES[word], (kinds["gradient"], kinds["step"], moments), strict=True):
        whose = [stepped(key) or key for key in keys]
        news = not set(whose) <= told
        # That a dead weight has not moved is worth a clause, though no number.
        if not keys or not (news or "{counted}" in template):
            continue
        told.update(whose)
        amount = numbers(word, room, keys)
        words = {
            "names": spoken(whose, among),
            "receive": have(whose, "receives", "receive"),
            "have": have(whose, "has", "have"),
            "numbers": amount,
            "counted": f" ({amount})" if news else "",
        }
        said.append(template.format(**words))
    return said


# -- what it means ---------------------------------------------------------------------------------------------------


def _training(row: Row, room: Room, tensors: Mapping[str, Sequence[str]]) -> str:
    verdict = Verdict(row.verdict or "")
    if row.detail.startswith(OUTSIDE) and verdict is Verdict.MISMATCH:
        return SILENT_OUTSIDE
    state = STATES.get(verdict, "")
    if verdict is Verdict.MISMATCH and state not in tensors:
        state = BY_RANK if BY_RANK in tensors else UNDUE
    names = list(tensors.get(state, ()))
    whose = _whose(names, room.case.weights)
    worst = _worst(room, (), "output") if verdict is Verdict.FORWARD_MISMATCH else _worst(room, names)
    error = "" if worst is None else _off(worst)
    if state == BY_RANK and names:
        error = f": each rank's part has a size of its own ({numbers(BY_RANK, room, names)})"
    ratio = None if worst is None or worst.alpha is None else worst.alpha / room.case.scale
    return with_forward(verdict, clause(verdict, whose, ratio, error), row.forward_ok)


def _whose(names: Sequence[str], weights: Sequence[str]) -> str:
    """Whose updates are in question: a weight's own, and those of what an activation comes from."""
    mine = list(dict.fromkeys(stepped(name) or name for name in names))
    own = [name for name in mine if name in weights]
    before = [name for name in mine if name not in weights]
    said = [spoken(own)] if own else []
    said += [f"what {spoken(before)} {have(before, 'comes', 'come')} from"] if before else []
    return " and ".join(said) or WHOSE


def _off(worst: TensorEvidence) -> str:
    """By how much it is off, for the end of a clause."""
    if worst.nonfinite_got > worst.nonfinite_expected:
        return NOT_FINITE[worst.role]
    if not worst.rel_l2:
        return ""
    along = f" (cosine {worst.cosine:.2g})" if worst.cosine is not None else ""
    return (
        f" by {worst.rel_l2:.2g} of their size{along}"
        if worst.role == "grad"
        else (f": the output is off by {worst.rel_l2:.2g} of its norm")
    )


def _worst(room: Room, names: Sequence[str], role: str = "grad") -> TensorEvidence | None:
    mine = [tensor for tensor in room.evidence.of(role) if not names or tensor.name in names]
    return max(mine, key=lambda t: (t.nonfinite_got > t.nonfinite_expected, t.rel_l2 or 0.0), default=None)


# -- what stands beside it -------------------------------------------------------------------------------------------


def _eager(row: Row, eager: Row | None) -> str:
    """The verdict without the tracer beside the one with it."""
    if eager is None or row.mode == eager.mode or eager.verdict is None:
        return ""
    other = Verdict(eager.verdict)
    at = f"(cell {eager.cell})"
    if fault_of(row) == fault_of(eager):
        return f"has the same fault {at}: the tracer has no part in it"
    if other.settled:
        return f"{'is refused' if other is Verdict.REFUSED else other.info.label} {at}: only the traced call is wrong"
    return f"says otherwise {at}: {other.info.label}"
