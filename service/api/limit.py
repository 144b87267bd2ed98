"""No request's body may be larger than any that is meant: it is read into memory before it is known who sends it."""

from __future__ import annotations

from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import answer

MOST = 2**20
TOO_LARGE = f"a request's body may have {MOST:,} bytes"


class BodyLimit:
    """Answers 413 where a body is, or is said to be, larger than :data:`MOST`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > MOST:
            await answer(413, TOO_LARGE, headers={"Connection": "close"})(scope, receive, send)
            return
        taken, over = 0, False

        async def counted() -> Message:
            nonlocal taken, over
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST:
                over = True
                raise _TooLargeError
            return message

        async def unless_over(message: Message) -> None:
            if not over:  # what is made of half a body is no answer
                await send(message)

        with suppress(_TooLargeError):
            await self._app(scope, counted, unless_over)
        if over:
            await answer(413, TOO_LARGE, headers={"Connection": "close"})(scope, receive, send)


class _TooLargeError(Exception):
    """The body went on beyond the limit."""
