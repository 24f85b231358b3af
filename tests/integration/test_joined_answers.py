"""Joined answers: a head leaves with its body, is never held for long, and arrives whole and in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gymbox.guard import Guard
from gymbox.serving import Listener
from gymbox_sandbox.joined import LARGEST_COPY, JoinedHttp

SLOW = 0.3


async def app(scope: Any, receive: Any, send: Any) -> None:
    """`/plain`: one body; `/slow`: a body after a while; `/large`: one that is sent uncopied; `/none`: 204."""
    if scope["type"] != "http":
        return
    path = scope["path"]
    body = {"/plain": b"whole", "/slow": b"late", "/large": b"x" * (LARGEST_COPY + 1), "/none": b""}[path]
    headers = [] if path == "/none" else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 204 if path == "/none" else 200, "headers": headers})
    if path == "/slow":
        await asyncio.sleep(SLOW)
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with Listener(app, Guard(), drain=1) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        yield reader, writer
        writer.close()


def asked(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def answered(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head, await reader.readexactly(int(length or 0))


@pytest.mark.parametrize(("path", "size"), [("/plain", 5), ("/slow", 4), ("/large", LARGEST_COPY + 1), ("/none", 0)])
async def test_an_answer_arrives_whole(connection, path, size):
    reader, writer = connection
    writer.write(asked(path))
    head, body = await answered(reader)
    assert head.startswith(b"HTTP/1.1 20")
    assert len(body) == size


async def test_answers_to_requests_that_came_at_once_keep_their_order(connection):
    reader, writer = connection
    writer.write(asked("/plain") + asked("/none") + asked("/large") + asked("/plain", "HEAD") + asked("/plain"))
    sizes = [len((await answered(reader))[1]) for _ in range(3)]
    head = await reader.readuntil(b"\r\n\r\n")  # of HEAD: a length, and no body
    assert b"content-length: 5" in head.lower()
    assert sizes == [5, 0, LARGEST_COPY + 1]
    assert (await answered(reader))[1] == b"whole"


async def test_a_head_does_not_wait_for_a_body_that_takes_its_time(connection):
    reader, writer = connection
    loop = asyncio.get_running_loop()
    writer.write(asked("/slow"))
    await reader.readuntil(b"\r\n\r\n")
    head = loop.time()
    await reader.readexactly(4)
    assert loop.time() - head > SLOW / 2


class Written(asyncio.Transport):
    """A transport that notes what is written to it."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closed = True
        self.get_extra_info("socket").close()

    def is_closing(self) -> bool:
        return self.closed


async def test_head_and_body_are_one_piece_and_a_head_alone_goes_with_the_close():
    import uvicorn
    from uvicorn.server import ServerState

    config = uvicorn.Config(app, http=JoinedHttp, log_config=None)
    config.load()
    protocol, transport = JoinedHttp(config, ServerState(), {}), Written()
    protocol.connection_made(transport)
    for piece in (b"HTTP/1.1 200 OK\r\n\r\n", b"body", b"more", b"HTTP/1.1 204 No Content\r\n\r\n"):
        protocol.transport.write(piece)
    protocol.transport.close()
    assert transport.pieces == [b"HTTP/1.1 200 OK\r\n\r\nbody", b"more", b"HTTP/1.1 204 No Content\r\n\r\n"]
    assert transport.closed and protocol.transport.is_closing()
