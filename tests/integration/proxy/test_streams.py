"""Bytes pass as they come, both ways, and who hangs up is noticed on the other side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gymbox.proxy.forward import Broken, Destination, forward
from gymbox.proxy.paths import Target


async def test_an_event_arrives_before_the_next_one_is_made(world: Any) -> None:
    heard = asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await heard.wait()
        await answer.write(b"data: 2\n\n")
        return answer

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call("GET", "/sandboxes/a/events") as answer:
            assert await answer.content.readany() == b"data: 1\n\n"
            heard.set()
            assert await answer.content.readany() == b"data: 2\n\n"
            assert await answer.content.read() == b""


async def test_headers_arrive_before_the_first_byte_of_the_body(world: Any) -> None:
    seen = asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await seen.wait()
        return answer

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call("GET", "/sandboxes/a/events") as answer:
            assert answer.status == 200
            seen.set()
            assert await answer.read() == b""


async def test_an_upload_is_read_while_it_is_sent(world: Any) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(request: web.BaseRequest) -> web.Response:
        async for chunk in request.content.iter_any():
            arrived.put_nowait(chunk)
        return web.Response(text=request.headers["Transfer-Encoding"])

    async def body() -> AsyncIterator[bytes]:
        yield b"one"
        assert await arrived.get() == b"one"
        yield b"two"
        assert await arrived.get() == b"two"

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call("PUT", "/sandboxes/a/files?path=x", "control-a", data=body()) as answer:
            assert await answer.text() == "chunked"


async def test_a_large_upload_of_known_length_keeps_its_length(world: Any) -> None:
    size = 20_000_000

    async def serve(request: web.BaseRequest) -> web.Response:
        total = 0
        async for chunk in request.content.iter_any():
            total += len(chunk)
        return web.json_response([request.headers.get("Content-Length"), total])

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call("PUT", "/sandboxes/a/files", data=b"\xab" * size) as answer:
            assert await answer.json() == [str(size), size]


async def test_a_large_download_waits_for_a_slow_reader(world: Any) -> None:
    sent = 0
    size, piece = 64 * 1024 * 1024, b"x" * 65_536

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse(headers={"Content-Length": str(size)})
        await answer.prepare(request)
        while sent < size:
            await answer.write(piece)
            sent += len(piece)
        return answer

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call("GET", "/sandboxes/a/files") as answer:
            first = await answer.content.readexactly(65_536)
            before = -1
            while before != sent:  # until nobody in between takes any more
                before = sent
                await asyncio.sleep(0.05)
            assert sent < size / 2
            total = len(first)
            async for chunk in answer.content.iter_any():
                total += len(chunk)
            assert total == size


async def test_expecting_clients_are_told_to_continue_only_after_their_token_is_checked(world: Any) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        assert "Expect" not in request.headers
        return web.Response(body=await request.read())

    head = b"PUT /sandboxes/a/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\n"
    async with world() as w:
        await w.sandbox("a", serve)
        reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
        writer.write(head + b"Authorization: Bearer control-a\r\nContent-Length: 4\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert (await reader.read()).endswith(b"\r\n\r\nbody")
        writer.close()
        refused = await w.say(head + b"Authorization: Bearer wrong\r\nContent-Length: 0\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("after", ["request", "first byte", "part of the upload"])
async def test_a_client_that_hangs_up_cancels_what_runs_behind(world: Any, after: str) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        try:
            if after == "first byte":
                await answer.prepare(request)
                await answer.write(b"x")
            if after == "part of the upload":
                assert await request.content.readany() == b"part"
            started.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return answer

    async with world() as w:
        await w.sandbox("a", serve)
        _, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
        head = b"POST /sandboxes/a/tools/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer tools-a\r\n"
        body = b"Content-Length: 100\r\n\r\npart" if after == "part of the upload" else b"Content-Length: 0\r\n\r\n"
        writer.write(head + body)
        await started.wait()
        writer.close()
        async with asyncio.timeout(5):
            await cancelled.wait()
        await w.until_counted('gymbox_proxy_requests_total{kind="sandboxes",status="cancelled"}')


async def listening(stack: contextlib.AsyncExitStack, serve: Any) -> int:
    """The port of a server that does not notice when a client leaves."""
    runner = web.ServerRunner(web.Server(serve), shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


async def test_a_client_that_left_before_its_answer_began_is_no_fault_of_the_sandbox() -> None:
    gone = asyncio.Event()
    told: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def behind(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(3):
            await answer.write(b"x" * 100_000)
        return answer

    async def front(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        await gone.wait()
        destination = Destination(session, f"http://127.0.0.1:{port}", "sandbox 'a'", {}, 100)
        try:
            return await forward(request, Target.parse("/sandboxes/a/x"), destination, "id")
        except Exception as error:
            told.set_result(error)
            raise

    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        port = await listening(stack, behind)
        reader, writer = await asyncio.open_connection("127.0.0.1", await listening(stack, front))
        writer.write(b"GET /sandboxes/a/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        gone.set()
        async with asyncio.timeout(5):
            error = await told
        writer.close()

    assert isinstance(error, Broken) and error.by == "cancelled"


BROKEN = {
    "a length that is not reached": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", b""),
    "chunks without an end": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", b""),
    "no chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", b"zz\r\n"),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_an_answer_that_breaks_off_is_never_a_short_success(world: Any, broken: str, version: str) -> None:
    begun = asyncio.Event()
    begin, end = BROKEN[broken]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        await begun.wait()
        writer.write(end)
        writer.close()

    async with world() as w:
        await w.raw("a", talk)
        reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
        head = f"GET /sandboxes/a/x HTTP/{version}\r\nHost: localhost\r\nAuthorization: Bearer tools-a\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b"short")
        begun.set()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await w.until_counted('gymbox_proxy_requests_total{kind="sandboxes",status="cut"}')


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_client_sees_an_error_for_an_answer_that_is_broken_from_the_start(world: Any, broken: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join(BROKEN[broken]))
        writer.close()

    async with world() as w:
        await w.raw("a", talk)
        try:
            async with w.call("GET", "/sandboxes/a/x") as answer:
                await answer.read()
                assert answer.status == 502
        except aiohttp.ClientError:
            await w.until_counted('gymbox_proxy_requests_total{kind="sandboxes",status="cut"}')


@pytest.mark.parametrize("garbage", [b"", b"\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x00" * 100])
async def test_what_is_no_http_answer_is_a_bad_gateway(world: Any, garbage: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(garbage)
        writer.close()

    async with world() as w:
        await w.raw("a", talk)
        async with w.call("POST", "/sandboxes/a/tools/x") as answer:
            assert (answer.status, (await answer.json())["kind"]) == (502, "unavailable")


async def test_an_answer_before_the_end_of_the_upload_is_passed_on(world: Any) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        return web.Response(status=507, text="disk full")

    async with world() as w:
        await w.sandbox("a", serve)
        reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
        writer.write(
            b"PUT /sandboxes/a/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer control-a\r\n"
            b"Content-Length: 1000000\r\n\r\nfirst"
        )
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 507")
        writer.close()


async def test_a_dropped_route_ends_what_is_in_flight_there(world: Any) -> None:
    started = asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.Response:
        started.set()
        await asyncio.Event().wait()
        return web.Response()

    async with world() as w:
        await w.sandbox("a", serve)
        call = asyncio.create_task(w.call("POST", "/sandboxes/a/tools/x").__aenter__())
        await started.wait()
        del w.routes["a"]
        await w.push()
        answer = await call
        assert answer.status == 502
        answer.release()
