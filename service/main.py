"""The application: every route under one roof.

On the straight line this is where a request comes in. ``gradmatrix api`` serves it for a fleet, ``gradmatrix serve``
with a worker beside it for one person.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Depends, FastAPI

from service.api import badges, cells, docs, document, events, fleet, health, problems, results, submissions, webhooks
from service.api.limit import BodyLimit
from service.api.parameters import refuse_unknown
from service.api.state import State

PREFIX = "/api/v1"
DESCRIPTION = """
For this commit, on which torch versions and world sizes do the gradients still agree with the truth?

Errors are `application/problem+json` everywhere. Lists come in pages: `next` of one is the `cursor` of the one behind
it. A POST may carry an `Idempotency-Key`; sent again with the same body, it is answered with the same submission.
"""


def create_app(state: State) -> FastAPI:
    """The application over ``state``. Raises UsageError where the settings do not fit together."""
    webhooks.check_settings(state.settings)
    app = FastAPI(
        title="gradmatrix",
        version=version("gradmatrix"),
        description=DESCRIPTION.strip(),
        dependencies=[Depends(refuse_unknown)],
        openapi_url=None,  # service.api.docs has it, and the page
    )
    app.state.gradmatrix = state
    problems.install(app)
    app.add_middleware(BodyLimit)
    for part in (events, submissions, cells, results, fleet):
        app.include_router(part.router, prefix=PREFIX)
    for part in (badges, webhooks, health, docs):
        app.include_router(part.router)
    document.describe(app)
    return app
