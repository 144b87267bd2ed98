"""Log lines that say whose work they are about: of which submission, job and attempt.

On the straight line this stands beside everything that runs for long: ``gradmatrix serve``, ``api``, ``worker`` and
``beat`` set it up once, and whoever works on something names it with :func:`bound`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]
QUIET = ("alembic", "celery", "kombu")
"""Loggers of libraries, of which only warnings are shown."""
_NOTHING: dict[str, Any] = {}
_ids: ContextVar[dict[str, Any]] = ContextVar("ids", default=_NOTHING)


@contextmanager
def bound(**ids: Any) -> Iterator[None]:
    """Every line that this thread logs in here has ``ids``, beside those that it had: ``job=7``."""
    token = _ids.set({**_ids.get(), **ids})
    try:
        yield
    finally:
        _ids.reset(token)


class Lines(logging.Formatter):
    """One line per record: for people, or as a JSON object with ``time``, ``level``, ``logger`` and ``message``."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__("%(message)s")
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The record with its ids; what was raised follows, in JSON as ``exception``."""
        moment = datetime.fromtimestamp(record.created, UTC)
        if self._form == "json":
            line = {
                "time": moment.isoformat(timespec="milliseconds"),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                **_ids.get(),
            }
            if record.exc_info:
                line["exception"] = self.formatException(record.exc_info)
            return json.dumps(line, default=str)
        ids = "".join(f" {name}={_shown(value)}" for name, value in _ids.get().items())
        return f"{moment:%Y-%m-%d %H:%M:%S} {record.levelname.lower()} {super().format(record)}{ids}"


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def set_up(form: LogFormat) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
