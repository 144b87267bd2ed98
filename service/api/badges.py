"""Badges: how a subject stands, as a picture for its README.

On the straight line this reads the store and starts nothing. A README's reader has no token, so that badges are
shown to strangers only where the setting ``public_reading`` says so.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service import store
from service.api.access import READ, Reader, scoped
from service.api.paging import Plain
from service.api.problems import ApiError, documented
from service.api.state import State, state_of
from service.catalog import UnknownRuntimeError
from service.catalog import load as load_catalog
from service.errors import UsageError
from service.reports.badge import badge, outcome
from service.subjects import repository_key

router = APIRouter(prefix="/badges", tags=["results"])
SUBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
KEPT_S = 60
"""For how long whoever shows a badge may show it again without asking."""
SVG = "image/svg+xml"


@router.get(
    "/{subject}.svg",
    openapi_extra=scoped(READ),
    response_class=Response,
    responses={
        200: {"content": {SVG: {}}, "description": "The picture; a grey one where nothing is known."},
        304: {"description": "It is what `If-None-Match` names."},
        **documented(401, 404, 422),
    },
)
def shown(
    subject: Annotated[str, Path(description="A subject's name.", examples=["deepspeed"])],
    request: Request,
    _: Reader,
    submission: Annotated[int | None, Query(ge=1, lt=2**31, description="Of this submission.")] = None,
    branch: Annotated[
        Plain | None, Query(description="Of the newest submission of this branch; without one, of any that is tested.")
    ] = None,
    torch: Annotated[
        Plain | None, Query(description="On this torch version alone, as submissions name it.", examples=["2.11"])
    ] = None,
    repository: Annotated[
        Plain | None,
        Query(description="Of the branches of this repository; without one, of the default one."),
    ] = None,
) -> Response:
    """Whether the gradients of a subject agree, in a few words and a colour."""
    if not SUBJECT.fullmatch(subject):
        raise ApiError(404, f"{subject!r} is no subject's name; a badge is at /badges/NAME.svg")
    if submission is not None and (branch, repository) != (None, None):
        raise UsageError("name a submission, or a branch and its repository, not both")
    state = state_of(request)
    runtimes, address = _runtimes(state, torch), _repository(state, repository)
    with state.database.read() as session:
        number = submission or store.newest_of_branch(session, subject, address, _branches(state, branch))
        cells, counts = (0, {}) if number is None else store.tally(session, number, subject=subject, runtimes=runtimes)
    picture = badge(f"{subject} gradients" + (f", torch {torch}" if torch else ""), *outcome(cells, counts))
    return _answer(request, picture, public=state.settings.public_reading)


def _branches(state: State, branch: str | None) -> tuple[str, ...]:
    return state.settings.webhook.branches if branch is None else (branch,)


def _repository(state: State, named: str | None) -> str:
    """The key of the repository whose branches are meant; one of which nothing is known has a grey picture."""
    try:
        return repository_key(named or state.settings.default_repository)
    except ValueError:
        raise UsageError(f"{named!r} is no address of a repository") from None


def _runtimes(state: State, torch: str | None) -> list[str] | None:
    """The names of the runtimes that ``torch`` means in a submission; none where it means nothing there is."""
    try:
        return None if torch is None else [spec.name for spec in load_catalog(state.settings).select([torch])]
    except UnknownRuntimeError:
        return []


def _answer(request: Request, picture: str, *, public: bool) -> Response:
    tag = f'"{hashlib.sha256(picture.encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": f"{'public' if public else 'private'}, max-age={KEPT_S}"}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    # opened by itself it is a document of this address: nothing in it may run
    headers |= {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'"}
    return Response(picture, media_type=SVG, headers=headers)
