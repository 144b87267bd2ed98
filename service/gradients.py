"""Where tensors differ, and how: the questions that ``service.judge`` asks of ranks that answered.

On the straight line a part of the judge: pure, one function per question, each answering with a finding or None. What
an error may be is in :class:`service.room.Room`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.evidence import TensorEvidence
from service.naming import KINDS, kind_of, stepped
from service.room import Room
from service.verdicts import Verdict
from service.wording import badness, how, listed, named, per_rank, since, where, zero_blocks

LOCAL_FAMILIES = ("tiled",)
"""Families whose cases hold no collective: what a traced mode has to show is one graph that nothing broke apart."""


@dataclass(frozen=True)
class Finding:
    """A verdict in the making.

    tensor   the one whose numbers are shown
    factors  what each rank's part is times the right one, where that is all that is wrong with it; else empty
    """

    verdict: Verdict
    signature: str
    detail: str
    tensor: TensorEvidence | None = None
    factors: tuple[tuple[int, float], ...] = ()


# -- shape, forward, manners -----------------------------------------------------------------------------------------


def wrong_shape(room: Room) -> Finding | None:
    """A result or gradient of another shape or type."""
    there = [t for t in room.evidence.of("output", "grad") if not (t.missing or t.expected_missing)]
    wrong = [t for t in there if not t.same_shape or room.other_type(t)]
    if not wrong:
        return None
    first = wrong[0]
    ranks = where(wrong, room.ranks, first.key)
    if first.same_shape:
        detail = f"{named(first)} has type {first.dtype} {ranks}, expected {first.expected_dtype}"
        return Finding(Verdict.WRONG_SHAPE, f"wrong type: {first.key}", detail, first)
    detail = f"{named(first)} has shape {listed(first.shape)} {ranks}, expected {listed(first.expected_shape)}"
    if first.sorted_rel is not None and first.sorted_rel <= room.telling(first):
        detail += "; it holds the expected values in another order"
    return Finding(Verdict.WRONG_SHAPE, f"wrong shape: {first.key}", detail, first)


def wrong_forward(room: Room, wrong: Sequence[TensorEvidence]) -> Finding | None:
    """An output that differs."""
    if not wrong:
        return None
    worst = max(wrong, key=badness)
    detail = f"{named(worst)} {how(worst)} {where(wrong, room.ranks, worst.key)}"
    return Finding(Verdict.FORWARD_MISMATCH, f"forward: {worst.key}", detail, worst)


def mutated(room: Room) -> Finding | None:
    """An input or incoming gradient whose bytes are not what they were."""
    there = [t for t in room.evidence.of("input", "cotangent") if not (t.missing or t.expected_missing)]
    # Byte for byte where the oracle sent the same type, else by value.
    changed = [t for t in there if not (t.identical if t.dtype == t.expected_dtype else t.equal)]
    if not changed:
        return None
    worst = max(changed, key=badness)
    others = sorted({t.name for t in changed if t.key != worst.key})
    also = f"; changed too: {', '.join(others)}" if others else ""
    on = where(changed, room.ranks, worst.key)
    detail = f"{named(worst)} was changed by the call {on}: {since(worst)}{also}; {room.forward}"
    return Finding(Verdict.MUTATED, f"mutated: {worst.key}", detail, worst)


def unreported(room: Room) -> Finding | None:
    """Something that every well rank must show and one did not."""
    silent = [t for t in room.evidence.of("input", "cotangent") if t.missing and not t.expected_missing]
    if not silent:
        return None
    detail = f"{named(silent[0])} was not shown after the call {where(silent, room.ranks, silent[0].key)}"
    return Finding(Verdict.MISMATCH, f"not shown: {silent[0].key}", detail, silent[0])


# -- gradients -------------------------------------------------------------------------------------------------------

_SEVERITY = (
    Verdict.NO_GRADIENT, Verdict.ZERO_GRADIENT, Verdict.PARTIAL_ZERO,
    Verdict.MISMATCH, Verdict.PERMUTED, Verdict.SCALED,
)  # fmt: skip
"""Where several gradients are wrong, each in its own way, the first of these names the cell."""


def by_tensor(room: Room) -> dict[str, Finding | None]:
    """What is wrong with each gradient over all ranks; None where nothing is."""
    by_name: dict[str, list[TensorEvidence]] = {}
    for tensor in room.evidence.of("grad"):
        by_name.setdefault(tensor.name, []).append(tensor)
    return {
        name: _classify(room, tensors) if any(map(room.is_wrong, tensors)) else None
        for name, tensors in by_name.items()
    }


def wrong_gradient(room: Room) -> Finding | None:
    """The gravest fault of any gradient, and which others are wrong."""
    found = [finding for finding in by_tensor(room).values() if finding is not None]
    if not found:
        return None
    # Of several like faults the largest one that is no parameter is what the call was asked for.
    gravest = min(found, key=lambda finding: (_SEVERITY.index(finding.verdict), *_weight(room, finding)))
    # What an optimiser made of a gradient follows from it: it names the fault, as ever, and never leads its sentence.
    alike = [finding for finding in found if finding.verdict is gravest.verdict]
    lead = min(alike, key=lambda finding: (_kind(finding), *_weight(room, finding)))
    told = {_whose(finding) for finding in found if _kind(finding) < KINDS.index("moment")}
    others = [
        f"{f.tensor.name} ({f.verdict.info.label})"
        for f in sorted(found, key=_kind)
        if f is not lead and f.tensor is not None and not (_kind(f) >= KINDS.index("moment") and _whose(f) in told)
    ]
    also = f"; also wrong: {', '.join(others[:6])}{', …' if len(others) > 6 else ''}" if others else ""
    detail = f"{lead.detail}{also}; {room.forward}{_convention(room)}"
    return Finding(gravest.verdict, gravest.signature, detail, lead.tensor, lead.factors)


def _weight(room: Room, finding: Finding) -> tuple[bool, int]:
    tensor = finding.tensor
    return (True, 0) if tensor is None else (tensor.name in room.case.weights, -tensor.numel)


def _kind(finding: Finding) -> int:
    """Gradients first, then steps, moments and what else an optimiser makes of them."""
    return len(KINDS) if finding.tensor is None else KINDS.index(kind_of(finding.tensor.name))


def _whose(finding: Finding) -> str:
    """The parameter that a finding is about, be it its gradient or what became of it."""
    return "" if finding.tensor is None else stepped(finding.tensor.name) or finding.tensor.name


def _classify(room: Room, tensors: Sequence[TensorEvidence]) -> Finding:
    """What is wrong with one gradient over all ranks."""
    wrong = [tensor for tensor in tensors if room.is_wrong(tensor)]
    # Beside an expected gradient that is itself noise, zeros, factors and orders mean nothing.
    told = not all(room.below_noise(tensor) for tensor in wrong)
    asks = (_unexpected, _absent, _zero, _scaled, _permuted, _on_wrong_rank, _partly_zero)
    for ask in asks if told else asks[:2]:
        if (finding := ask(room, tensors, wrong)) is not None:
            return finding
    # Where zero is expected there is only an absolute error: it stands for the gradient if nothing else does.
    worst = max([t for t in wrong if t.expected_norm != 0] or wrong, key=badness)
    ranks = where(wrong, room.ranks, worst.key)
    factors = _factors(room, tensors, wrong)
    if factors:
        detail = f"{named(worst)} is right up to one factor per rank: {per_rank(factors)}"
    elif len(wrong) > 1:
        detail = f"{named(worst)} is wrong {ranks}: on rank {worst.rank} it {how(worst).rstrip(',')}"
    else:
        detail = f"{named(worst)} {how(worst)} {ranks}"
    return Finding(Verdict.MISMATCH, f"mismatch: {worst.key}", detail, worst, factors)


def _factors(
    room: Room, tensors: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]
) -> tuple[tuple[int, float], ...]:
    """Each rank's factor against the case's convention, where nothing is left after it and they are not one."""
    if not (alive := _alive_up_to_a_factor(room, tensors, wrong)):
        return ()
    found = [(tensor.rank, (tensor.alpha or 0.0) / room.case.scale) for tensor in alive]
    values = [factor for _, factor in found]
    near = max(room.after_factor(tensor) for tensor in alive) * max(map(abs, values))
    return tuple(found) if max(values) - min(values) > near else ()


def _alive_up_to_a_factor(
    room: Room, tensors: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]
) -> list[TensorEvidence]:
    """The parts that should not be zero, where every one of them is right but for a factor; else nothing."""
    alive = [tensor for tensor in tensors if tensor.nonzero_expected]
    if any(not tensor.nonzero_expected for tensor in wrong) or not all(tensor.alpha for tensor in alive):
        return []
    if not all(tensor.nonfinite_same for tensor in tensors):
        return []
    if room.case.exact and any(tensor.zeroed for tensor in alive):
        return []
    fits = all(tensor.residual is not None and tensor.residual <= room.after_factor(tensor) for tensor in alive)
    return alive if fits else []


def _unexpected(room: Room, _: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]) -> Finding | None:
    extra = [tensor for tensor in wrong if tensor.expected_missing]
    if not extra:
        return None
    detail = f"{named(extra[0])} is there {where(extra, room.ranks, extra[0].key)}, and must not be"
    return Finding(Verdict.MISMATCH, f"unexpected: {extra[0].key}", detail, extra[0])


def _absent(room: Room, _: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]) -> Finding | None:
    absent = [tensor for tensor in wrong if tensor.missing]
    if not absent:
        return None
    first = absent[0]
    what = "is None" if first.reported else "was never reported"
    ranks = where(absent, room.ranks, first.key)
    detail = f"{named(first)} {what} {ranks}; expected {first.nonzero_expected} non-zero elements"
    return Finding(Verdict.NO_GRADIENT, f"no_gradient: {first.key}", detail, first)


def _zero(room: Room, tensors: Sequence[TensorEvidence], _: Sequence[TensorEvidence]) -> Finding | None:
    alive = [tensor for tensor in tensors if tensor.nonzero_expected]
    if not alive or any(tensor.nonzero_got for tensor in tensors):
        return None
    first = alive[0]
    detail = (
        f"{named(first)} is zero {where(alive, room.ranks, first.key)}: "
        f"0 of {first.numel} elements are non-zero, expected {first.nonzero_expected}"
    )
    return Finding(Verdict.ZERO_GRADIENT, f"zero_gradient: {first.key}", detail, first)


def _scaled(room: Room, tensors: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]) -> Finding | None:
    """One factor on every rank, other than the one that the case states, and nothing left after it."""
    alive = _alive_up_to_a_factor(room, tensors, wrong)
    factors = [tensor.alpha or 0.0 for tensor in alive]
    if not factors:
        return None
    near = max(room.after_factor(tensor) for tensor in alive) * abs(factors[0])
    if any(abs(factor - factors[0]) > near for factor in factors):
        return None
    if abs(factors[0] - room.case.scale) <= near:
        return None
    worst = max(alive, key=badness)
    detail = (
        f"{named(worst)} is {factors[0]:.6g} times the oracle's {where(alive, room.ranks, worst.key)} "
        f"(this case's convention is {room.case.scale:g}), "
        f"with a residual of {worst.residual or 0.0:.2g} after that factor"
    )
    return Finding(Verdict.SCALED, f"scaled by {factors[0]:.3g}: {worst.key}", detail, worst)


def _permuted(room: Room, tensors: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]) -> Finding | None:
    worst = max(wrong, key=badness)
    if not all(_only_order(room, tensor) for tensor in wrong):
        return None
    first = f", first at {listed(worst.first_diff)}" if worst.first_diff else ""
    ranks = where(wrong, room.ranks, worst.key)
    detail = f"{named(worst)} has every right value, but in other places ({ranks}{first})"
    return Finding(Verdict.PERMUTED, f"permuted: {worst.key}", detail, worst)


def _on_wrong_rank(room: Room, _: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]) -> Finding | None:
    """All ranks together hold the right values, as after a backward that forgot the exchange."""
    worst = max(wrong, key=badness)
    largest = max((tensor.rel_l2 for tensor in wrong if tensor.rel_l2 is not None), default=0.0)
    limit = min(0.1 * largest, *(_order_room(room, tensor) for tensor in wrong))
    if worst.sorted_rel_all is None or worst.sorted_rel_all > limit:
        return None
    ranks = where(wrong, room.ranks, worst.key)
    detail = f"{named(worst)} is permuted across ranks: every value is right, on the wrong rank ({ranks})"
    return Finding(Verdict.PERMUTED, f"permuted across ranks: {worst.key}", detail, worst)


def _only_order(room: Room, tensor: TensorEvidence) -> bool:
    """Whether sorting takes (nearly) all of the error away."""
    if tensor.sorted_rel is None or tensor.rel_l2 is None:
        return False
    return tensor.sorted_rel <= min(_order_room(room, tensor), 0.1 * tensor.rel_l2)


def _order_room(room: Room, tensor: TensorEvidence) -> float:
    return min(room.telling(tensor), room.policy.classes.permuted_room)


def _partly_zero(room: Room, tensors: Sequence[TensorEvidence], wrong: Sequence[TensorEvidence]) -> Finding | None:
    if not all(tensor.nonfinite_same for tensor in wrong):
        return None  # beside what is not finite, an element that rounding took away is no news
    lost, expected = sum(t.zeroed for t in wrong), sum(t.nonzero_expected for t in tensors)
    dead = [tensor for tensor in wrong if tensor.nonzero_expected and not tensor.nonzero_got]
    rest = all(tensor.rest_rel is None or tensor.rest_rel <= room.telling(tensor) for tensor in wrong)
    if not dead and not (lost and (rest or lost >= room.policy.classes.partial_share * expected)):
        return None
    worst = dead[0] if dead else max(wrong, key=lambda tensor: tensor.zeroed)
    some = dead or [tensor for tensor in wrong if tensor.zeroed]
    ranks = f"{'all' if dead else 'part'} of it {where(some, room.ranks, worst.key)}"
    detail = (
        f"{named(worst)} is partly zero, {ranks}: {worst.nonzero_got} of {worst.numel} elements on rank {worst.rank} "
        f"are non-zero, expected {worst.nonzero_expected}; the rest is {'right' if rest else 'wrong as well'}"
        + zero_blocks(worst)
    )
    return Finding(Verdict.PARTIAL_ZERO, f"partial_zero: {worst.key}", detail, worst)


def right(room: Room) -> Finding:
    """Nothing is wrong: what that is worth."""
    evidence, trace = room.evidence, room.evidence.trace
    gradients = [tensor for tensor in evidence.of("grad") if not (tensor.missing or tensor.expected_missing)]
    sound = [tensor for tensor in gradients if not room.insensitive(tensor)]
    # What is below the noise has an error of its own size, which says nothing.
    shown = max(sound or gradients or evidence.of("output"), key=badness, default=None)
    weak = sorted({tensor.name for tensor in gradients if room.insensitive(tensor)})
    if gradients and not sound:
        detail = f"every expected gradient is below the noise ({', '.join(weak[:6])}); {room.forward}"
        return Finding(Verdict.INSENSITIVE, "", detail, shown)
    names, ranks = {tensor.name for tensor in gradients}, len(evidence.ranks)
    count = f"{len(names)} gradient{'s' if len(names) != 1 else ''}"
    if all(tensor.equal for tensor in gradients):
        detail = f"{room.forward}, {count} exact on {ranks} ranks"
    else:
        largest = max(tensor.rel_l2 or 0.0 for tensor in sound)
        detail = f"{room.forward}, {count} right to {largest:.2g} on {ranks} ranks"
    detail += f"; below the noise: {', '.join(weak[:6])}" if weak else ""
    if trace is None:
        return Finding(Verdict.AGREE, "", detail, shown)
    local = room.case.family in LOCAL_FAMILIES
    if trace.collective_in_graph or (local and trace.graphs > 0 and not trace.breaks):
        return Finding(Verdict.AGREE, "", detail, shown)
    why = f"{trace.breaks[0].reason}" if trace.breaks else "no reason was given"
    what = "call was traced in no whole graph" if local else "collective was in no traced graph"
    detail += f"; but the {what} ({why[:200]})"
    return Finding(Verdict.AGREE_UNTRACED, "", detail, shown)


def _convention(room: Room) -> str:
    """What the central difference of the subject's own forward says about its backward."""
    if room.evidence.fd is None:
        return ""
    return {
        "both": "",
        "subject": "; the subject's own forward agrees with its gradient: another convention?",
        "oracle": "; the subject's own forward contradicts its gradient",
        "neither": "; the subject's own forward agrees with neither gradient",
    }[room.evidence.fd.agrees_with(room.policy.difference.of(room.case.dtype))]
