"""Server: the app that E2B's SDK is pointed at, and how it is served and stopped."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gymbox.client import ControllerClient
from gymbox.e2b.api import api_routes
from gymbox.e2b.files_routes import files_routes
from gymbox.e2b.filesystem_service import filesystem_service
from gymbox.e2b.process_service import process_service
from gymbox.e2b.refusals import PAUSED, Away, Refused, TooLarge, Unserved, told
from gymbox.e2b.rpc import rpc_routes
from gymbox.e2b.sandboxes import Sandbox, Sandboxes
from gymbox.errors import ConfigError, Invalid, NotFound, Problem, Unauthorized
from gymbox.guard import LOOPBACK_HOSTS, Guard
from gymbox.serving import Listener, serve

ID_HEADER, PORT_HEADER, TOKEN_HEADER = "E2b-Sandbox-Id", "E2b-Sandbox-Port", "X-Access-Token"
ENVD_PORT = "49983"
"""What E2B's SDK calls the port of the server in a sandbox."""


class E2bServer:
    """A controller's sandboxes for E2B's SDK.

    Args:
        key: what callers must bring as `X-API-KEY`.
        base: the environment that stands for the template `base`; default: the controller's of that name.

    Raises:
        ConfigError: the key is empty, which everybody would bring.
    """

    def __init__(self, controller: ControllerClient, key: str, *, base: str | None = None) -> None:
        if not key.strip():
            raise ConfigError("the key is empty: write one into its file or variable, or remove that")
        self._key = key.encode()
        self._sandboxes = Sandboxes(controller, hashlib.sha256(b"gymbox-e2b:" + self._key).hexdigest()[:16], base)

    def app(self) -> Starlette:
        """The app. `close` ends what it has made."""
        routes = [
            Route("/health", self._health, methods=["GET"]),
            *rpc_routes(process_service(), self._find),
            *rpc_routes(filesystem_service(), self._find),
            *files_routes(self._find),
            *api_routes(self._sandboxes, self._check_key),
            Route("/{path:path}", self._unserved, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ]
        kinds: list[type[Exception]] = [Problem, Refused, Away, Unserved, TooLarge]
        handlers: dict[Any, Any] = {kind: _on_failure for kind in kinds}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def close(self) -> None:
        """End all sandboxes that were made here, and make no more; a second time is fine."""
        await self._sandboxes.close()

    def _check_key(self, request: Request) -> None:
        if not hmac.compare_digest(request.headers.get("x-api-key", "").encode(), self._key):
            raise Unauthorized("this key is not known here: X-API-KEY brings it")

    def _find(self, request: Request) -> Sandbox:
        """The sandbox that a request's header names, whose token another brings.

        Raises:
            Invalid: the header is missing.
            Unserved: it is for a port of the sandbox's own.
            Away: there is no such sandbox.
            Unauthorized: it is not its token.
        """
        id = request.headers.get(ID_HEADER)
        if id is None:
            raise Invalid(f"the header {ID_HEADER} is missing, by which a sandbox is known here")
        if (port := request.headers.get(PORT_HEADER, ENVD_PORT)) != ENVD_PORT:
            raise Unserved(f"port {port!r:.10} of a sandbox is not served here")
        sandbox = self._sandboxes[id]
        if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), sandbox.token.encode()):
            raise Unauthorized(f"this token is not that of the sandbox: {TOKEN_HEADER} brings it")
        return sandbox

    async def _health(self, request: Request) -> Response:
        sandbox = self._find(request)
        try:
            _, view = await self._sandboxes.get(sandbox.id)
        except NotFound as error:
            raise Away(sandbox.id, error.detail) from error
        if view.status == "paused":
            raise Away(sandbox.id, PAUSED)
        return Response(status_code=204)

    async def _unserved(self, request: Request) -> Response:
        self._check_key(request)
        raise Unserved(f"{request.method} {request.url.path:.100} is not served here")


async def _on_failure(request: Request, error: Exception) -> Response:
    found = told(error)
    return JSONResponse(found.body, found.status, headers=found.headers)


async def serve_e2b(
    server: E2bServer,
    *,
    host: str,
    port: int,
    allowed_hosts: list[str],
    started: Callable[[Listener], Any] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; then end all sandboxes that were made here."""
    guard = Guard(hosts=(*LOOPBACK_HOSTS, *allowed_hosts), body_limit=0)
    try:
        await serve(server.app(), guard, host=host, port=port, own_tokens=True, started=started, draining=server.close)
    finally:
        await server.close()
