"""A request that is sent twice under one Idempotency-Key is one request."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Annotated

from fastapi import Header, Response
from sqlalchemy.orm import Session

from service import store
from service.api.access import Caller
from service.api.state import State
from service.broker import announce
from service.logs import bound
from service.store import SubmissionView

log = logging.getLogger(__name__)

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="Sent again under one key, a request is one request.",
    ),
]


def accepted(state: State, response: Response, view: SubmissionView) -> SubmissionView:
    """The answer to a request that made ``view``: whoever works is told, and whoever asked is told where it is."""
    with bound(submission=view.id):
        log.info("asked for by %s", view.requester)
    announce(state.database, state.broker)
    response.headers["Location"] = f"/api/v1/submissions/{view.id}"
    return view


def once(
    session: Session, who: Caller, key: str | None, body: str, make: Callable[[], SubmissionView]
) -> SubmissionView:
    """What ``make`` made under this key, now or before. Raises KeyReusedError where ``body`` was another one then."""
    if key is None:
        return make()
    digest = hashlib.sha256(body.encode()).hexdigest()
    before = store.posted_before(session, who.name, key, digest)
    if before is not None:
        return store.submission(session, before)
    view = make()
    store.remember_post(session, who.name, key, digest, view.id)
    return view
