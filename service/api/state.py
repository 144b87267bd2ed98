"""What every route of one service shares."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request

from service.broker import Publisher
from service.config import Settings
from service.db import Database


@dataclass(frozen=True)
class State:
    """Settings, database and broker; ``embedded`` where the service runs for one person, workers included.

    ``stopping`` is set when the service is to end: whoever follows events is let go.
    """

    settings: Settings
    database: Database
    broker: Publisher
    embedded: bool
    stopping: threading.Event = field(default_factory=threading.Event)


def state_of(request: Request) -> State:
    """The state of the application that serves ``request``."""
    return cast("State", request.app.state.gradmatrix)
