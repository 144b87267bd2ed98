"""What the oracle said in one attempt, and what that allows ranks to say.

On the straight line this is the part of ``workers.collect`` that is filled before any subject code may run, and only
read afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.contract import CaseInfo
from service.evidence import Noise, TensorEvidence
from workers.collect.measure import Raw, measure, noise_of
from workers.collect.schema import Sent, Violation

NOISE_PREFIX = "dense:"
"""``dense:x`` from the oracle is ``x`` as the dense run in the case's own type has it: the noise floor, not truth."""
MAX_TENSORS = 4096

RankTensors = dict[tuple[str, str], Raw | None]
"""One rank's tensors by role and name; None for one that must not be there, or is not."""


class Truth:
    """The oracle's tensors and the noise floor, per case and world size."""

    def __init__(self) -> None:
        self._right: dict[tuple[str, int], list[RankTensors]] = {}
        self._dense: dict[tuple[str, int], list[RankTensors]] = {}
        self._noise: dict[tuple[str, int], dict[str, Noise]] = {}

    def learn(self, case: CaseInfo, world: int, rank: int, sent: Sent) -> None:
        """Take one tensor from the oracle."""
        dense = sent.name.startswith(NOISE_PREFIX)
        ranks = (self._dense if dense else self._right).setdefault((case.id, world), [{} for _ in range(world)])
        put(ranks[rank], sent._replace(name=sent.name.removeprefix(NOISE_PREFIX)), f"the oracle of {case.id}")

    def of(self, case: CaseInfo, world: int) -> list[RankTensors]:
        """What is right, by rank; empty where the oracle said nothing."""
        return self._right.get((case.id, world), [])

    def silence(self, case: CaseInfo, world: int) -> str | None:
        """Why this case cannot be judged, if the oracle said nothing that a result could be held against."""
        ranks = self.of(case, world)
        silent = [rank for rank, one in enumerate(ranks) if not any(role in ("output", "grad") for role, _ in one)]
        if case.expect == "refusal" or (ranks and not silent):
            return None
        where = f"on rank {silent[0]}" if silent else f"with {world} ranks"
        return f"the oracle said nothing about {case.id} {where}"

    def take(self, tensors: RankTensors, case: CaseInfo, world: int, rank: int, sent: Sent) -> None:
        """Add what ``rank`` sent to its ``tensors``; a tensor that the oracle does not know is a violation.

        Where the oracle said nothing nothing will be judged, and where a refusal is due any result is the fault.
        """
        ranks = self.of(case, world)
        whose = f"{case.id}, rank {rank}"
        if sent.role == "fd":
            if any(role == "fd" for role, _ in tensors):
                raise Violation(f"{whose}: two central differences")
            asked = not ranks or any(role == "fd" for role, _ in ranks[rank])
            if not asked or (sent.raw is not None and (sent.raw.dtype != "float64" or sent.raw.numel != 1)):
                raise Violation(f"{whose}: a central difference that is not one float64, or was not asked for")
        elif ranks and case.expect != "refusal" and (sent.role, sent.name) not in ranks[rank]:
            raise Violation(f"{whose}: an unexpected tensor {sent.role}/{sent.name}")
        put(tensors, sent, whose)

    def noise(self, case: CaseInfo, world: int) -> dict[str, Noise]:
        """The noise floor per tensor; empty where no dense run was sent."""
        key = (case.id, world)
        if key not in self._noise:
            self._noise[key] = noise_of(self._dense_evidence(case, world))
        return self._noise[key]

    def _dense_evidence(self, case: CaseInfo, world: int) -> Iterator[TensorEvidence]:
        ranks = self.of(case, world)
        for rank, tensors in enumerate(self._dense.get((case.id, world), []) if ranks else []):
            for (role, name), dense in tensors.items():
                right = ranks[rank].get((role, name))
                if dense is not None and right is not None:
                    yield measure(dense, right, case, role, name, rank)


def put(tensors: RankTensors, sent: Sent, whose: str) -> None:
    """Add a tensor that is not there yet."""
    if (sent.role, sent.name) in tensors:
        raise Violation(f"{whose}: {sent.role}/{sent.name} twice")
    if len(tensors) >= MAX_TENSORS:
        raise Violation(f"{whose}: more than {MAX_TENSORS} tensors")
    tensors[sent.role, sent.name] = sent.raw
