"""One cell's evidence from what its ranks sent and what the oracle says.

On the straight line this joins the two halves of ``workers.collect``: the stream, already valid, and the measuring.
What is absent is evidence too: a tensor that the oracle has and an untroubled rank never sent is recorded as missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.contract import CaseInfo
from service.evidence import (
    Blob,
    Difference,
    ErrorInfo,
    Evidence,
    GraphBreak,
    Noise,
    RankOutcome,
    TensorEvidence,
    TraceEvidence,
)
from service.lastwords import LABEL, last_words
from workers.collect.measure import Raw, difference_of, measure, sorted_over_ranks

Tensors = Mapping[tuple[str, str], Raw | None]
"""What one rank sent, or what the oracle says about one rank, by role and name."""


def outcome(said: dict[str, Any]) -> RankOutcome:
    """A rank's outcome from its event; its seconds are not evidence."""
    return RankOutcome(
        rank=said["rank"],
        status=said["status"],
        phase=said["phase"],
        error=error(said["error"]),
        reason=said["reason"],
        repeat_equal=said["repeat_equal"],
        changed=said.get("changed", ()),
    )


def with_last_words(outcomes: Sequence[RankOutcome], logs: Mapping[int, Sequence[str]]) -> list[RankOutcome]:
    """The outcomes, and with those of ranks that died what they said last; ``logs``: each rank's lines."""
    told = []
    for one in outcomes:
        words = last_words("\n".join(logs.get(one.rank, ()))) if one.status == "crash" else ""
        reason = "; ".join(part for part in (one.reason, f"{LABEL}{words}") if part) if words else one.reason
        told.append(dataclasses.replace(one, reason=reason))
    return told


def error(said: dict[str, Any] | None) -> ErrorInfo | None:
    """An error from its event."""
    return None if said is None else ErrorInfo.from_json(said)


def trace(said: dict[str, Any] | None) -> TraceEvidence:
    """The tracer's facts; in a traced mode, saying nothing means that nothing was traced."""
    if said is None:
        return TraceEvidence()
    return TraceEvidence(**{**said, "breaks": tuple(GraphBreak(**item) for item in said["breaks"])})


def assemble(
    case: CaseInfo,
    outcomes: Sequence[RankOutcome],
    sent: Sequence[Tensors],
    oracle: Sequence[Tensors],
    noise: Mapping[str, Noise],
    traced: TraceEvidence | None,
    state_changes: tuple[str, ...],
) -> Evidence:
    """Evidence of one pass of one cell. ``sent`` and ``oracle`` are by rank; ``oracle`` is empty for a refusal."""
    tensors: list[TensorEvidence] = []
    for rank, mine in enumerate(sent):
        right = oracle[rank] if oracle else {}
        answered = outcomes[rank].status == "ok"
        for role, name in sorted({*mine, *(right if answered else ())}):
            if role != "fd":
                tensors.append(_one(case, role, name, rank, mine, right, known=bool(oracle)))
    return Evidence(
        ranks=tuple(sorted(outcomes, key=lambda one: one.rank)),
        tensors=tuple(_over_ranks(case, tensors, sent, oracle)),
        trace=traced,
        noise=dict(noise),
        fd=_difference(sent, oracle),
        state_changes=state_changes,
    )


def _one(case: CaseInfo, role: str, name: str, rank: int, mine: Tensors, right: Tensors, known: bool) -> TensorEvidence:
    got, expected = mine.get((role, name)), right.get((role, name))
    if got is not None and expected is not None:
        return measure(got, expected, case, role, name, rank)
    absent = TensorEvidence(
        role=role,
        name=name,
        rank=rank,
        missing=got is None,
        reported=(role, name) in mine,
        expected_missing=known and expected is None,
    )
    if got is not None:
        # Beside itself: the counts and the digest are worth having although there is nothing to compare with.
        alone = measure(got, got, case, role, name, rank)
        facts = {key: getattr(alone, key) for key in ("dtype", "shape", "numel", "digest", "nonfinite_got",
                                                      "nonzero_got", "got_norm")}  # fmt: skip
        return dataclasses.replace(absent, **facts)
    if expected is not None:
        alone = measure(expected, expected, case, role, name, rank)
        facts = {key: getattr(alone, key) for key in ("expected_dtype", "expected_shape", "expected_digest",
                                                      "nonfinite_expected", "nonzero_expected")}  # fmt: skip
        return dataclasses.replace(absent, **facts)
    return absent


def _over_ranks(
    case: CaseInfo, tensors: Sequence[TensorEvidence], sent: Sequence[Tensors], oracle: Sequence[Tensors]
) -> list[TensorEvidence]:
    """``tensors`` with ``sorted_rel_all``, where a gradient that differs is there on every rank."""
    shared: dict[str, float | None] = {}
    for tensor in tensors:
        if tensor.role != "grad" or tensor.equal or tensor.key in shared or not oracle:
            continue
        at = (tensor.role, tensor.name)
        pairs = [(mine.get(at), right.get(at)) for mine, right in zip(sent, oracle, strict=True)]
        whole = [(got, expected) for got, expected in pairs if got is not None and expected is not None]
        shared[tensor.key] = sorted_over_ranks(whole, case.scale) if len(whole) == len(pairs) else None
    if all(rel is None for rel in shared.values()):
        return list(tensors)
    return [dataclasses.replace(one, sorted_rel_all=shared.get(one.key)) for one in tensors]


def _difference(sent: Sequence[Tensors], oracle: Sequence[Tensors]) -> Difference | None:
    """The central difference, where the oracle gave a direction and every rank its part."""
    parts = [raw for mine in sent for (role, _), raw in mine.items() if role == "fd" and raw is not None]
    triples = [
        (mine.get(("grad", name)), right.get(("grad", name)), direction)
        for mine, right in zip(sent, oracle, strict=False)
        for (role, name), direction in right.items()
        if role == "fd" and direction is not None
    ]
    return difference_of(parts, triples) if triples and len(parts) == len(sent) else None


def blobs(sent: Sequence[Tensors], oracle: Sequence[Tensors]) -> list[Blob]:
    """Every tensor's bytes, got and expected: what is worth keeping of a cell that does not agree."""
    kept: list[Blob] = []
    for kind, ranks in (("got", sent), ("expected", oracle)):
        for rank, tensors in enumerate(ranks):
            for (role, name), raw in sorted(tensors.items()):
                if raw is not None:
                    where = f"{role}/{name}/rank{rank}"
                    kept.append(
                        Blob("got" if kind == "got" else "expected", where, raw.data, rank, raw.dtype, raw.shape)
                    )
    return kept
