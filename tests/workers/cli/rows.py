"""Hand-made rows as the store hands them out; no number here was computed by the code under test."""

from __future__ import annotations

import dataclasses
from typing import Any

from service.store.views import CellRow

DIM0 = "exchange/dim0[dtype=float32,loss=square]"
HEADS = "exchange/heads[direction=scatter,dtype=float32,heads=6,layout=bshd]"

PLAIN = CellRow(
    cell=1,
    job=1,
    state="done",
    subject="deepspeed",
    checkout="c" * 64,
    label="deepspeed==0.18.3",
    torch="2.11.0",
    runtime="2.11.0-index",
    channel="release",
    transport="gloo",
    world_size=2,
    case=DIM0,
    version=1,
    family="exchange",
    mode="eager",
    verdict="agree",
    forward_ok=True,
    error=0.0,
    evidence_digest="e" * 64,
    policy_version="1",
)


def row(**changes: Any) -> CellRow:
    """A cell that agrees exactly, with ``changes``; ``torch`` alone names its runtime too."""
    if "torch" in changes:
        changes.setdefault("runtime", f"{changes['torch']}-index")
    return dataclasses.replace(PLAIN, **changes)


def known_fault() -> list[CellRow]:
    """Two checkouts, three torch versions, as FACTS.md has them for the dim-0 exchange."""
    rows = []
    for label, checkout in (("deepspeed==0.18.3", "a" * 64), ("deepspeed==0.19.8", "b" * 64)):
        for torch in ("2.11.0", "2.2.2", "2.9.1"):
            for mode in ("aot_eager", "eager"):
                for world in (2, 4):
                    made = row(label=label, checkout=checkout, torch=torch, mode=mode, world_size=world)
                    rows.append(dataclasses.replace(made, **_change(label, torch, mode, world)))
    return rows


def _change(label: str, torch: str, mode: str, world: int) -> dict[str, Any]:
    if label.endswith("0.19.8") and torch == "2.2.2":
        return {"verdict": "unimportable", "forward_ok": None, "error": None, "signature": "AttributeError: custom_op"}
    if label.endswith("0.18.3") and torch == "2.2.2" and mode == "aot_eager":
        return {"verdict": "agree_untraced"}
    if label.endswith("0.18.3") and torch == "2.11.0" and mode == "aot_eager":
        return {"verdict": "zero_gradient", "nonzero_got": 0, "nonzero_expected": 32 * world, "error": 1.0}
    return {}
