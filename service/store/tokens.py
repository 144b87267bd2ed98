"""Bearer tokens: made, looked up by their secret, listed and revoked. Of a secret only the hash is stored.

On the straight line this stands behind ``service.api.access``.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.errors import UsageError
from service.models import SCOPES, Token
from service.store.sql import NotFound, touched, utcnow

PREFIX = "gm_"
SHOWN = 8
"""Characters of a secret by which people tell tokens apart."""
USED_S = 60.0
"""How exactly it is known when a token was last used: not every request writes."""


@dataclass(frozen=True)
class TokenView:
    """A token without its secret; ``prefix`` is how the secret begins."""

    id: int
    name: str
    prefix: str
    scope: str
    created_at: datetime
    used_at: datetime | None
    revoked_at: datetime | None


def create_token(session: Session, name: str, scope: str, now: datetime | None = None) -> tuple[str, TokenView]:
    """A new token and its secret, which is known to nobody afterwards. Raises UsageError for an unknown scope."""
    if scope not in SCOPES:
        raise UsageError(f"scope {scope!r} is not known: there are {', '.join(SCOPES)}")
    if not name.strip() or len(name) > 64:
        raise UsageError("a token needs a name of 1 to 64 characters, by which it is found again")
    secret = PREFIX + secrets.token_urlsafe(32)
    row = Token(name=name.strip(), prefix=secret[: len(PREFIX) + SHOWN], digest=_digest(secret), scope=scope)
    row.created_at = now or utcnow()
    session.add(row)
    session.flush()
    return secret, _view(row)


def find_token(session: Session, secret: str, now: datetime | None = None) -> TokenView | None:
    """The token of this secret, unless there is none or it was revoked."""
    row = session.scalars(sa.select(Token).where(Token.digest == _digest(secret))).first()
    return None if row is None or row.revoked_at is not None else _view(row)


def note_use(session: Session, token: TokenView, now: datetime | None = None) -> None:
    """Remember that it was used; now and then is often enough (see :func:`stale_use`)."""
    touched(session, sa.update(Token).where(Token.id == token.id).values(used_at=now or utcnow()))


def stale_use(token: TokenView, now: datetime | None = None) -> bool:
    """Whether its last use is to be written anew."""
    return token.used_at is None or (now or utcnow()) - token.used_at > timedelta(seconds=USED_S)


def tokens(session: Session) -> list[TokenView]:
    """All of them, the oldest first."""
    return [_view(row) for row in session.scalars(sa.select(Token).order_by(Token.id))]


def revoke_token(session: Session, token: int, now: datetime | None = None) -> TokenView:
    """From now on it opens nothing. Raises StoreError where there is none."""
    row = session.get(Token, token)
    if row is None:
        raise NotFound(f"there is no token {token}: gradmatrix token list shows them")
    row.revoked_at = row.revoked_at or now or utcnow()
    session.flush()
    return _view(row)


def _digest(secret: str) -> str:
    """The secret has 256 random bits, so that a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _view(row: Token) -> TokenView:
    return TokenView(row.id, row.name, row.prefix, row.scope, row.created_at, row.used_at, row.revoked_at)
