"""WebSockets through the proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web


async def serve(request: web.BaseRequest) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=["chat.v2"], autoclose=False)
    await socket.prepare(request)
    async for message in socket:
        if message.data == "close":
            await socket.close(code=4001, message=b"because")
        elif message.type is WSMsgType.TEXT:
            await socket.send_str(f"{request.raw_path} {message.data}")
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket


async def test_text_and_bytes_pass_both_ways_with_the_protocol_that_was_agreed(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", serve)
        async with w.client.ws_connect(
            w.url + "/sandboxes/a/terminal?x=1", headers=w.bearer("tools-a"), protocols=["chat.v1", "chat.v2"]
        ) as socket:
            assert socket.protocol == "chat.v2"
            await socket.send_str("hello")
            assert await socket.receive_str() == "/terminal?x=1 hello"
            await socket.send_bytes(b"\x00\xff" * 500_000)
            assert await socket.receive_bytes() == b"\x00\xff" * 500_000
        await w.until_counted('gymbox_proxy_requests_total{kind="sandboxes",status="101"}')


async def test_the_code_and_reason_of_a_close_reach_the_client(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", serve)
        async with w.client.ws_connect(w.url + "/sandboxes/a/x", headers=w.bearer(), autoclose=False) as socket:
            await socket.send_str("close")
            message = await socket.receive()
            assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "because")


@pytest.mark.parametrize("how", ["close frame", "connection lost"])
async def test_both_halves_close_when_the_client_goes(world: Any, how: str) -> None:
    opened, closed = asyncio.Event(), asyncio.Queue[int | None]()

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        opened.set()
        try:
            async for _ in socket:
                pass
        finally:
            closed.put_nowait(socket.close_code)
        return socket

    async with world() as w:
        await w.sandbox("a", serve)
        socket = await w.client.ws_connect(w.url + "/sandboxes/a/x", headers=w.bearer())
        await opened.wait()
        if how == "close frame":
            await socket.close(code=4002)
        else:
            socket._response.connection.transport.abort()
        async with asyncio.timeout(5):
            code = await closed.get()
        assert how == "connection lost" or code == 4002


async def test_the_client_is_closed_when_the_server_is_killed(world: Any) -> None:
    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        return socket

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.client.ws_connect(w.url + "/sandboxes/a/x", headers=w.bearer(), autoclose=False) as socket:
            message = await socket.receive(timeout=5)
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1001)


async def test_a_message_over_the_limit_closes_both_halves_with_1009(world: Any) -> None:
    async with world(websocket_message_limit=1000) as w:
        await w.sandbox("a", serve)
        async with w.client.ws_connect(w.url + "/sandboxes/a/x", headers=w.bearer(), autoclose=False) as socket:
            await socket.send_bytes(b"x" * 1001)
            message = await socket.receive(timeout=5)
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1009)


async def test_an_upstream_that_opens_no_websocket_is_a_bad_gateway(world: Any) -> None:
    async def plain(request: web.BaseRequest) -> web.Response:
        return web.Response(status=403)

    async with world() as w:
        runner = await w.sandbox("a", plain)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await w.client.ws_connect(w.url + "/sandboxes/a/x", headers=w.bearer())
        assert refused.value.status == 502
        await runner.cleanup()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await w.client.ws_connect(w.url + "/sandboxes/a/x", headers=w.bearer())
        assert refused.value.status == 502


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [("tools-a", "/exec", 403), ("wrong", "/x", 404), ("tools-a", "/x/../exec", 400)],
)
async def test_a_websocket_needs_the_token_that_a_request_needs(
    world: Any, token: str, path: str, status: int
) -> None:
    async with world() as w:
        await w.sandbox("a", serve)
        answer = await w.say(
            f"GET /sandboxes/a{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_websocket_from_a_foreign_page_is_refused(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", serve)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await w.client.ws_connect(
                w.url + "/sandboxes/a/x", headers={**w.bearer(), "Origin": "https://evil.example"}
            )
        assert refused.value.status == 403


async def test_a_peer_that_answers_no_ping_is_given_up(world: Any) -> None:
    given_up = asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        given_up.set()
        return socket

    async with world(websocket_heartbeat=0.2) as w:
        await w.sandbox("a", serve)
        reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
        writer.write(
            b"GET /sandboxes/a/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer tools-a\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 101")
        async with asyncio.timeout(5):
            await given_up.wait()  # this client reads, but never answers
        writer.close()


async def test_a_websocket_is_opened_by_a_get_without_a_body(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", serve)
        for method, headers in (("POST", {}), ("GET", {"Content-Length": "1"})):
            async with w.call(
                method,
                "/sandboxes/a/x",
                headers={"Upgrade": "websocket", "Connection": "Upgrade", **headers},
                data=b"x",
            ) as answer:
                assert answer.status == 400


async def test_a_server_that_hangs_up_on_a_websocket_is_a_bad_gateway(world: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with world() as w:
        await w.raw("a", talk)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await w.client.ws_connect(w.url + "/sandboxes/a/x", headers=w.bearer())
        assert refused.value.status == 502
