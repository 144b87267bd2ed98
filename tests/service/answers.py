"""Rows as the store gives them, as far as comparing reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from service.verdicts import Verdict

OLD, NEW = "deepspeed==0.18.3", "deepspeed==0.19.8"
DIM0 = "exchange/dim0[dtype=float32,loss=square]"


@dataclass(frozen=True)
class Cell:
    """A row as the store gives it, as far as comparing reads it."""

    cell: int = 1
    checkout: str = "a" * 64
    label: str = OLD
    torch: str = "2.11.0"
    runtime: str = "2.11.0-index"
    transport: str = "gloo"
    world_size: int = 2
    case: str = DIM0
    version: int = 1
    mode: str = "eager"
    verdict: str | None = "agree"
    forward_ok: bool | None = None
    signature: str = ""
    detail: str = ""
    evidence_digest: str | None = None


def at(torch: str, verdict: str | None = "agree", cell: int = 1, label: str = OLD, **changes: Any) -> Cell:
    signature = "" if verdict is None or not Verdict(verdict).failing else f"{verdict}: grad/x"
    values = {"signature": signature} | changes
    made = Cell(cell, label[-6:] * 8, label, torch, f"{torch}-index", verdict=verdict)
    return replace(made, **values)
