"""The page that describes the interface, and the document behind it; both from here alone.

On the straight line this stands beside every route. What the page loads comes from a package that is installed with the
service, so that it is whole where nothing outside is reached, and tells nobody outside who reads it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse

router = APIRouter(include_in_schema=False)
PACKAGE = "fastapi_offline"
TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
"""The files of the page, each with its type."""
KEPT_S = 86400
"""For how long a browser need not ask for one of them again."""
File = Annotated[Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"], Path()]


@router.get("/openapi.json")
def document(request: Request) -> JSONResponse:
    """The OpenAPI document."""
    made: dict[str, Any] = request.app.openapi()
    return JSONResponse(made)


@router.get("/docs")
def page(request: Request) -> HTMLResponse:
    """The page."""
    script, style, icon = (f"/docs/{name}" for name in TYPES)
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=request.app.title,
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url=icon,
    )


@router.get("/docs/{name}")
def part(name: File) -> Response:
    """One of the files that it loads."""
    content = files(PACKAGE).joinpath("static", name).read_bytes()
    return Response(content, media_type=TYPES[name], headers={"Cache-Control": f"public, max-age={KEPT_S}"})
