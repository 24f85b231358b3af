"""Plain: HTTP without TLS, one request a connection.

Both sides are framed by h11, so that no second request hides in the body of a first, and nothing is sent that was not
understood.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import h11

from gymbox.egress.ledger import Refused
from gymbox.egress.tunnels import CHUNK
from gymbox.network import canonical

LONGEST_HEAD = 16 * 1024
"""Bytes of a request's line and headers."""
IDLE = 600.0
"""Seconds of silence, of either side, after which a request is given up."""
_HOP_BY_HOP = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
    *(b"te", b"trailer", b"upgrade", b"expect"),
}
Headers = Sequence[tuple[bytes, bytes]]


class Target(NamedTuple):
    """Where a request wants to go."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Talk:
    """One side of a connection: what h11 knows of it, with its bytes."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int = LONGEST_HEAD,
    ) -> None:
        self.connection = h11.Connection(role, max_incomplete_event_size=limit)
        self.reader = reader
        self.writer = writer

    async def next(self, idle: float = IDLE) -> Any:
        """The next event.

        Raises:
            h11.RemoteProtocolError: the other side does not speak HTTP, or its headers are too long.
            TimeoutError: it was silent for `idle` seconds.
        """
        while (event := self.connection.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(idle):
                self.connection.receive_data(await self.reader.read(CHUNK))
        return event

    async def send(self, event: Any) -> None:
        """Send an event, as fast as the other side takes it."""
        self.writer.write(self.connection.send(event) or b"")
        await self.writer.drain()

    async def body(self) -> AsyncIterator[Any]:
        """Data and then EndOfMessage, without trailers."""
        while True:
            event = await self.next()
            if isinstance(event, h11.EndOfMessage):
                yield h11.EndOfMessage()
                return
            if not isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("it broke off")
            yield h11.Data(data=event.data)


async def head_of(client: Talk, within: float) -> h11.Request:
    """The request that a client sends.

    Raises:
        Refused: it is none, is too long, or is not there in time; or the client says nothing and leaves.
    """
    try:
        async with asyncio.timeout(within):
            event = await client.next()
    except TimeoutError as error:
        raise Refused("(request)", f"its head did not come within {within:g} s", status=408) from error
    except h11.RemoteProtocolError as error:
        raise Refused("(request)", str(error), status=error.error_status_hint) from error
    if not isinstance(event, h11.Request):
        raise Refused("(request)", "there was none", status=400)
    if sum(len(name) + len(value) + 4 for name, value in event.headers) + len(event.target) > LONGEST_HEAD:
        raise Refused("(request)", f"its head has more than {LONGEST_HEAD} bytes", status=431)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
        raise Refused("(request)", "its body is framed twice", status=400)
    return event


def authority(text: str) -> Target:
    """`host:port` of a CONNECT.

    Raises:
        Refused: it is something else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (number := _port(port)):
        raise Refused(text, "CONNECT takes host:port", status=400)
    return Target(_host(host, text), number, "")


def absolute(request: h11.Request) -> Target:
    """The host of a request to a proxy, which its Host header must not contradict.

    Raises:
        Refused: its target is no http address, has a user in it, or is not where the Host header says.
    """
    text = request.target.decode("latin-1")
    try:
        parts = urlsplit(text)
        port = 80 if parts.port is None else parts.port
    except ValueError as error:
        raise Refused(text, "its target is no address", status=400) from error
    if parts.scheme != "http":
        raise Refused(text, "a proxy is asked with http://… or by CONNECT", status=400)
    if "@" in parts.netloc:
        raise Refused(text, "addresses with a user in them are not taken", status=400)
    path = parts.path or "/"
    target = Target(_host(parts.hostname or "", text), port, f"{path}?{parts.query}" if parts.query else path)
    said = _host_header(request)
    if said is not None and (said.host, said.port) != (target.host, target.port):
        raise Refused(str(target), f"its Host header says {said}", status=400)
    return target


def origin(request: h11.Request) -> Target:
    """The host of a request that takes us for it: what its Host header says.

    Raises:
        Refused: it has none, or its target is no path.
    """
    path, said = request.target.decode("latin-1"), _host_header(request)
    if said is None or not path.startswith("/"):
        raise Refused(path, "it names no host", status=400)
    return said._replace(path=path)


async def forward(request: h11.Request, client: Talk, server: Talk, target: Target, added: Headers = ()) -> None:
    """Send the request to the server and the answer to the client; then both are done.

    Args:
        target: the path and the Host that are sent.
        added: headers that are set, whatever the client sent of these names.

    Raises:
        Refused: the server gave no answer; nothing has been sent to the client.
        h11.RemoteProtocolError, OSError, TimeoutError: one of them broke off later.
    """
    host = target.host if target.port == 80 else f"{target.host}:{target.port}"
    own = [(b"host", host.encode()), (b"connection", b"close"), *added]
    passed = _without(request.headers, {name for name, _ in own})
    if any(name == b"expect" for name, _ in request.headers) and client.connection.they_are_waiting_for_100_continue:
        await client.send(h11.InformationalResponse(status_code=100, headers=[]))
    sending = asyncio.create_task(_send(request.method, target.path, [*own, *passed], client, server))
    try:
        try:
            answer = await server.next()
            while isinstance(answer, h11.InformationalResponse):
                answer = await server.next()
            if not isinstance(answer, h11.Response):
                raise h11.RemoteProtocolError("it closed the connection")
        except (h11.RemoteProtocolError, OSError, TimeoutError) as error:
            raise Refused(str(target), "it gave no answer", status=502) from error
        headers = [*_without(answer.headers, set()), (b"connection", b"close")]
        await client.send(h11.Response(status_code=answer.status_code, headers=headers, reason=answer.reason))
        async for event in server.body():
            await client.send(event)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)  # a server may answer before it has read everything


async def _send(method: bytes, path: str, headers: Headers, client: Talk, server: Talk) -> None:
    await server.send(h11.Request(method=method, target=path.encode("latin-1"), headers=list(headers)))
    async for event in client.body():
        await server.send(event)


async def refuse(client: Talk, refusal: Refused) -> None:
    """Answer with the reason, where there is still somebody who can be answered."""
    if client.connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = f"gymbox: {refusal}\n".encode()
    headers = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))]
    await client.send(h11.Response(status_code=refusal.status, headers=[*headers, ("connection", "close")]))
    await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())


def _host_header(request: h11.Request) -> Target | None:
    for name, value in request.headers:  # h11 lets no second one pass
        if name == b"host":
            text = value.decode("latin-1")
            host, colon, port = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "80")
            if (number := _port(port)) is None:
                raise Refused(text, "its Host header is none", status=400)
            return Target(_host(host, text), number, "/")
    return None


def _port(text: str) -> int | None:
    """A port's number, if it is one: of thousands of digits Python makes no number."""
    if len(text) > 5 or not (text.isascii() and text.isdecimal()):
        return None
    return number if (number := int(text)) < 65_536 else None


def _host(host: str, text: str) -> str:
    host = canonical(host.removeprefix("[").removesuffix("]"))
    if not host or not host.isascii() or any(char in " @/\\?#%[]" or not char.isprintable() for char in host):
        raise Refused(text, "its host is none", status=400)
    return host


def _without(headers: Headers, dropped: set[bytes]) -> list[tuple[bytes, bytes]]:
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    gone = _HOP_BY_HOP | dropped | (named - {b"content-length", b"transfer-encoding", b"host"})
    return [(name, value) for name, value in headers if name not in gone]
