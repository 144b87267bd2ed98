"""What is wrong with a red cell in its reader's words, what it means for training, and where else it is so.

On the straight line this stands after ``service.judge``, beside ``service.findings``: that groups cells, this reads one
in full. Pure: a row, its evidence and the answers beside it in, sentences out. The words are in the tables below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.contract import CaseInfo
from service.evidence import Evidence, TensorEvidence
from service.extents import Extent, along_releases, along_torch, fault_of
from service.gradients import by_tensor
from service.naming import have, spoken, stepped
from service.policy import Policy
from service.room import Room
from service.spans import listed
from service.training import SILENT_OUTSIDE, WHOSE, clause, with_forward
from service.verdicts import Verdict
from service.wording import OUTSIDE, zero_blocks

if TYPE_CHECKING:
    from service.compare import Row

SHOWN_BLOCKS = 3
"""Of so many gradients it is said where they are zero."""

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
ANSWERED = (Verdict.WRONG_SHAPE, Verdict.FORWARD_MISMATCH, Verdict.MUTATED)
"""Faults that come before that of a gradient, of calls that came to their end."""
RIGHT, WEAK = "right", "too small to tell"


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
    tensors   the names of the gradients by state: dead, partly dead, scaled, permuted, wrong, right, too small to tell
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
) -> Diagnosis | None:
    """The diagnosis of a failing cell, under the policy that judged it; None for any other one."""
    if row.verdict is None or not Verdict(row.verdict).failing:
        return None
    room = Room(evidence, case, policy)
    tensors = _tensors(room) if _answered(evidence) and case.expect == "values" else {}
    return Diagnosis(
        what=_what(row, room, tensors),
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
    found: dict[str, list[str]] = {word: [] for word in (*dict.fromkeys(STATES.values()), RIGHT, WEAK)}
    for name, finding in by_tensor(room).items():
        if finding is not None:
            found[STATES[finding.verdict]].append(name)
        else:
            mine = [tensor for tensor in room.evidence.of("grad") if tensor.name == name]
            there = [tensor for tensor in mine if not (tensor.missing or tensor.expected_missing)]
            weak = there and all(map(room.insensitive, there))
            if there:
                found[WEAK if weak else RIGHT].append(name)
    return {word: names for word, names in found.items() if names}


def _what(row: Row, room: Room, tensors: Mapping[str, Sequence[str]]) -> str:
    """The state of every gradient in clauses; for what is not a gradient's fault, the judge's own sentence."""
    if Verdict(row.verdict or "").info.group != "gradient" or not (set(tensors) - {RIGHT, WEAK}):
        return row.detail.removeprefix(OUTSIDE) + _gradients_too(row, tensors)
    among = [name for names in tensors.values() for name in names]
    said = [text for word in tensors if word in _CLAUSES for text in _state(word, room, tensors[word], among)]
    for word, words in ((RIGHT, "right"), (WEAK, "below the noise")):
        if names := [name for name in tensors.get(word, ()) if not stepped(name)]:
            said.append(f"{spoken(names, among)} {have(names, 'is', 'are')} {words}")
    if moved := _moved(tensors):
        said.append(f"{spoken(moved, among)} moved as {have(moved, 'it', 'they')} should")
    return "; ".join(said)


def _moved(tensors: Mapping[str, Sequence[str]]) -> list[str]:
    """The weights of which nothing but the optimiser's step is known, and that one is right."""
    other = {stepped(name) or name for word, names in tensors.items() if word != RIGHT for name in names}
    right = tensors.get(RIGHT, ())
    return list(dict.fromkeys(name for one in right if (name := stepped(one)) and name not in other | set(right)))


def _gradients_too(row: Row, tensors: Mapping[str, Sequence[str]]) -> str:
    """Beside a fault that is none of the gradients': what these are like."""
    if Verdict(row.verdict or "") not in ANSWERED or not tensors:
        return ""
    wrong = [name for word, names in tensors.items() if word not in (RIGHT, WEAK) for name in names]
    if not wrong:
        return "; the gradients are right"
    among = [name for names in tensors.values() for name in names]
    gradients = have(wrong, "the gradient", "the gradients")
    return f"; {gradients} of {spoken(wrong, among)} {have(wrong, 'is', 'are')} wrong too"


_CLAUSES = {
    "permuted": (
        "the gradient of {names} has the right values in the wrong places",
        "the optimiser's step of {names} goes to the wrong elements",
    ),
    "dead": ("{names} {receive} no gradient ({numbers})", "after the optimiser's step {names} {have} not moved{news}"),
    "partly dead": ("a part of the gradient of {names} is zero ({numbers})", "a part of {names} has not moved{news}"),
    "scaled": ("the gradient of {names} is {numbers}", "the optimiser's step of {names} is scaled ({numbers})"),
    "wrong": (
        "the gradient of {names} is wrong ({numbers})",
        "the optimiser's step or moments of {names} are wrong ({numbers})",
    ),
}
"""Per state, of gradients and of what the optimiser made of them."""


def _state(word: str, room: Room, names: Sequence[str], among: Sequence[str]) -> list[str]:
    """A clause on the gradients in one state, and one on what the optimiser made of them where that is news."""
    plain = [name for name in names if not stepped(name)]
    made = [name for name in names if stepped(name)]
    after = list(dict.fromkeys(map(stepped, made)))
    said = []
    for template, those, keys in ((0, plain, plain), (1, after, made)):
        if not those or (template and set(those) <= set(plain) and word != "dead"):
            continue
        numbers = _numbers(word, room, keys)
        words = {
            "names": spoken(those, among),
            "receive": have(those, "receives", "receive"),
            "have": have(those, "has", "have"),
            "numbers": numbers,
            "news": "" if plain else f" ({numbers})",
        }
        said.append(_CLAUSES[word][template].format(**words))
    return said


def _numbers(word: str, room: Room, names: Sequence[str]) -> str:
    """The numbers that go with a state, over all ranks and all of these gradients."""
    mine = [tensor for tensor in room.evidence.of("grad") if tensor.name in names]
    if word == "dead":
        _, due, ranks = _counted(mine)
        if any(tensor.missing for tensor in mine):
            return f".grad is None where {due} elements are due{ranks}"
        return f"0 of {due} elements are non-zero{ranks}"
    if word == "partly dead":
        got, due, ranks = _counted(mine)
        where = list(dict.fromkeys(filter(None, map(zero_blocks, mine))))
        more = " …" if len(where) > SHOWN_BLOCKS else ""
        return f"{got} of {due} elements are non-zero{ranks}" + "".join(where[:SHOWN_BLOCKS]) + more
    if word == "scaled":
        factors = dict.fromkeys(f"{t.alpha / room.case.scale:.4g}" for t in mine if t.alpha is not None)
        return f"{listed(list(factors))} times what it should be"
    if any(tensor.expected_missing for tensor in mine):
        return "there is one, and must be none"
    if odd := [tensor for tensor in mine if not tensor.nonfinite_same]:
        got, due = (sum(getattr(tensor, key) for tensor in odd) for key in ("nonfinite_got", "nonfinite_expected"))
        return f"{got} element{'s are' if got != 1 else ' is'} NaN or infinite, and {due} should be"
    worst = max(mine, key=lambda tensor: tensor.rel_l2 or 0.0)
    if worst.rel_l2 is None:
        return f"up to {worst.max_abs or 0.0:.3g} where zero is due"
    return f"off by {worst.rel_l2:.3g} of its norm" + (
        f", cosine {worst.cosine:.3g}" if worst.cosine is not None else ""
    )


def _counted(tensors: Sequence[TensorEvidence]) -> tuple[int, int, str]:
    """How many elements are non-zero and how many should be, of one rank where all have as many, and on which."""
    ranks: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        got, due = ranks.get(tensor.rank, (0, 0))
        ranks[tensor.rank] = (got + tensor.nonzero_got, due + tensor.nonzero_expected)
    if len(set(ranks.values())) == 1:
        return *next(iter(ranks.values())), " on each rank"
    return sum(got for got, _ in ranks.values()), sum(due for _, due in ranks.values()), " over all ranks"


# -- what it means ---------------------------------------------------------------------------------------------------


def _training(row: Row, room: Room, tensors: Mapping[str, Sequence[str]]) -> str:
    verdict = Verdict(row.verdict or "")
    if row.detail.startswith(OUTSIDE) and verdict is Verdict.MISMATCH:
        return SILENT_OUTSIDE
    names = list(tensors.get(STATES.get(verdict, ""), ()))
    whose = _whose(names, room.case.weights)
    worst = _worst(room, (), "output") if verdict is Verdict.FORWARD_MISMATCH else _worst(room, names)
    error = "" if worst is None else _off(worst)
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
        return f"{'is refused' if other is Verdict.REFUSED else 'agrees'} {at}: only the traced call is wrong"
    return f"says otherwise {at}: {other.info.label}"
