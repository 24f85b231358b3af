"""Direct routes: the way past FastAPI for what is called very often and costs little itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gymbox.models.rollout_paths import RolloutPaths

RequestHandler = Callable[[Request], Awaitable[Response]]


class DirectRoutes:
    """POST routes of an app, as an ASGI app before it. The app knows them, too: for its document, for other methods,
    and for whoever mounts it.

    What an endpoint raises is answered by the app's own exception handlers, as it is everywhere else, and a bug by
    whoever serves the app.
    """

    def __init__(self, app: ASGIApp, owner: FastAPI, routes: dict[str, RequestHandler]) -> None:
        self.app = app
        self.owner = owner
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.routes.get(scope["path"]) if scope.get("method") == "POST" else None
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request)
        except Exception as error:
            handlers: dict[Any, Any] = self.owner.exception_handlers
            handler = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
            if handler is None:
                raise
            response = await handler(request, error)
        await response(scope, receive, send)


def add_direct_routes(app: FastAPI, routes: dict[str, RequestHandler]) -> None:
    """Have `app` answer a POST to each of these paths, also below the address of a rollout; an endpoint reads its
    request by itself."""
    for path, endpoint in routes.items():
        app.add_api_route(path, endpoint, methods=["POST"], response_model=None)
    others = app.build_middleware_stack

    def stack() -> ASGIApp:
        # outermost: each layer before an endpoint costs something at every turn of its coroutine
        return RolloutPaths(DirectRoutes(others(), app, routes))

    app.build_middleware_stack = stack  # type: ignore[method-assign]
