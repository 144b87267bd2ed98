"""What the script of a stored cell is written from, gathered from the store, the catalogue and the checkout's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.contract import CaseInfo
from service import catalog, repro, store
from service.cases import catalogue
from service.errors import UsageError
from service.evidence import Evidence
from service.policy import load_policy
from service.repro.handed import Ranks, handed
from service.repro.source import Source
from service.subjects import Cache

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.config import Settings
    from service.store.views import CellDetail


def given_of(session: Session, settings: Settings, detail: CellDetail) -> repro.Given:
    """Everything that the script of one cell is written from. Raises UsageError."""
    row = detail.row
    repro.refuse(row.verdict, row.subject, row.family)
    case = CaseInfo.from_json(detail.info)
    needs, without = _runtime(settings, row.runtime, row.torch)
    return repro.Given(
        row=row,
        case=case,
        evidence=Evidence.from_json(detail.evidence),
        policy=load_policy(),
        origin=store.origin(session, row.checkout),
        needs=needs,
        without=without,
        handed=_handed(case, row.world_size) if row.verdict != "unimportable" else ((),),
        source=Source(Cache(settings.home).folder / f"{row.checkout}.tar", row.label),
    )


def _handed(case: CaseInfo, world_size: int) -> Ranks:
    """What the ranks hand in, of the case as it is today, which must be the one that the cell was."""
    now = next((one for one in catalogue().cases if one.id == case.id), None)
    if now is None or now.version != case.version:
        has = "is no longer there" if now is None else f"is now at version {now.version}"
        raise UsageError(f"the cell is of version {case.version} of {case.id}, which {has}: run it again")
    return handed(case.id, world_size)


def _runtime(settings: Settings, name: str, torch: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the runtime is made from, torch first, and what is left out of it; torch alone where it is not known."""
    try:
        runtimes = catalog.load(settings, locked=False).runtimes
    except catalog.CatalogError:
        runtimes = ()
    for spec in runtimes:
        if spec.name == name:
            bounded = [need for need in spec.requirements[1:] if need == "numpy" or not need.isidentifier()]
            kept = [need for need in bounded if "<" in need or need == "numpy"]
            return (spec.requirements[0], *_one_numpy(kept)), spec.without
    return (f"torch=={torch}", "numpy"), ()


def _one_numpy(needs: list[str]) -> list[str]:
    return [need for need in needs if need != "numpy" or not any(other.startswith("numpy<") for other in needs)]
