"""WebSockets: two halves and what is said between them; when either closes, both do."""

from __future__ import annotations

import asyncio
from typing import Protocol

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web
from yarl import URL

from gymbox.guard import REQUEST_ID_HEADER
from gymbox.proxy.forward import BadGateway, Destination
from gymbox.proxy.headers import for_upstream
from gymbox.proxy.paths import Malformed, Target


class _Half(Protocol):
    async def receive(self) -> aiohttp.WSMessage: ...

    async def send_str(self, data: str) -> None: ...

    async def send_bytes(self, data: bytes) -> None: ...

    async def close(self, *, code: int = ..., message: bytes = ...) -> bool: ...


def is_websocket(request: web.BaseRequest) -> bool:
    """Whether the request asks for a WebSocket."""
    return request.headers.get("Upgrade", "").strip().lower() == "websocket"


async def tunnel(
    request: web.BaseRequest,
    target: Target,
    destination: Destination,
    request_id: str,
    *,
    limit: int,
    heartbeat: float,
) -> web.StreamResponse:
    """Connect both halves until either closes. Being cancelled (the client hung up) closes the upstream's.

    Raises:
        Malformed: the request opens no WebSocket.
        BadGateway: the upstream is not there, or did not open one.
    """
    if request.method != "GET" or request.body_exists:
        raise Malformed("a WebSocket is opened by a GET without a body")
    offered = [
        name.strip() for value in request.headers.getall("Sec-WebSocket-Protocol", ()) for name in value.split(",")
    ]
    url = URL(destination.origin + target.path + target.query, encoded=True)
    try:
        server = await destination.session.ws_connect(
            url,
            headers=for_upstream(request.headers, destination.headers),
            protocols=offered,
            autoclose=False,
            heartbeat=heartbeat,
            max_msg_size=limit,
        )
    except aiohttp.WSServerHandshakeError as error:
        raise BadGateway(f"{destination.name} opened no WebSocket here: it answered {error.status}") from error
    except aiohttp.ClientConnectorError as error:
        raise BadGateway(f"{destination.name} does not accept connections: {error.strerror}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise BadGateway(f"{destination.name} gave no answer: {error}") from error
    client = web.WebSocketResponse(
        protocols=[server.protocol] if server.protocol else (),
        autoclose=False,
        heartbeat=heartbeat,
        max_msg_size=limit,
        compress=False,
        timeout=5,
    )
    client.headers[REQUEST_ID_HEADER] = request_id
    code, reason = int(WSCloseCode.GOING_AWAY), b""
    try:
        await client.prepare(request)
        code, reason = await _until_either_closes(client, server)
    finally:
        await asyncio.gather(
            client.close(code=code, message=reason), server.close(code=code, message=reason), return_exceptions=True
        )
    return client


async def _until_either_closes(client: _Half, server: _Half) -> tuple[int, bytes]:
    pumps = [asyncio.create_task(_pump(client, server)), asyncio.create_task(_pump(server, client))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        return next(pump for pump in pumps if pump.done()).result()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: _Half, sink: _Half) -> tuple[int, bytes]:
    """Pass messages on until `source` closes; the code and reason to close the other half with."""
    while True:
        message = await source.receive()
        try:
            if message.type is WSMsgType.TEXT:
                await sink.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            elif message.type is WSMsgType.CLOSE:
                return int(message.data or WSCloseCode.OK), (message.extra or "").encode()
            elif message.type is WSMsgType.ERROR:
                too_big = isinstance(message.data, aiohttp.WebSocketError) and message.data.code
                return int(too_big or WSCloseCode.INTERNAL_ERROR), b""
            else:  # the connection ended without a closing handshake
                return int(WSCloseCode.GOING_AWAY), b""
        except ConnectionError:
            return int(WSCloseCode.GOING_AWAY), b""
