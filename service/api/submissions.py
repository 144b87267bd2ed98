"""Submissions: asked for, looked at, followed, cancelled, run again."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from jobs.contract import TRANSPORTS
from service import store
from service.api.access import ADMIN, READ, SUBMIT, Admin, Caller, Reader, Submitter, scoped
from service.api.forms import PLAIN, Pin, SubmissionForm
from service.api.once import Key, accepted, once
from service.api.paging import LIMIT, Cursor, Limit, Page, Plain, after, page
from service.api.problems import ApiError, documented
from service.api.state import State, state_of
from service.broker import announce
from service.claims import PRIORITIES
from service.config import Settings, local_path
from service.errors import UsageError, nearest
from service.logs import bound
from service.models import SUBMISSION_STATES
from service.order import Wanted, check
from service.reports.junit import junit
from service.store import CellRow, SubmissionView
from service.store.sql import utcnow
from service.subjects import NotAllowed
from service.verdicts import VERDICTS

log = logging.getLogger(__name__)
router = APIRouter(prefix="/submissions", tags=["submissions"])
Id = Annotated[int, Path(ge=1, lt=2**31, description="The submission's number.", examples=[3])]
KNOWN_FORM = re.compile(r"torch|git\+\S+|[0-9a-fA-F]{7,40}|[A-Za-z0-9][A-Za-z0-9._-]*\s*([=<>~!@].*)?")
"""What a subject looks like that is no folder; whether it is right is looked at afterwards."""
FORMS = "NAME==VERSION, a SHA, git+URL@REF, torch, or an object that names a commit"
HERE = timedelta(hours=24)
"""Since when a host must have been seen for what it has to count as being there."""
USUAL_TRANSPORTS = ("gloo", "nccl-dispatch")
"""What a fleet of which no host has shown itself yet is taken to have."""


@router.post("", status_code=202, openapi_extra=scoped(SUBMIT), responses=documented(400, 401, 403, 422, 503))
def submit(
    form: SubmissionForm, who: Submitter, request: Request, response: Response, key: Key = None
) -> SubmissionView:
    """Ask for an evaluation. What was asked for is checked here; finding and fetching the subjects follows."""
    state = state_of(request)
    wanted = order(form, state, who)
    priority = PRIORITIES[form.reason] if form.priority is None else form.priority
    if priority > max(PRIORITIES.values()) and not who.may(ADMIN):
        raise ApiError(403, f"a priority above {max(PRIORITIES.values())} needs scope {ADMIN}")
    asked = {"wanted": wanted.to_json(), "rerun": form.rerun}
    with state.database.session() as session:
        make = partial(store.open_submission, session, requester=who.name, reason=form.reason, priority=priority)
        view = once(session, who, key, form.model_dump_json(), partial(make, request=asked))
    return accepted(state, response, view)


def order(form: SubmissionForm, state: State, who: Caller) -> Wanted:
    """The form's words, every one of them checked. Raises UsageError."""
    here = transports_here(state)
    try:
        wanted = form.wanted(state.settings.default_repository, here or USUAL_TRANSPORTS)
    except ValueError as error:
        raise ApiError(422, f"body.subjects: {error}") from None
    refuse_folders(wanted, state, who)
    try:
        checked = check(wanted, state.settings, here or TRANSPORTS)
    except NotAllowed as error:
        if state.embedded and who.may(ADMIN):
            raise
        raise UsageError(not_allowed(error.repository, state.settings)) from None
    if not (state.embedded and who.may(ADMIN)) and any(subject.kind == "path" for subject in checked.subjects):
        raise UsageError(f"this service tests releases and commits only: {FORMS}")
    return wanted


def not_allowed(repository: str, settings: Settings) -> str:
    """What somebody elsewhere is told of a repository that is not allowed: no folder of this host is named."""
    others = [address for address in settings.allowed_repositories if not local_path(address)]
    hint = f"; {nearest(repository, others)}" if others else ""
    return f"the repository {repository} is not on this service's allow-list, the setting repositories{hint}"


def transports_here(state: State) -> tuple[str, ...]:
    """The transports of the hosts that were seen of late; none where no host was."""
    since = utcnow() - HERE
    with state.database.read() as session:
        return tuple(
            sorted({name for host in store.hosts(session) if host.seen_at >= since for name in host.transports})
        )


def refuse_folders(wanted: Wanted, state: State, who: Caller) -> None:
    """Raise UsageError where a folder of this host is asked for by somebody else than its owner.

    Before anything is looked up: which folders there are is nobody else's business.
    """
    if state.embedded and who.may(ADMIN):
        return
    for text in wanted.subjects:
        if not KNOWN_FORM.fullmatch(text.strip()):
            raise UsageError(f"{text!r}: this service tests releases and commits only: {FORMS}")


@router.get("", openapi_extra=scoped(READ), responses=documented(401, 422))
def submissions(
    request: Request,
    _: Reader,
    cursor: Cursor = None,
    limit: Limit = LIMIT,
    state: Annotated[list[str] | None, Query(description="Only those in one of these states.")] = None,
    requester: Annotated[str | None, Query(max_length=255, pattern=PLAIN)] = None,
) -> Page[SubmissionView]:
    """The newest submissions first."""
    _known(state or (), SUBMISSION_STATES, "state")
    with state_of(request).database.read() as session:
        found = store.page_of_submissions(session, limit + 1, after(cursor), states=state or (), requester=requester)
    return Page[SubmissionView](**page(found, limit, found[min(limit, len(found)) - 1].id if found else None))


@router.get("/{submission}", openapi_extra=scoped(READ), responses=documented(401, 404))
def submission(submission: Id, request: Request, _: Reader) -> SubmissionView:
    """One submission, and how far it is."""
    with state_of(request).database.read() as session:
        return store.submission(session, submission)


@router.get("/{submission}/cells", openapi_extra=scoped(READ), responses=documented(401, 404, 422))
def cells(
    submission: Id,
    request: Request,
    _: Reader,
    cursor: Cursor = None,
    limit: Limit = LIMIT,
    verdict: Annotated[list[str] | None, Query(description="Only cells with one of these verdicts.")] = None,
    family: Annotated[list[Plain] | None, Query(description="Only cells of these families.")] = None,
) -> Page[CellRow]:
    """Its cells with their current answers, by their number."""
    _known(verdict or (), VERDICTS, "verdict")
    with state_of(request).database.read() as session:
        found = store.page_of_cells(
            session, submission, limit + 1, after(cursor), verdicts=verdict or (), families=family or ()
        )
    return Page[CellRow](**page(found, limit, found[min(limit, len(found)) - 1].cell if found else None))


@router.get(
    "/{submission}/junit.xml",
    openapi_extra=scoped(READ),
    responses={200: {"content": {"application/xml": {}}, "description": "The report."}, **documented(401, 404)},
    response_class=Response,
)
def junit_xml(submission: Id, request: Request, _: Reader) -> Response:
    """Its cells as JUnit XML."""
    with state_of(request).database.read() as session:
        view, rows = store.submission(session, submission), store.cells_of(session, submission)
    return Response(junit(rows, view.standstill), media_type="application/xml")


@router.post("/{submission}/cancel", openapi_extra=scoped(SUBMIT), responses=documented(401, 403, 404))
def cancel(submission: Id, request: Request, who: Submitter) -> SubmissionView:
    """Cancel it, and the jobs that no other submission waits for. What is answered stays, and what is over."""
    with state_of(request).database.session() as session:
        jobs = store.cancel(session, submission)
        view = store.submission(session, submission)
    with bound(submission=submission):
        if jobs is None:
            log.info("not cancelled, as %s would have it: it is %s already", who.name, view.state)
        else:
            log.info("cancelled by %s, and %d jobs with it", who.name, len(jobs))
    return view


@router.post("/{submission}/rerun", status_code=202, openapi_extra=scoped(SUBMIT), responses=documented(401, 404, 409))
def rerun(submission: Id, request: Request, response: Response, who: Submitter, key: Key = None) -> SubmissionView:
    """Ask for the same again, whether it has answers or not."""
    state = state_of(request)
    with state.database.session() as session:
        before = store.submission(session, submission)
        if "wanted" not in before.request:
            raise ApiError(409, f"submission {submission} was not made here: ask for it anew")
        if before.state == "held":
            raise ApiError(409, f"submission {submission} waits for an approval, and so would the same once more")
        if not store.was_let_go(session, submission):
            raise ApiError(409, f"submission {submission} was never approved: ask for its commit, if you vouch for it")
        refuse_folders(Wanted.from_json(before.request["wanted"]), state, who)
        asked: dict[str, Any] = {**before.request, "rerun": True}
        make = partial(store.open_submission, session, requester=who.name, reason="manual")
        make = partial(make, priority=PRIORITIES["manual"], request=asked)
        view = once(session, who, key, f"rerun of submission {submission}", make)
    return accepted(state, response, view)


@router.post("/{submission}/approve", openapi_extra=scoped(ADMIN), responses=documented(401, 403, 404, 409))
def approve(submission: Id, request: Request, who: Admin) -> SubmissionView:
    """Let one go on that is held, of a stranger's pull request. It is bound to the commit that was proposed."""
    state = state_of(request)
    with state.database.session() as session:
        view = store.approve(session, submission)
    with bound(submission=submission):
        log.info("approved by %s", who.name)
    announce(state.database, state.broker)
    return view


@router.patch("/{submission}", openapi_extra=scoped(ADMIN), responses=documented(401, 403, 404, 422))
def pin(submission: Id, form: Pin, request: Request, _: Admin) -> SubmissionView:
    """Keep everything that it cites for good, or no longer."""
    with state_of(request).database.session() as session:
        return store.pin(session, submission, form.pinned)


def _known(words: Any, known: Any, what: str) -> None:
    for word in words:
        if word not in known:
            raise UsageError(f"{what} {word!r} is not known: there are {', '.join(known)}")
