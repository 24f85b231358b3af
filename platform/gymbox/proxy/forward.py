"""Forward: one request to one upstream and its answer back, byte by byte as they come."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal

import aiohttp
from aiohttp import web
from yarl import URL

from gymbox.errors import Invalid, Problem, TimedOut, Unavailable
from gymbox.proxy.headers import for_client, for_upstream
from gymbox.proxy.paths import Target


class BadGateway(Unavailable):
    """What stands behind the proxy gave no answer."""

    status = 502


class TooLarge(Invalid):
    """The request's body is larger than its route allows."""

    status = 413


class Broken(Exception):
    """An answer that had begun cannot be ended: by the upstream (`cut`) or because the client left (`cancelled`)."""

    def __init__(self, response: web.StreamResponse, by: Literal["cut", "cancelled"], detail: str) -> None:
        super().__init__(detail)
        self.response = response
        self.by = by


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one request goes."""

    session: aiohttp.ClientSession
    origin: str
    """Base address; for a unix socket its host only fills the Host header."""
    name: str
    """For messages: `sandbox 'x'`."""
    headers: Mapping[str, str]
    """Set by the proxy, whatever the client sent of these names."""
    body_limit: int


async def forward(
    request: web.BaseRequest, target: Target, destination: Destination, request_id: str
) -> web.StreamResponse:
    """Send the request on and answer it. Being cancelled (the client hung up) drops the upstream's connection.

    Raises:
        TooLarge: the body is larger than allowed.
        BadGateway: no connection, or it broke off before an answer began.
        TimedOut: it was silent for too long before an answer began.
        Broken: the answer had begun; the client's connection is reset, so it sees an error and no short success.
    """
    headers = for_upstream(request.headers, destination.headers)
    body = _body(request, destination.body_limit)
    if body is not None and request.content_length is not None:
        headers["Content-Length"] = str(request.content_length)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    url = URL(destination.origin + target.path + target.query, encoded=True)
    try:
        async with destination.session.request(
            request.method, url, headers=headers, data=body, allow_redirects=False
        ) as answer:
            return await _answer(request, target, destination, request_id, answer)
    except aiohttp.ServerTimeoutError as error:
        raise TimedOut(f"{destination.name} did not answer in time") from error
    except aiohttp.ClientConnectorError as error:
        raise BadGateway(f"{destination.name} does not accept connections: {error.strerror}") from error
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error.__cause__, Problem):  # raised while the body was being sent
            raise error.__cause__ from None
        raise BadGateway(f"{destination.name} gave no answer: {_reason(error)}") from error


def _body(request: web.BaseRequest, limit: int) -> bytes | AsyncIterator[bytes] | None:
    """The body to send: whole where it has all arrived, else as it comes."""
    if not request.body_exists:
        return None
    if (request.content_length or 0) > limit:
        raise TooLarge(f"the body has {request.content_length} bytes; {limit} are allowed here")
    if request.content.is_eof() and request.content.exception() is None:
        whole = request.content.read_nowait()
        if len(whole) <= limit:
            return whole
        raise TooLarge(f"the body is larger than the {limit} bytes that are allowed here")
    return _limited(request.content, limit)


async def _limited(content: aiohttp.StreamReader, limit: int) -> AsyncIterator[bytes]:
    seen = 0
    async for chunk in content.iter_any():
        seen += len(chunk)
        if seen > limit:
            raise TooLarge(f"the body is larger than the {limit} bytes that are allowed here")
        yield chunk


async def _answer(
    request: web.BaseRequest, target: Target, destination: Destination, request_id: str, answer: aiohttp.ClientResponse
) -> web.StreamResponse:
    if answer.status < 200:
        raise BadGateway(f"{destination.name} answered {answer.status}, which nobody asked for")
    headers = for_client(answer.headers, origin=destination.origin, prefix=target.prefix, request=request_id)
    if answer.content.is_eof() and request.method != "HEAD":
        # all of it is here: one write instead of three
        return web.Response(status=answer.status, headers=headers, body=answer.content.read_nowait())
    response = web.StreamResponse(status=answer.status, headers=headers)
    _wake_when_closed(answer)
    try:
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
    except ConnectionError as error:
        raise Broken(response, "cancelled", "the client left while it was being answered") from error
    except (aiohttp.ClientError, TimeoutError, RuntimeError) as error:  # the last: it had closed before more was read
        _reset(request)
        detail = f"{destination.name} broke off in the middle of its answer: {_reason(error)}"
        raise Broken(response, "cut", detail) from error
    return response


def _wake_when_closed(answer: aiohttp.ClientResponse) -> None:
    """End the wait for more of the body when the connection ends: where a chunk is malformed, aiohttp closes the
    connection and tells no reader."""

    def on_closed(closed: asyncio.Future[None]) -> None:
        closed.exception()  # retrieved: what it says is on the body, too
        if not answer.content.is_eof() and answer.content.exception() is None:
            answer.content.set_exception(aiohttp.ClientPayloadError("its body is malformed"))

    protocol = None if answer.connection is None else answer.connection.protocol
    if protocol is not None and protocol.closed is not None:
        protocol.closed.add_done_callback(on_closed)


def _reset(request: web.BaseRequest) -> None:
    """Break the client's connection so that it sees an error, however the answer's length was told."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX:
        # on close send a reset: an answer that ends with the connection (HTTP/1.0) would look complete otherwise
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
