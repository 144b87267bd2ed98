"""What every route of one service shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from service.broker import Publisher
from service.config import Settings
from service.db import Database


@dataclass(frozen=True)
class State:
    """Settings, database and broker; ``embedded`` where the service runs for one person, workers included."""

    settings: Settings
    database: Database
    broker: Publisher
    embedded: bool


def state_of(request: Request) -> State:
    """The state of the application that serves ``request``."""
    return cast("State", request.app.state.gradmatrix)
