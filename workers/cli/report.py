"""A submission's cells as JSON, for programs. Pure.

The list is stable in what it promises: the fields of a row, and per tensor the evidence, under the names that
``service.evidence`` gives them. Numbers that JSON cannot hold become null.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.store.views import CellRow


def cells_json(rows: Iterable[CellRow], evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """The list of cells; ``evidence`` holds the documents by digest."""
    cells = []
    for row in rows:
        document = evidence.get(row.evidence_digest or "", {})
        cells.append(
            {
                **dataclasses.asdict(row),
                "tensors": document.get("tensors", []),
                "ranks": document.get("ranks", []),
                "trace": document.get("trace"),
            }
        )
    return json.dumps(_finite(cells), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """``value`` with NaN and infinities as None, all the way down."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
