"""What stands beside a submission's rows: their evidence, their diagnoses, and what the store knows of the same cells.

On the straight line this stands between ``service.store`` and whatever shows a submission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobs.contract import MODES, CaseInfo
from service import catalog, store
from service.diagnosis import Beside, Diagnosis, diagnose
from service.edges import Known, answers_by_row, row_key
from service.evidence import Evidence
from service.policy import load_policy
from service.verdicts import Verdict

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.compare import Row
    from service.config import Settings
    from service.store.views import CellRow

Place = tuple[str, str, int, str, int]


def diagnoses(
    session: Session,
    rows: Sequence[CellRow],
    documents: Mapping[str, Mapping[str, Any]],
    known: Known,
    *,
    submission: int | None = None,
    cell: int | None = None,
) -> dict[int, Diagnosis]:
    """The diagnosis of every failing one of ``rows``, those of ``submission`` or one ``cell``, by its number."""
    failing = [row for row in rows if row.verdict is not None and Verdict(row.verdict).failing]
    if not failing:
        return {}
    relatives = store.relatives(session, submission=submission, cell=cell)
    near = _Near([*relatives, *rows])
    over_torch = answers_by_row(rows, known.past)
    policies, infos = store.policies(session), store.case_infos(session, failing)
    found = {}
    for row in failing:
        evidence = documents.get(row.evidence_digest or "")
        if evidence:
            beside = Beside(
                over_torch=tuple(over_torch[row_key(row)].values()),
                over_releases=near.releases(row),
                eager=near.eager(row),
                torches=known.torches,
            )
            policy = policies.get(row.policy_version or "") or load_policy()
            case = CaseInfo.from_json(infos[row.case, row.version])
            log = _log(session, row) if row.verdict == Verdict.CRASH else ""
            diagnosis = diagnose(row, Evidence.from_json(dict(evidence)), case, policy, beside, log)
            if diagnosis is not None:
                found[row.cell] = diagnosis
    return found


def _log(session: Session, row: CellRow) -> str:
    """What the ranks of a cell wrote, as far as it is kept."""
    logs = [blob.digest for blob in store.find_cell(session, row.cell).blobs if blob.kind == "log" and blob.digest]
    return "\n".join(store.blob(session, digest).decode("utf-8", "replace") for digest in logs)


def told(session: Session, rows: Sequence[CellRow]) -> dict[int, Diagnosis]:
    """The diagnosis of every failing one of ``rows`` that could be imported, without what stands beside it."""
    failing = [
        row for row in rows if row.verdict and Verdict(row.verdict).failing and row.verdict != Verdict.UNIMPORTABLE
    ]
    policies, infos = store.policies(session), store.case_infos(session, failing)
    seen: dict[tuple[object, ...], Diagnosis | None] = {}
    found = {}
    for row in failing:
        # Releases and versions with the same numbers share their evidence, and so what it says.
        key = (row.evidence_digest, row.case, row.version, row.policy_version, row.verdict, row.detail)
        if key not in seen:
            evidence = Evidence.from_json(store.evidence(session, row.evidence_digest or ""))
            case = CaseInfo.from_json(infos[row.case, row.version])
            log = _log(session, row) if row.verdict == Verdict.CRASH else ""
            policy = policies.get(row.policy_version or "") or load_policy()
            seen[key] = diagnose(row, evidence, case, policy, log=log)
        if (diagnosis := seen[key]) is not None:
            found[row.cell] = diagnosis
    return found


class _Near:
    """Rows by what they have in common with one that fails."""

    def __init__(self, rows: Iterable[CellRow]) -> None:
        self._by_mode: dict[tuple[Place, str], dict[int, CellRow]] = {}
        for row in rows:
            self._by_mode.setdefault((_place(row), row.mode), {})[row.cell] = row

    def eager(self, row: CellRow) -> Row | None:
        """The same case of the same checkout without the tracer."""
        there = self._by_mode.get((_place(row), MODES[0]), {}).values()
        return next((one for one in there if one.checkout == row.checkout and one.mode != row.mode), None)

    def releases(self, row: CellRow) -> tuple[Row, ...]:
        """The same cell of other checkouts."""
        there = self._by_mode.get((_place(row), row.mode), {}).values()
        return tuple(one for one in there if one.checkout != row.checkout)


def _place(row: CellRow) -> Place:
    return row.runtime, row.transport, row.world_size, row.case, row.version


def runtime_facts(session: Session, rows: Iterable[CellRow]) -> dict[str, Mapping[str, Any]]:
    """Per runtime, what a container said about itself when it answered one of ``rows``."""
    facts: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row.runtime not in facts and row.verdict is not None:
            said = [attempt.facts for attempt in store.find_cell(session, row.cell).attempts if attempt.verdict]
            facts[row.runtime] = hello(said[-1]) if said else {}
    return facts


def hello(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of an attempt's facts that says what the runtime is."""
    inner = facts.get("hello", facts)
    return inner if isinstance(inner, Mapping) else {}


def beside(
    session: Session,
    settings: Settings,
    rows: Iterable[CellRow],
    *,
    submission: int | None = None,
    cell: int | None = None,
) -> Known:
    """What store and catalogue hold beside ``rows``, which are those of ``submission``, or one ``cell``."""
    past = store.history(session, submission=submission, cell=cell)
    return Known(past, store.imports(session, {row.checkout for row in rows}), torches_of(settings))


def torches_of(settings: Settings) -> tuple[str, ...]:
    """Every torch version that there is to try.

    A catalogue that cannot be read is no reason to show nothing: then only what was tried is known.
    """
    try:
        return tuple(spec.torch for spec in catalog.load(settings, locked=False).runtimes)
    except catalog.CatalogError:
        return ()


def evidence_of(session: Session, rows: Sequence[CellRow]) -> dict[str, dict[str, Any]]:
    """The evidence documents of ``rows``, each once."""
    digests = {row.evidence_digest for row in rows if row.evidence_digest}
    return {digest: store.evidence(session, digest) for digest in digests}
