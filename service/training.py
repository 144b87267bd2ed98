"""What a verdict means for a training run: a clause for each, with numbers where there are some.

On the straight line this serves ``service.diagnosis``, which knows a cell's evidence, and ``service.findings``, which
knows only rows. Pure; the words are one table.
"""

from __future__ import annotations

from service.verdicts import Verdict

TRAINING: dict[Verdict, str] = {
    Verdict.AGREE: "",
    Verdict.AGREE_UNTRACED: "nothing is known of a training run in which the compiler does capture this call",
    Verdict.ZERO_GRADIENT: "{whose} will not be trained through this call",
    Verdict.PARTIAL_ZERO: "a part of {whose} will not be trained; gradient norms and clipping may hardly show it",
    Verdict.NO_GRADIENT: "the optimiser skips {whose}, weight decay included, and whatever reads .grad meets None",
    Verdict.SCALED: "every update of {whose} {times}",
    Verdict.PERMUTED: "updates of {whose} are as large as they should be, but go to the wrong elements",
    Verdict.MISMATCH: "updates of {whose} are off{error}",
    Verdict.NONDETERMINISTIC: "no step can be repeated: two runs from one seed part, and losses cannot be compared",
    Verdict.WRONG_SHAPE: "what follows meets another shape or type: it raises at best and broadcasts silently at worst",
    Verdict.FORWARD_MISMATCH: "the loss is not the one that a run without sequence parallelism has{error}",
    Verdict.MUTATED: "whatever uses that tensor afterwards, or recomputes from it, calculates with other values",
    Verdict.LEAK: "right in a test of its own, wrong after something else in the same job, such as a second model",
    Verdict.RAISED: "training stops here, with an error on every rank",
    Verdict.PARTIAL_RAISE: "some ranks stop, and the others wait for them until the collective's timeout",
    Verdict.UNIMPORTABLE: "nothing of it runs on this torch version",
    Verdict.HANG: "the job stands still until the collective's timeout",
    Verdict.CRASH: "the process is gone, without a Python error to read",
    Verdict.REFUSED: "whoever asks for this is told so at once",
    Verdict.INSENSITIVE: "nothing: this gradient is too small to train anything here",
    Verdict.UNSUPPORTED: "nothing: there is no such call here",
    Verdict.INVALID: "nothing is known: our own controls did not hold",
    Verdict.INFRA: "nothing is known: the machine failed",
}
"""A clause per verdict. ``whose``: what has the gradient; ``times``, ``error``: by how much it is wrong."""

SILENT = "the forward is right, so that the loss will look healthy"
SILENT_OUTSIDE = "nobody is told that this is not supported: training goes on with numbers that mean nothing"
WHOSE = "some or all of what comes before it"
"""Whose gradient it is, where no more is known."""


def meaning(verdict: Verdict, *, forward_ok: bool | None, alpha: float | None = None, outside: bool = False) -> str:
    """What a verdict means for training where no more than its row is known; ``outside``: a refusal was due."""
    if outside and verdict is Verdict.MISMATCH:
        return SILENT_OUTSIDE
    return with_forward(verdict, clause(verdict, WHOSE, alpha, ""), forward_ok)


def clause(verdict: Verdict, whose: str, ratio: float | None, error: str) -> str:
    """The verdict's clause; ``ratio``: what the gradient is, where the right one is 1."""
    return TRAINING[verdict].format(whose=whose, times=_times(ratio), error=error)


def with_forward(verdict: Verdict, said: str, forward_ok: bool | None) -> str:
    """``said``, and for a wrong gradient after a right forward that nothing else will show it."""
    return f"{said}; {SILENT}" if verdict.info.group == "gradient" and forward_ok else said


def _times(ratio: float | None) -> str:
    """By how much updates are wrong where gradients are ``ratio`` times what they should be."""
    if not ratio:
        return "has the wrong size"
    if ratio < 0:
        return f"goes the wrong way, uphill (the gradient is {ratio:.3g} times the right one)"
    much = f"{ratio:.3g} times too large" if ratio > 1 else f"{1 / ratio:.3g} times too small"
    return f"is {much} unless the optimiser is scale-free, as Adam nearly is; clipping and loss scaling are not"
