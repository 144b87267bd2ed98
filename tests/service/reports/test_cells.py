from __future__ import annotations

import json
import math

from service.edges import Known
from service.imports import Import
from service.reports.cells import cells_json
from tests.workers.cli.rows import row


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


def test_a_cell_carries_the_edges_of_its_row_and_what_its_import_needs() -> None:
    missing = "needs another torch: torch.library.custom_op"
    rows = [
        row(torch="2.11.0", verdict="zero_gradient", signature="zero: grad/x"),
        row(torch="2.2.2", mode="inductor", verdict="unimportable", signature=missing),
        row(torch="2.11.0", case="exchange/other"),
    ]
    imports = [
        Import("c" * 64, "2.2.2", "2.2.2-index", "release", missing),
        Import("c" * 64, "2.9.1", "2.9.1-index", "release", ""),
        Import("d" * 64, "2.3.1", "2.3.1-index", "release", ""),
    ]
    known = Known([row(torch="2.9.1"), row(torch="2.12.1")], imports, ("2.2.2", "2.9.1", "2.10.0", "2.11.0", "2.12.1"))
    fault, gone, right = json.loads(cells_json(rows, {}, known))
    assert fault["edges"] == [
        {
            "verdict": "zero_gradient",
            "signature": "zero: grad/x",
            "last_good": "2.9.1",
            "first_bad": "2.11.0",
            "last_bad": "2.11.0",
            "fixed_in": "2.12.1",
            "untried_before": ["2.10.0"],
            "untried_within": [],
            "untried_after": [],
            "right_on": [],
        }
    ]
    assert gone["imports"] == {
        "kind": "newer torch",
        "missing": "torch.library.custom_op",
        "first_torch": "2.9.1",
        "last_torch": "2.9.1",
        "untried": [],
    }
    assert (fault["imports"], right["imports"], right["edges"], right["channel"]) == (None, None, [], "release")
