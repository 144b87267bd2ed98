"""Who may ask: bearer tokens with a scope, and on one person's own machine that person.

A route names the least scope that it needs (:func:`needs`). ``read`` is open to everyone where the setting
``public_reading`` says so. Without any token a service that runs for one person (``gradmatrix serve``) takes whoever
reaches it over the loopback address for that person, unless that may be somebody else after all: a page of another
site, which a browser tells by Origin and Sec-Fetch-Site; a name that somebody else points at this machine, told by
Host; whoever comes through a proxy on this machine. Nor does that person act by what a page's form can send.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service import store
from service.api.problems import ApiError
from service.api.state import State, state_of
from service.models import SCOPES

READ, SUBMIT, ADMIN = SCOPES
ANONYMOUS, OWNER = "anonymous", "owner"
CHALLENGE = {"WWW-Authenticate": "Bearer"}
SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""What proxies say of those whom they speak for."""
bearer = HTTPBearer(
    auto_error=False, description="A token that `gradmatrix token create` made; its scope is read, submit or admin."
)


@dataclass(frozen=True)
class Caller:
    """Who asks; ``scope`` is what it may do, or None."""

    name: str
    scope: str | None

    def may(self, scope: str) -> bool:
        """Whether what needs ``scope`` is allowed."""
        return self.scope is not None and SCOPES.index(self.scope) >= SCOPES.index(scope)


def caller(request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]) -> Caller:
    """Who asks. Raises ApiError 401 for a token that opens nothing."""
    state = state_of(request)
    if credentials is not None:
        return _of_token(state, credentials.credentials)
    if request.headers.get("authorization"):
        raise ApiError(401, "send the token as `Authorization: Bearer gm_…`", CHALLENGE)
    if state.embedded and _from_here(request):
        _refuse_forms(request)
        return Caller(OWNER, ADMIN)
    return Caller(ANONYMOUS, READ if state.settings.public_reading else None)


def _of_token(state: State, secret: str) -> Caller:
    with state.database.read() as session:
        token = store.find_token(session, secret)
    if token is None:
        raise ApiError(401, "the token is not known, or was revoked", CHALLENGE)
    if store.stale_use(token):
        with state.database.session() as session:
            store.note_use(session, token)
    return Caller(token.name, token.scope)


def _from_here(request: Request) -> bool:
    """Whether the request came over the loopback address, was meant for it, and is of no other site's making."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    try:
        named = urlsplit(f"//{host}").hostname or ""
        if origin is not None and urlsplit(origin).netloc != host:
            return False  # a browser says so whose page sends it
    except ValueError:
        return False
    if any(name in request.headers for name in PROXIED) or _of_another_site(request):
        return False
    return request.client is not None and _is_loopback(request.client.host) and _is_loopback(named)


def _of_another_site(request: Request) -> bool:
    """Whether a browser sends it for a page of another site. A link that is followed from there only shows a page."""
    if request.headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return False
    return request.method not in SAFE or request.headers.get("sec-fetch-dest") != "document"


def _refuse_forms(request: Request) -> None:
    """Raise ApiError where something would be changed by what a page's form can send without asking anybody."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method not in SAFE and kind in FORMS:
        raise ApiError(415, f"{kind} is what forms of pages send: without a token send application/json")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def needs(scope: str) -> Callable[..., Caller]:
    """The dependency of a route that needs ``scope``."""

    def allowed(who: Annotated[Caller, Depends(caller)]) -> Caller:
        if who.may(scope):
            return who
        if who.name == ANONYMOUS:
            raise ApiError(401, f"this needs a token of scope {scope}: `Authorization: Bearer gm_…`", CHALLENGE)
        raise ApiError(403, f"this needs scope {scope}; the token {who.name!r} has {who.scope}")

    return allowed


Reader = Annotated[Caller, Depends(needs(READ))]
Submitter = Annotated[Caller, Depends(needs(SUBMIT))]
Admin = Annotated[Caller, Depends(needs(ADMIN))]
"""Parameters of routes: whoever may do so much."""


def scoped(scope: str) -> dict[str, Any]:
    """What a route says of itself in the OpenAPI document: the scope that it needs."""
    return {"x-scope": scope}
