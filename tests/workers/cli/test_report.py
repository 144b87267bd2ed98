from __future__ import annotations

import json
import math

from tests.workers.cli.rows import row
from workers.cli.report import cells_json


def test_numbers_that_json_cannot_hold_become_null_and_nothing_else_changes() -> None:
    rows = [row(error=math.inf, alpha=math.nan, evidence_digest="d1"), row(evidence_digest=None, verdict=None)]
    documents = {"d1": {"tensors": [{"name": "x", "max_abs": math.inf, "shape": [2, 4]}], "trace": {"graphs": 1}}}
    first, second = json.loads(cells_json(rows, documents), parse_constant=lambda text: f"not JSON: {text}")
    assert (first["error"], first["alpha"]) == (None, None)
    assert first["tensors"] == [{"name": "x", "max_abs": None, "shape": [2, 4]}]
    assert first["trace"] == {"graphs": 1}
    assert (second["verdict"], second["tensors"], second["trace"]) == (None, [], None)


def test_hostile_text_is_only_text() -> None:
    text = cells_json([row(detail="\x1b[31m\udc80\u2028", signature="</script>")], {})
    assert text.isascii()
    assert "\x1b" not in text
    (cell,) = json.loads(text)
    assert cell["detail"] == "\x1b[31m\udc80\u2028"
