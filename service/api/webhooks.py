"""GitHub's webhook: deliveries that become submissions.

On the straight line this is a second door beside ``service.api.submissions``: who comes in is told by the signature on
the raw body, what is asked for by the settings, and of what a delivery says only which commit.
"""

from __future__ import annotations

import logging
import re
import urllib.parse
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ValidationError

from jobs.contract import TRANSPORTS
from service import store
from service.api.once import accepted
from service.api.problems import ApiError, documented, field_errors
from service.api.state import State, state_of
from service.api.submissions import USUAL_TRANSPORTS, transports_here
from service.claims import PRIORITIES, WEBHOOK
from service.config import Settings, Webhook, local_path
from service.errors import UsageError
from service.order import Wanted, check
from service.subjects import repository_key
from service.webhook import NOWHERE, Asked, Closed, Ignored, read, signed

log = logging.getLogger(__name__)
router = APIRouter(prefix="/webhooks", tags=["webhooks"])
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
GUID = re.compile(r"[A-Za-z0-9-]{1,64}")
REQUESTER = "github"
SIGNED: dict[str, Any] = {
    "x-scope": "signature",
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {"type": "object"},
                "examples": {
                    "push": {
                        "value": {
                            "ref": "refs/heads/master",
                            "after": "1f2e3d4c5b6a79880011223344556677889900aa",
                            "repository": {"clone_url": "https://github.com/deepspeedai/DeepSpeed.git"},
                        }
                    },
                    "pull_request": {
                        "value": {
                            "action": "opened",
                            "number": 8434,
                            "pull_request": {
                                "head": {"sha": "1f2e3d4c5b6a79880011223344556677889900aa"},
                                "author_association": "CONTRIBUTOR",
                                "user": {"login": "octocat"},
                            },
                            "repository": {"clone_url": "https://github.com/deepspeedai/DeepSpeed.git"},
                        }
                    },
                },
            },
            FORM: {
                "schema": {"type": "object", "required": ["payload"], "properties": {"payload": {"type": "string"}}}
            },
        },
    },
}
CHALLENGE = {"WWW-Authenticate": "X-Hub-Signature-256"}


class Taken(BaseModel):
    """What became of a delivery. ``key`` is the same wherever the submission is exported to."""

    outcome: Literal["pong", "submitted", "known", "withdrawn", "ignored"]
    reason: str
    submission: int | None = None
    key: str | None = None
    state: str | None = None


async def raw(request: Request) -> bytes:
    """The body as it came, which is what was signed."""
    return await request.body()


@router.post(
    "/github",
    openapi_extra=SIGNED,
    responses={
        202: {"model": Taken, "description": "There is a submission of it, made now or before."},
        **documented(400, 401, 403, 404, 413, 415, 422),
    },
)
def github(
    request: Request,
    response: Response,
    body: Annotated[bytes, Depends(raw)],
    event: Annotated[str, Header(alias="X-GitHub-Event", max_length=64, examples=["push"])] = "",
    delivery: Annotated[str, Header(alias="X-GitHub-Delivery", max_length=255)] = "",
    signature: Annotated[str | None, Header(alias="X-Hub-Signature-256", examples=["sha256=…"])] = None,
) -> Taken:
    """A delivery of GitHub's webhook, signed with the setting `webhook.secret`: docs/github.md has it step by step."""
    try:
        return _taken(request, response, body, event, delivery, signature)
    except ApiError as error:
        log.warning("delivery %s of event %r was refused: %s", delivery or "without a name", event, error)
        raise


def _taken(
    request: Request, response: Response, body: bytes, event: str, delivery: str, signature: str | None
) -> Taken:
    state = state_of(request)
    hook = state.settings.webhook
    _refuse_unsigned(hook, body, signature)
    if event == "ping":
        return Taken(outcome="pong", reason="GitHub and this service agree on the secret")
    if not GUID.fullmatch(delivery):
        raise ApiError(400, "the header X-GitHub-Delivery, which names the delivery, is missing or is no GUID")
    found = _read(event, _payload(request, body), hook)
    if isinstance(found, Ignored):
        return Taken(outcome="ignored", reason=found.reason)
    repository = _allowed(found.repository, state.settings)
    if isinstance(found, Closed):
        return _closed(state, delivery, repository, found)
    return _asked(state, response, delivery, repository, found)


def _refuse_unsigned(hook: Webhook, body: bytes, signature: str | None) -> None:
    if hook.secret is None:
        said = (
            "set secret in the table [webhook] of its settings, or GRADMATRIX_WEBHOOK__SECRET, and the same at GitHub"
        )
        raise ApiError(404, f"this service takes no webhook: {said}")
    if not signed(hook.secret, body, signature):
        said = "is missing" if signature is None else "is not of this body under the secret that this service has"
        raise ApiError(401, f"the signature, the header X-Hub-Signature-256, {said}", CHALLENGE)


def _payload(request: Request, body: bytes) -> str:
    """The JSON text of the delivery, which GitHub sends in either of two ways."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, FORM):
        raise ApiError(415, f"a delivery is {JSON} or {FORM}, not {kind or 'without a type'}")
    try:
        text = body.decode()
        return text if kind == JSON else urllib.parse.parse_qs(text, max_num_fields=8)["payload"][0]
    except (ValueError, KeyError):
        raise ApiError(400, "the body is not UTF-8, or a form without the field payload") from None


def _read(event: str, payload: str, hook: Webhook) -> Asked | Closed | Ignored:
    try:
        return read(event, payload, hook)
    except ValidationError as error:
        _, said, status = field_errors(error.errors())
        raise ApiError(status, f"this is no payload of the event {event}: {said}") from None


def _allowed(address: str, settings: Settings) -> str:
    """The repository on the allow-list that ``address`` names."""
    for repository in settings.allowed_repositories:
        if _spelling(repository) == _spelling(address):
            return repository
    raise ApiError(403, f"the repository {address} is not on the allow-list: add it to the setting repositories")


def _spelling(address: str) -> str:
    """One spelling for each repository; GitHub's names differ by more than the case of their letters."""
    try:
        key = repository_key(address)
    except ValueError:  # no address at all
        return address
    return key if local_path(address) else key.casefold()


def _closed(state: State, delivery: str, repository: str, closed: Closed) -> Taken:
    with state.database.session() as session:
        found = store.withdraw(session, delivery, repository_key(repository), closed)
    what = f"the pull request was closed; cancelled: {', '.join(f's{number}' for number in found) or 'nothing'}"
    return Taken(outcome="withdrawn", reason=what)


def _asked(state: State, response: Response, delivery: str, repository: str, asked: Asked) -> Taken:
    request = {"wanted": _wanted(state, repository, asked.sha).to_json(), "rerun": False, WEBHOOK: asked.about}
    with state.database.session() as session:
        make = partial(store.open_submission, session, requester=REQUESTER, reason=WEBHOOK, held=asked.held)
        make = partial(make, priority=PRIORITIES[WEBHOOK], request=request)
        found = store.act_once(session, delivery, repository_key(repository), asked, make)
    if found is None:
        return Taken(outcome="ignored", reason=f"the pull request was closed at commit {asked.sha}, and not reopened")
    view, made = found
    accepted(state, response, view)
    response.status_code = 202
    said = f"commit {asked.sha}" + ("" if made else ", which was asked for before")
    outcome: Literal["submitted", "known"] = "submitted" if made else "known"
    return Taken(outcome=outcome, reason=view.note or said, submission=view.id, key=view.key, state=view.state)


def _wanted(state: State, repository: str, sha: str) -> Wanted:
    """What the settings ask of every commit that a delivery brings, checked. Raises ApiError."""
    here = transports_here(state)
    try:
        return wanted_of(state.settings, f"git+{repository}@{sha}", here)
    except UsageError as error:
        raise ApiError(422, str(error)) from None


def wanted_of(settings: Settings, subject: str, here: tuple[str, ...]) -> Wanted:
    """What the settings ask of ``subject``, where hosts have the transports ``here``. Raises UsageError."""
    hook = settings.webhook
    wanted = Wanted(
        subjects=(subject,),
        torch=hook.torch,
        world_sizes=tuple(map(str, hook.world_sizes)),
        transports=hook.transports or here or USUAL_TRANSPORTS,
        modes=hook.modes,
        suite=hook.suite,
    )
    try:
        check(wanted, settings, here or TRANSPORTS)
    except UsageError as error:
        raise UsageError(f"the table [webhook] of this service's settings does not fit: {error}") from None
    return wanted


def check_settings(settings: Settings) -> None:
    """Raise UsageError where what the webhook is to ask for cannot be, before the first delivery finds that out."""
    if settings.webhook.secret is not None:
        wanted_of(settings, f"git+{settings.default_repository}@{NOWHERE}", ())
