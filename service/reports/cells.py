"""A submission's cells as JSON, for programs. Pure.

The list is stable in what it promises: the fields of a row, per tensor the evidence, under the names that
``service.evidence`` gives them, and what the store knows of the same row on other torch versions: ``edges``, a list of
``service.edges.Edge``, and ``imports``, a ``service.imports.Need`` where the checkout could not be imported, else null.
``diagnosis`` is a ``service.diagnosis.Diagnosis`` where the cell fails, else null.
Numbers that JSON cannot hold become null.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.edges import Known, edges_by_row, row_key
from service.imports import import_columns, need
from service.verdicts import Verdict

if TYPE_CHECKING:
    from service.diagnosis import Diagnosis
    from service.store.views import CellRow


def cells_json(
    rows: Sequence[CellRow],
    evidence: Mapping[str, Mapping[str, Any]],
    known: Known = Known(),  # noqa: B008 - frozen
    diagnoses: Mapping[int, Diagnosis] = {},
) -> str:
    """The list of cells; ``evidence`` holds the documents by digest, ``known`` what there is beside ``rows``."""
    edges = {key: [dataclasses.asdict(edge) for edge in found] for key, found in edges_by_row(rows, known).items()}
    imports = _imports(rows, known)
    cells = []
    for row in rows:
        document = evidence.get(row.evidence_digest or "", {})
        cells.append(
            {
                **dataclasses.asdict(row),
                "edges": edges[row_key(row)],
                "diagnosis": dataclasses.asdict(diagnoses[row.cell]) if row.cell in diagnoses else None,
                "imports": imports.get((row.checkout, row.signature)) if row.verdict == Verdict.UNIMPORTABLE else None,
                "tensors": document.get("tensors", []),
                "ranks": document.get("ranks", []),
                "trace": document.get("trace"),
            }
        )
    return json.dumps(_finite(cells), indent=1, allow_nan=False) + "\n"


def _imports(rows: Sequence[CellRow], known: Known) -> dict[tuple[str, str], dict[str, Any]]:
    """What every import needs that failed in one of ``rows``, by checkout and signature."""
    failed = {(row.checkout, row.signature) for row in rows if row.verdict == Verdict.UNIMPORTABLE}
    found = {}
    for checkout, signature in failed:
        facts = [fact for fact in known.imports if fact.checkout == checkout]
        found[checkout, signature] = dataclasses.asdict(
            need(signature, import_columns(facts, signature, known.torches))
        )
    return found


def _finite(value: Any) -> Any:
    """``value`` with NaN and infinities as None, all the way down."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
