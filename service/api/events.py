"""What happens to a submission, as it happens: server-sent events.

On the straight line this reads the store, as everything does that shows something: whichever worker and whichever
server acted, the database has it. It is asked again every :data:`TICK_S`; a client that lost its connection connects
again and is first told how things are, so that nothing it missed is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from service import store
from service.api.access import READ, Reader, scoped
from service.api.problems import documented
from service.api.state import State, state_of
from service.api.submissions import Id
from service.store import Progress, SubmissionView

router = APIRouter(prefix="/submissions", tags=["submissions"])
TICK_S = 0.5


def existing(submission: Id, request: Request, _: Reader) -> SubmissionView:
    """The submission, before the stream begins: a wrong number is an error and no empty stream."""
    with state_of(request).database.read() as session:
        return store.submission(session, submission)


Existing = Annotated[SubmissionView, Depends(existing)]


@router.get(
    "/{submission}/events",
    openapi_extra=scoped(READ),
    responses=documented(401, 404),
    response_class=EventSourceResponse,
)
async def events(request: Request, first: Existing) -> AsyncIterable[ServerSentEvent]:
    """`submission`: how far it is; `fetching`: what; `cell`: one was answered; `end`: nothing more will come."""
    state = state_of(request)
    seen, told = await run_in_threadpool(_begin, state, first.id)
    fetching = ""
    yield ServerSentEvent(event="submission", data=told)
    while not state.stopping.is_set():  # a client that is let go connects again, to whoever serves then
        progress, view = await run_in_threadpool(_now, state, first.id, seen)
        for row in progress.cells:
            yield ServerSentEvent(event="cell", data=row)
        seen = progress.newest
        if progress.fetching and progress.fetching != fetching:
            yield ServerSentEvent(event="fetching", data=progress.fetching)
        fetching = progress.fetching
        if view != told:
            yield ServerSentEvent(event="submission", data=view)
            told = view
        if not view.live:
            yield ServerSentEvent(event="end", data={"state": view.state})
            return
        await asyncio.sleep(TICK_S)


def _begin(state: State, submission: int) -> tuple[frozenset[int], SubmissionView]:
    with state.database.read() as session:
        return store.newest_results(session, submission), store.submission(session, submission)


def _now(state: State, submission: int, seen: frozenset[int]) -> tuple[Progress, SubmissionView]:
    with state.database.read() as session:
        return store.progress(session, submission, seen), store.submission(session, submission)
