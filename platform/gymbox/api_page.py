"""API page: what shows an app's document to people, without anything from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
"""What the page loads, each as `/docs/NAME`; `OPEN_PATHS` has them too."""
ONLY_FROM_HERE = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)
"""Content-Security-Policy of the page, whose own start-up script is inline."""
WITHOUT = 'This page needs JavaScript. Read <a href="/openapi.json">/openapi.json</a>.'
DIV = '<div id="swagger-ui">'


def add_page(app: FastAPI) -> None:
    """Have `/docs` show the document of `app`."""
    app.add_route("/docs", _page)
    for name in ASSETS:
        app.add_route(f"/docs/{name}", _asset)


async def _page(request: Request) -> HTMLResponse:
    script, style, icon = (f"/docs/{name}" for name in ASSETS)
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=request.app.title,
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url=icon,
        swagger_ui_parameters={"validatorUrl": None},
    )
    text = bytes(page.body).decode().replace(DIV, f"{DIV}<p>{WITHOUT}</p>")
    return HTMLResponse(text, headers={"Content-Security-Policy": ONLY_FROM_HERE})


async def _asset(request: Request) -> FileResponse:
    # found when it is asked for: whoever only serves an API need not import the package that has them
    static = Path(str(files("fastapi_offline"))) / "static"
    return FileResponse(static / request.url.path.removeprefix("/docs/"), headers={"Cache-Control": "max-age=86400"})
