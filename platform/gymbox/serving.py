"""Serving: how every gymbox server answers errors, decides who may talk to it, listens, and stops.

An app says what it does; the `Listener` that serves it says who may call it (`Guard`), so no app can be put on a port
without a guard. Both are plain ASGI and cost little.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from gymbox_sandbox.joined import JoinedHttp
from gymbox_sandbox.lifecycle import ROLLOUT_HEADER
from gymbox_sandbox.problems import KINDS, MEDIA_TYPE, of_status
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gymbox import logs
from gymbox.api_page import add_page
from gymbox.errors import ConfigError, Forbidden, Internal, Invalid, Problem, Unauthorized
from gymbox.guard import OPEN_PATHS, REQUEST_ID_HEADER, Guard, base_url, is_id, refusal, request_id
from gymbox.lifetime import raise_file_limit, spare_what_is_loaded, until_signalled

log = logging.getLogger(__name__)

BACKLOG = 4096
"""Connections that may wait to be accepted, as many as Linux allows by default: rollouts begin in bursts."""
_ID_HEADERS = {REQUEST_ID_HEADER.lower().encode(): "request", ROLLOUT_HEADER.lower().encode(): "rollout"}


# --- apps: problems are answered in one place


def new_app(title: str, *, version: str = "", description: str = "") -> FastAPI:
    """A FastAPI app that answers every failure as `application/problem+json`."""
    app = _App(
        title=title,
        version=version or "0",
        description=description,
        docs_url=None,
        redoc_url=None,
        # it would look for OpenTelemetry at each request; gymbox tells of itself by its own logs and metrics
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    add_page(app)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(CatchAll)
    return app


def answers(*problems: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """For the `responses` of a route: how it refuses, beside what every route does."""
    return {problem.status: {"description": problem.__name__} for problem in problems}


class _App(FastAPI):
    """Its document tells of the token, and of problems as they are answered."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            _tell_of_problems(super().openapi())
        return super().openapi()


def _tell_of_problems(document: dict[str, Any]) -> None:
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's, which are not answered
        schemas.pop(name, None)
    schemas["Problem"] = {
        "type": "object",
        "required": ["title", "status", "kind", "detail"],
        "properties": {
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "kind": {"type": "string", "enum": list(KINDS)},
            "detail": {"type": "string"},
            "retry_after": {"type": "number", "description": "Seconds."},
        },
    }
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            found = operation["responses"]
            refusals: list[type[Problem]] = [Forbidden]
            if path not in OPEN_PATHS:
                operation["security"] = [{"token": []}]
                refusals.append(Unauthorized)
            for status, told in answers(*refusals).items():
                found.setdefault(str(status), told)
            for status in found:
                if status >= "400":
                    found[status] = {"description": of_status(int(status)).__name__, "content": content}


class CatchAll:
    """An ASGI app whose bugs are answered as Internal: the client is told an id, the log tells the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except (Problem, HTTPException):
            raise
        except ClientDisconnect:
            pass  # the caller hung up: nobody reads an answer
        except Exception:
            if scope["type"] == "lifespan" or started:
                raise  # the connection is cut, so the client sees a broken answer and not a short one
            request = logs.ids().get("request", "")
            log.exception("%s %s failed", scope.get("method", "WEBSOCKET"), scope["path"])
            await refuse(Internal("something went wrong here", request=request), scope, receive, send)


def problem_response(problem: Problem, status: int | None = None) -> Response:
    """The answer that tells a client of `problem`."""
    code, headers, body = refusal(problem, status)
    return Response(body, code, headers)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return problem_response(error)


async def _on_bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [
        {"field": ".".join(str(part) for part in fault["loc"]), "reason": fault["msg"]} for fault in error.errors()
    ]
    text = "; ".join(f"{fault['field']}: {fault['reason']}" for fault in faults)
    return problem_response(Invalid(f"the request is wrong: {text}", faults=faults))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    # what the framework itself refuses: no such path, wrong method, too large a body
    assert isinstance(error, HTTPException)
    response = problem_response(of_status(error.status_code)(str(error.detail)), error.status_code)
    response.headers.update(error.headers or {})
    return response


# --- an app behind its guard


class Guarded:
    """An ASGI app behind a guard: host, origin, token and body size are checked, and each request gets an id for its
    logs and its answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self.app = CatchAll(app)
        self.guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        ids = _ids(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] in _OPENING:
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", ids["request"].encode())]
            await send(message)

        with logs.about(**ids):
            try:
                self.guard.check(scope["path"], scope["headers"])
                if scope["type"] == "http" and self.guard.body_limit:
                    receive = _limited(scope, receive, self.guard.body_limit)
                await self.app(scope, receive, send_with_id)
            except HTTPException as error:
                await refuse(Invalid(str(error.detail)), scope, receive, send_with_id, status=error.status_code)
            except Problem as problem:
                await refuse(problem, scope, receive, send_with_id)


_OPENING = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})


async def refuse(problem: Problem, scope: Scope, receive: Receive, send: Send, *, status: int | None = None) -> None:
    """Answer an HTTP request, or the opening of a WebSocket, with `problem`."""
    if scope["type"] == "http":
        await problem_response(problem, status)(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        answer = problem_response(problem, status)
        start = {"type": "websocket.http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
        await send(start)
        await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": problem.detail[:100]})


def _ids(scope: Scope) -> dict[str, str]:
    """What log lines about a request carry: its id, the caller's or a new one, and the rollout that it is for."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        known = _ID_HEADERS.get(name)
        if known is not None and is_id(text := value.decode("latin-1")):
            found[known] = text
    return found if "request" in found else found | {"request": request_id(None)}


def _limited(scope: Scope, receive: Receive, limit: int) -> Receive:
    """`receive` for a request whose body may have `limit` bytes, whether it says its length or not."""
    too_large = HTTPException(413, f"the body is larger than {limit} bytes")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_large
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit:
                raise too_large
        return message

    return limited


# --- listeners: an app on an address


class _Uvicorn(uvicorn.Server):
    """Uvicorn inside someone else's event loop: it says when it answers, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # what uvicorn makes of a failed lifespan would end the whole process
            raise ConfigError("the app did not start; its log says why") from None
        self.answering.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """An app served on an address, behind a guard, within `async with`; leaving it drains.

    Args:
        port: 0 takes a free one; `port` and `url` then tell which.
        unix: listen on a socket at this path instead, which only this user can open; it goes with the listener.
        drain: seconds that requests in flight get to finish when it stops.
        own_tokens: the app checks tokens itself, so the guard may have none.

    Raises:
        ConfigError: the address is taken, or can be reached from elsewhere and the guard is not up to that.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        unix: Path | None = None,
        drain: float = 10,
        own_tokens: bool = False,
    ) -> None:
        self.host, self._unix = host, unix
        if unix is None:
            guard.check_exposed(host, own_tokens=own_tokens)
            self._socket = _bind(host, port)
            self.port: int = self._socket.getsockname()[1]
        else:
            self._socket, self.port = _bind_unix(unix), 0
        config = uvicorn.Config(
            Guarded(app, guard),
            http=JoinedHttp,
            ws="auto",
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=math.ceil(drain),
        )
        self._server = _Uvicorn(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its base address; a wildcard address is told as loopback."""
        return base_url(self.host, self.port)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._server.serve([self._socket]), name=f"listener {self.port}")
        answering = asyncio.create_task(self._server.answering.wait())
        await asyncio.wait({self._task, answering}, return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        if self._task.done():
            self._socket.close()
            await self._task  # which has failed
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._unix is not None:
            self._unix.unlink(missing_ok=True)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named, since asyncio sets TCP_NODELAY only then: without it some answers wait 40 ms for an ACK
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def _bind_unix(path: Path) -> socket.socket:
    """Through its open folder: so the address is shorter than the 107 bytes that it may have, wherever that is."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder, mask = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), os.umask(0o177)
    try:
        bound.bind(f"/proc/self/fd/{folder}/{path.name}" if os.path.isdir("/proc/self/fd") else str(path))
    except OSError as error:
        bound.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(mask)
        os.close(folder)
    return bound


async def serve(
    app: ASGIApp,
    guard: Guard,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    drain: float = 10,
    own_tokens: bool = False,
    started: Callable[[Listener], Any] | None = None,
    draining: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT: the main of a server process.

    Args:
        own_tokens: see `Listener`.
        started: called once it answers, with the listener, which knows the real port.
        draining: awaited after the signal, while the app still answers.
    """
    raise_file_limit()
    async with until_signalled() as stop:
        async with Listener(app, guard, host=host, port=port, drain=drain, own_tokens=own_tokens) as listener:
            log.info("answering on %s", listener.url)
            spare_what_is_loaded()
            if started is not None:
                started(listener)
            await stop.wait()
            if draining is not None:
                await draining()
