"""Rpc: Connect's calls over HTTP: which method, for which sandbox, and how its answer or failure is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from gymbox_sandbox.hang_up import unless_hung_up
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gymbox.e2b.framing import MOST, STREAM, TIMEOUT_HEADER, UNARY, deadline, ending, envelope, messages
from gymbox.e2b.paths import check_user, user_of
from gymbox.e2b.refusals import STATUS, Code, Refused, TooLarge, as_away, refused
from gymbox.e2b.sandboxes import Sandbox

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a method."""

    body: bytes
    seconds: float | None
    """That it may take, as its caller says."""
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Service:
    """The methods of one of Connect's services, by name and by what is streamed."""

    name: str
    unary: Mapping[str, Callable[[Sandbox, Call], Awaitable[Json]]]
    server_stream: Mapping[str, Callable[[Sandbox, Call], AsyncGenerator[Json]]]
    client_stream: Mapping[str, Callable[[Sandbox, Call, AsyncIterator[bytes]], Awaitable[Json]]] = field(
        default_factory=dict
    )


Find = Callable[[Request], Sandbox]
"""The sandbox that a request is for, whose token it brings."""


def rpc_routes(service: Service, find: Find) -> list[Route]:
    """`POST /SERVICE/METHOD`. What is no method of it is refused by name."""

    async def called(request: Request) -> Response:
        method: str = request.path_params["method"]
        sandbox: Sandbox | None = None
        try:
            sandbox = find(request)
            check_user(user_of(request.headers.get("authorization", "")))
            if method in service.unary:
                _check_type(request, UNARY)
                answer = await service.unary[method](sandbox, _call(request, await body_of(request, MOST)))
                return JSONResponse(answer)
            _check_type(request, STREAM)
            if method in service.server_stream:
                events = service.server_stream[method](sandbox, _call(request, await _only_message(request)))
                return _Stream(sandbox.id, events)
            if method in service.client_stream:
                call = _call(request, b"")
                async with asyncio.timeout(call.seconds), aclosing(messages(request.stream())) as sent:
                    answer = await service.client_stream[method](sandbox, call, sent)
                return Response(envelope(answer) + ending(), media_type=STREAM)
            raise Refused(Code.UNIMPLEMENTED, f"{service.name}/{method:.60} is not served here")
        except TimeoutError:
            error = Refused(Code.DEADLINE_EXCEEDED, "not all of the input was read in time")
        except ClientDisconnect:
            raise
        except Exception as failure:
            error = refused(as_away(failure, sandbox.id if sandbox else ""))
        if request.headers.get("content-type", "").startswith(STREAM):
            return Response(ending(error), media_type=STREAM)
        return JSONResponse({"code": error.code, "message": error.message}, STATUS[error.code])

    return [Route(f"/{service.name}/{{method}}", called, methods=["POST"])]


async def body_of(request: Request, most: int) -> bytes:
    """A request's body.

    Raises:
        TooLarge: it has more bytes than that.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise TooLarge(f"the body is larger than {most} bytes")
    return bytes(body)


def _check_type(request: Request, wanted: str) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != wanted:
        raise Refused(Code.UNIMPLEMENTED, f"messages of the type {given!r:.60} are not read here, but {wanted}")
    for header in ("connect-content-encoding", "content-encoding"):
        if request.headers.get(header, "identity") != "identity":
            raise Refused(Code.UNIMPLEMENTED, "compressed messages are not read here")


def _call(request: Request, body: bytes) -> Call:
    return Call(body, deadline(request.headers.get(TIMEOUT_HEADER)), request.headers)


async def _only_message(request: Request) -> bytes:
    found: bytes | None = None
    async for message in messages(request.stream()):
        if found is not None:
            raise Refused(Code.INVALID_ARGUMENT, "one message is expected, and no more")
        found = message
    if found is None:
        raise Refused(Code.INVALID_ARGUMENT, "one message is expected, and none came")
    return found


class _Stream(Response):
    """What a method yields, in envelopes; where it fails, the last one says how."""

    def __init__(self, sandbox: str, events: AsyncGenerator[Json]) -> None:
        super().__init__(media_type=STREAM)
        del self.headers["content-length"]
        self._sandbox = sandbox
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            with suppress(ClientDisconnect):
                await unless_hung_up(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        last = ending()
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": envelope(event), "more_body": True})
        except Exception as error:
            last = ending(refused(as_away(error, self._sandbox)))
        await send({"type": "http.response.body", "body": last, "more_body": False})
