"""Pages of a list, by cursor: ``next`` of one page is the cursor of the one behind it, whatever came in meanwhile."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, StringConstraints

from service.api.forms import PLAIN
from service.api.problems import ApiError

T = TypeVar("T")
Plain = Annotated[str, StringConstraints(max_length=300, pattern=PLAIN)]
LIMIT, MOST = 50, 500
Limit = Annotated[int, Query(ge=1, le=MOST, description="Entries per page.")]
Cursor = Annotated[str | None, Query(max_length=64, description="`next` of the page before.")]


class Page(BaseModel, Generic[T]):
    """Entries, and the cursor of the next page, or null behind the last."""

    items: list[T]
    next: str | None


def after(cursor: str | None) -> int | None:
    """The number that the page begins behind. Raises ApiError for what is no cursor of ours."""
    if cursor is None:
        return None
    try:
        kind, _, number = base64.urlsafe_b64decode(cursor.encode()).decode().partition(":")
        if kind == "after" and 0 <= int(number) < 2**63:
            return int(number)
    except (ValueError, binascii.Error):
        pass
    raise ApiError(422, f"{cursor!r} is no cursor: take `next` of the page before as it is")


def cursor_after(number: int) -> str:
    """The cursor of the page behind the entry ``number``."""
    return base64.urlsafe_b64encode(f"after:{number}".encode()).decode()


def page(items: list[T], limit: int, key: int | None) -> dict[str, object]:
    """A page of ``limit`` entries, of which one more than that was asked for; ``key``: of the last one shown."""
    more = len(items) > limit
    return {"items": items[:limit], "next": cursor_after(key) if more and key is not None else None}
