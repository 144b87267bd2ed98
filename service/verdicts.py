"""The words for what a cell's evidence says; the one table that judge, pages, command line and README read.

On the straight line this is the vocabulary between ``service.judge`` (which picks the word) and everything that shows
it. Pure data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Group = Literal["agree", "gradient", "forward", "manners", "no answer", "nothing to say"]
Colour = Literal["green", "yellow", "red", "magenta", "blue", "grey"]


class Verdict(StrEnum):
    """Every verdict that a cell can have. Stored as its value."""

    AGREE = "agree"
    AGREE_UNTRACED = "agree_untraced"
    ZERO_GRADIENT = "zero_gradient"
    PARTIAL_ZERO = "partial_zero"
    NO_GRADIENT = "no_gradient"
    SCALED = "scaled"
    PERMUTED = "permuted"
    MISMATCH = "mismatch"
    NONDETERMINISTIC = "nondeterministic"
    WRONG_SHAPE = "wrong_shape"
    FORWARD_MISMATCH = "forward_mismatch"
    MUTATED = "mutated"
    LEAK = "leak"
    RAISED = "raised"
    PARTIAL_RAISE = "partial_raise"
    UNIMPORTABLE = "unimportable"
    HANG = "hang"
    CRASH = "crash"
    REFUSED = "refused"
    INSENSITIVE = "insensitive"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    INFRA = "infra"

    @property
    def info(self) -> VerdictInfo:
        """What there is to say about this verdict."""
        return VERDICTS[self]

    @property
    def failing(self) -> bool:
        """Whether the subject is at fault."""
        return VERDICTS[self].failing

    @property
    def settled(self) -> bool:
        """Whether this says that all is well."""
        return self in (Verdict.AGREE, Verdict.AGREE_UNTRACED, Verdict.REFUSED)

    @property
    def incomplete(self) -> bool:
        """Whether the question was not answered for a reason that is not the subject's."""
        return VERDICTS[self].incomplete


@dataclass(frozen=True)
class VerdictInfo:
    """How a verdict is named and explained.

    label       its words in running text
    short       its word in a grid cell
    group       whose matter it is
    failing     the subject is at fault
    incomplete  nothing was learnt, and somebody has to look at our side
    colour      beside the word, never instead of it
    meaning     one sentence for people
    """

    label: str
    short: str
    group: Group
    failing: bool
    colour: Colour
    meaning: str
    incomplete: bool = False


def _fault(label: str, short: str, group: Group, meaning: str, colour: Colour = "red") -> VerdictInfo:
    return VerdictInfo(label, short, group, True, colour, meaning)


VERDICTS: dict[Verdict, VerdictInfo] = {
    Verdict.AGREE: VerdictInfo(
        "agrees", "agree", "agree", False, "green", "Forward and every gradient agree with the oracle on every rank."
    ),
    Verdict.AGREE_UNTRACED: VerdictInfo(
        "agrees, untraced", "agree*", "agree", False, "green",
        "Everything agrees, but the collective (where there is none, the call) was in no traced graph, so that the "
        "traced mode proved nothing.",
    ),
    Verdict.ZERO_GRADIENT: _fault(
        "zero gradient", "zero", "gradient", "A gradient is zero everywhere on every rank where the oracle's is not."
    ),
    Verdict.PARTIAL_ZERO: _fault(
        "partly zero gradient", "part zero", "gradient",
        "Whole blocks of a gradient, or all of it on some ranks, are zero where the oracle's are not.",
    ),
    Verdict.NO_GRADIENT: _fault(
        "no gradient", "none", "gradient", "An input or parameter that needs a gradient got none at all."
    ),
    Verdict.SCALED: _fault(
        "scaled gradient", "scaled", "gradient",
        "A gradient is right up to one factor, and that factor is not the one this case states as the convention.",
    ),
    Verdict.PERMUTED: _fault(
        "permuted gradient", "permuted", "gradient", "A gradient holds exactly the right values in the wrong places."
    ),
    Verdict.MISMATCH: _fault(
        "wrong gradient", "mismatch", "gradient",
        "A gradient differs from the oracle's in no simpler way, or there was an answer where a refusal was due.",
    ),
    Verdict.NONDETERMINISTIC: _fault(
        "not deterministic", "nondet", "gradient", "Two identical passes in the same ranks gave different bits."
    ),
    Verdict.WRONG_SHAPE: _fault(
        "wrong shape", "shape", "forward", "A result or gradient has another shape or type than it should.", "magenta"
    ),
    Verdict.FORWARD_MISMATCH: _fault(
        "wrong forward", "forward", "forward", "The forward itself differs from the oracle.", "magenta"
    ),
    Verdict.MUTATED: _fault(
        "input changed", "mutated", "manners", "An input or an incoming gradient was changed by the call.", "magenta"
    ),
    Verdict.LEAK: _fault(
        "state leaks", "leak", "manners", "The answer is right alone and wrong after other cases in the same process.",
        "magenta",
    ),
    Verdict.RAISED: _fault(
        "raised", "raised", "no answer", "The call raised an error on every rank; the signature names it.", "yellow"
    ),
    Verdict.PARTIAL_RAISE: _fault(
        "raised on some ranks", "part raise", "no answer", "Some ranks raised and others did not.", "yellow"
    ),
    Verdict.UNIMPORTABLE: _fault(
        "not importable", "no import", "no answer", "The subject cannot be imported on this torch version.", "yellow"
    ),
    Verdict.HANG: _fault(
        "hangs", "hang", "no answer", "A rank did not return within the deadline; every rank's stacks are kept.",
        "yellow",
    ),
    Verdict.CRASH: _fault("crashes", "crash", "no answer", "A rank's process died, or broke the protocol.", "yellow"),
    Verdict.REFUSED: VerdictInfo(
        "refused", "refused", "nothing to say", False, "green",
        "The case is outside the contract, and every rank refused it with a clear error, which is right.",
    ),
    Verdict.INSENSITIVE: VerdictInfo(
        "insensitive", "insens", "nothing to say", False, "grey",
        "The expected gradient is itself below the noise, so that nothing can be told.",
    ),
    Verdict.UNSUPPORTED: VerdictInfo(
        "unsupported", "unsupp", "nothing to say", False, "grey",
        "The subject has no such API, or the runtime cannot do this mode; the reason is given.",
    ),
    Verdict.INVALID: VerdictInfo(
        "invalid", "invalid", "nothing to say", False, "blue",
        "A control failed or the oracle said nothing, so that this answer would mean nothing.", incomplete=True,
    ),
    Verdict.INFRA: VerdictInfo(
        "machine trouble", "infra", "nothing to say", False, "blue",
        "The machine failed, not the subject; it is tried again.", incomplete=True,
    ),
}  # fmt: skip
"""One entry per verdict, in the order in which pages list them."""


def parse_verdict(text: str) -> Verdict:
    """The verdict stored as ``text``. Raises ValueError naming the known ones."""
    try:
        return Verdict(text)
    except ValueError:
        raise ValueError(f"no verdict {text!r}; there are {', '.join(Verdict)}") from None
