"""The diagnoses of failing cells: what they are made from, and how they are shown.

On the straight line this stands between ``service.store`` and ``service.diagnosis``, and after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from jobs.contract import MODES, CaseInfo
from service import store
from service.diagnosis import Beside, Diagnosis, diagnose
from service.edges import Known, answers_by_row, row_key
from service.evidence import Evidence
from service.extents import extent_text
from service.policy import load_policy
from service.verdicts import Verdict
from workers.cli.layout import sentence
from workers.cli.words import inert

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.compare import Row
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
            diagnosis = diagnose(row, Evidence.from_json(dict(evidence)), case, policy, beside)
            if diagnosis is not None:
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


def diagnosis_lines(diagnosis: Diagnosis | None, width: int) -> list[Text]:
    """A diagnosis as a list of what there is to say."""
    if diagnosis is None:
        return []
    said = {
        "what": diagnosis.what,
        "training": diagnosis.training,
        "eager": diagnosis.eager,
        "torch": extent_text(diagnosis.torch),
        "release": extent_text(diagnosis.release),
        "called": diagnosis.api,
    }
    lines = [Text("diagnosis", style="bold")]
    for title, text in said.items():
        if text:
            lines += map(Text, sentence(inert(f"{title}: {text}"), width, "  ", "    "))
    return lines
