"""What stands behind the question mark: a parameter that a route does not know is an error, not left out in silence.

On the straight line this stands before every route. Whoever misspells ``submission`` would else be shown everything
and take it for an answer.
"""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.api.wording import UNKNOWN_PARAMETER


def known_parameters(dependant: Dependant) -> list[str]:
    """The query parameters that a route knows, those of what it depends on among them."""
    own = [field.alias for field in dependant.query_params]
    return [*own, *(name for further in dependant.dependencies for name in known_parameters(further))]


def refuse_unknown(request: Request) -> None:
    """Raise RequestValidationError where the query has a parameter that the route does not know."""
    route: APIRoute = request.scope["route"]
    known = known_parameters(route.dependant)
    wrong = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if wrong:
        error = {"type": UNKNOWN_PARAMETER, "msg": "", "input": None, "ctx": {"known": known}}
        raise RequestValidationError([{**error, "loc": ("query", name)} for name in wrong])
