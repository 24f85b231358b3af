"""Server: the proxy's two listeners, and what happens to a request between them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from gymbox_sandbox.lifecycle import RouteTable
from gymbox_sandbox.wire import SESSION_HEADER
from pydantic import ValidationError

from gymbox.errors import (
    ConfigError,
    Internal,
    Invalid,
    NotFound,
    Problem,
    SandboxEnded,
    SandboxPaused,
    TimedOut,
    Unauthorized,
    nearest,
)
from gymbox.guard import REQUEST_ID_HEADER, Guard, base_url, bearer, is_bearer, refusal, request_id
from gymbox.proxy import metrics
from gymbox.proxy.access import check_admin, check_client, check_sandbox, digest
from gymbox.proxy.forward import BadGateway, Broken, Destination, forward
from gymbox.proxy.paths import Kind, Malformed, Scope, Target, canonical
from gymbox.proxy.routes import Routes
from gymbox.proxy.settings import ProxySettings
from gymbox.proxy.upstreams import Upstreams
from gymbox.proxy.websockets import is_websocket, tunnel

log = logging.getLogger(__name__)

_quiet = logging.getLogger("gymbox.proxy.parser")
_quiet.setLevel(logging.CRITICAL)  # what is no HTTP is answered with 400, and is not worth a traceback each time

JUDGE = "judge"
"""The model that verifiers ask."""
DEFAULT = "default"
"""The model that a sandbox gets which names none: the one of this name, or the only one there is."""
_LENGTH = "Content-Length"
_KEEP_ALIVE = 75
"""Seconds that an idle or silent connection of a client is held."""
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Proxy:
    """Forwards what comes in on its public listener by the routes that come in on its admin listener.

    Used as `async with Proxy(settings) as proxy`; in one process with the controller, routes are given to
    `proxy.routes.replace` and there need be no admin listener.

    Args:
        upstreams: the connections to what stands behind it; closed with it.

    Raises:
        ConfigError: (on entering) an address is taken, or is exposed without a list of hosts.
    """

    def __init__(self, settings: ProxySettings, upstreams: Upstreams | None = None) -> None:
        self.settings = settings
        self._upstreams = upstreams or Upstreams(settings)
        self.routes = Routes(self._upstreams)
        self._metrics = metrics.Metrics()
        self._guard = Guard(hosts=settings.allowed_hosts, origins=settings.allowed_origins)
        self._stack = contextlib.AsyncExitStack()
        self.port = settings.port
        """The real one, once it is open."""
        self.admin_port = settings.admin_port

    @property
    def url(self) -> str:
        """Base address of the public listener; a wildcard address is told as loopback."""
        return base_url(self.settings.host, self.port)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._upstreams.close)
            settings = self.settings
            self._guard.check_exposed(settings.host, own_tokens=True)
            if settings.admin_socket is not None:
                runner = await self._runner(stack, self._administer)
                await _listen_on_socket(runner, settings.admin_socket)
            if settings.admin_port is not None:
                self.admin_port = await _listen(
                    await self._runner(stack, self._administer), "127.0.0.1", settings.admin_port
                )
            self.port = await _listen(await self._runner(stack, self._serve), settings.host, settings.port)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _runner(self, stack: contextlib.AsyncExitStack, handler: Handler) -> web.ServerRunner:
        server = _Server(
            handler,
            self.settings.max_connections,
            handler_cancellation=True,
            auto_decompress=False,
            max_line_size=self.settings.header_limit,
            max_field_size=self.settings.header_limit,
            keepalive_timeout=_KEEP_ALIVE,
            access_log=None,
            logger=_quiet,
        )
        runner = web.ServerRunner(server, shutdown_timeout=self.settings.drain)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        return runner

    # --- the public listener

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        began = time.perf_counter()
        id = _request_id(request)
        kind = request.raw_path.split("/", 2)[1:2]
        # a WebSocket ends by its client leaving: that is no request given up
        status = "101" if is_websocket(request) else "cancelled"
        label = kind[0] if kind and kind[0] in Kind else "other"
        in_flight = self._metrics.in_flight.labels(label)
        in_flight.inc()
        try:
            response = await self._answered(request, id)
            status = str(response.status)
            return response
        except Broken as broken:
            status = broken.by
            log.warning("%s %s: %s", request.method, request.raw_path, broken)
            return broken.response
        finally:
            in_flight.dec()
            self._metrics.requests.labels(label, status).inc()
            self._metrics.seconds.labels(label).observe(time.perf_counter() - began)

    async def _answered(self, request: web.BaseRequest, id: str) -> web.StreamResponse:
        try:
            return await self._dispatch(request, id)
        except (BadGateway, TimedOut) as problem:
            log.warning("%s %s: %s", request.method, request.raw_path, problem)
            return _refusal(problem, id)
        except Problem as problem:
            return _refusal(problem, id)
        except Broken:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.raw_path)
            return _refusal(Internal("something went wrong in the proxy", request=id), id)

    async def _dispatch(self, request: web.BaseRequest, id: str) -> web.StreamResponse:
        path, _ = canonical(request.raw_path)
        if path == "/healthz":
            return web.json_response({"status": "ok"})
        if path == "/readyz":
            return web.json_response({"status": "ok", "version": self.routes.table.version})
        self._guard.check(path, request.raw_headers)
        _check_framing(request)
        if path == "/metrics":
            check_admin(bearer(_authorization(request)), self.routes.admin_token)
            self._metrics.routes.set(len(self.routes.table.routes))
            return web.Response(body=self._metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE})
        target = Target.parse(request.raw_path)
        destination = await self._destination(target, bearer(_authorization(request)), id)
        if is_websocket(request):
            limit, heartbeat = self.settings.websocket_message_limit, self.settings.websocket_heartbeat
            return await tunnel(request, target, destination, id, limit=limit, heartbeat=heartbeat)
        return await forward(request, target, destination, id)

    async def _destination(self, target: Target, token: str, id: str) -> Destination:
        if target.kind is Kind.SANDBOX:
            return await self._sandbox(target, token, id)
        known = self.settings.models if target.kind is Kind.MODEL else self.settings.agents
        if target.kind is Kind.MODEL and self.routes.may_call_models(digest(token)):
            known = {name: model for name, model in known.items() if name != JUDGE}  # it would know its verdict before
            if len(known) == 1:
                known = {DEFAULT: next(iter(known.values())), **known}
        else:
            check_client(token, self.routes.admin_token, self.settings.client_tokens)
        if target.name not in known:
            raise NotFound(f"there is no {target.prefix}; {nearest(target.name, list(known))}")
        found = known[target.name]
        headers = {REQUEST_ID_HEADER: id}
        if found.token is not None:
            headers["Authorization"] = f"Bearer {found.token.get_secret_value()}"
        return Destination(
            session=self._upstreams.by_address(),
            origin=found.base,
            name=f"{target.kind.name.lower()} {target.name!r}",
            headers=headers,
            body_limit=self.settings.upstream_body_limit,
        )

    async def _sandbox(self, target: Target, token: str, id: str) -> Destination:
        route = check_sandbox(token, self.routes.find(target.name), target.name, target.scope, self.routes.admin_token)
        if route.ended is not None:
            raise SandboxEnded(route.ended)
        if route.paused:
            raise SandboxPaused(route.sandbox)
        name = f"sandbox {route.sandbox!r}"
        settings = self.settings
        limit = settings.tools_body_limit if target.scope is Scope.TOOLS else settings.sandbox_body_limit
        headers = {REQUEST_ID_HEADER: id}
        if route.session:
            headers[SESSION_HEADER] = route.session
        try:
            session = await self._upstreams.of(route)
        except Problem as error:
            raise BadGateway(f"{name} cannot be reached") from error
        return Destination(
            session=session,
            origin=f"http://{route.address}" if route.socket is None else "http://sandbox",
            name=name,
            headers=headers,
            body_limit=limit,
        )

    # --- the admin listener

    async def _administer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._routes(request)
        except Problem as problem:
            return _refusal(problem, _request_id(request))

    async def _routes(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/routes" or request.method not in ("GET", "PUT"):
            raise NotFound("the admin listener answers GET and PUT of /routes")
        expected = self.settings.admin_token
        if expected is not None and not is_bearer(_authorization(request), expected.get_secret_value()):
            raise Unauthorized("the admin listener needs its own token")
        if request.method == "PUT":
            try:
                table = RouteTable.model_validate_json(await request.content.read())
            except ValidationError as error:
                raise Invalid(f"this is no route table: {error}") from error
            await self.routes.replace(table)
        return web.json_response(text=self.routes.table.model_dump_json())


class _Server(web.Server):
    """A server that holds a bounded number of connections."""

    def __init__(self, handler: Handler, limit: int, **options: Any) -> None:
        super().__init__(handler, **options)
        self._limit = limit
        self._open = 0

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open += 1
        if self._open > self._limit:
            transport.write(_FULL)
            handler.force_close()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open -= 1


async def _listen(runner: web.ServerRunner, host: str, port: int) -> int:
    """Serve on an address; the port that it got."""
    try:
        await web.TCPSite(runner, host, port, backlog=4096).start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return int(runner.addresses[0][1])


async def _listen_on_socket(runner: web.ServerRunner, path: Path) -> None:
    """Serve on a unix socket that only its user and group may open."""
    mask = os.umask(0o117)
    try:
        await web.UnixSite(runner, path).start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.umask(mask)


def _check_framing(request: web.BaseRequest) -> None:
    """Refuse a request whose end two servers could see in different places.

    Raises:
        Malformed: it has both lengths, or an encoding other than chunked.
    """
    encodings = request.headers.getall("Transfer-Encoding", None)
    if encodings and (len(encodings) > 1 or encodings[0].strip().lower() != "chunked" or _LENGTH in request.headers):
        raise Malformed("a body is framed by Content-Length or by 'Transfer-Encoding: chunked', and by one of them")
    if len(request.headers.getall(_LENGTH, ())) > 1:
        raise Malformed("Content-Length is given twice")


def _authorization(request: web.BaseRequest) -> bytes:
    return request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")


def _request_id(request: web.BaseRequest) -> str:
    return request_id(request.headers.get(REQUEST_ID_HEADER))


def _refusal(problem: Problem, id: str) -> web.Response:
    status, headers, body = refusal(problem)
    response = web.Response(status=status, headers={**headers, REQUEST_ID_HEADER: id}, body=body)
    if isinstance(problem, Malformed):
        response.force_close()  # where this request ends is not sure
    return response
