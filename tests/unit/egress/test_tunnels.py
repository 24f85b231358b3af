"""The first words of TLS, and connections whose other side does not read."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from gymbox.egress.ledger import Refused
from gymbox.egress.tunnels import closed, hello


def first_words(name: str | None) -> bytes:
    """What a TLS client sends that wants to reach this name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def fed(data: bytes = b"") -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    return reader


async def test_a_name_is_heard_however_the_first_words_are_cut() -> None:
    words = first_words("good.test")
    assert await hello(fed(), words + b"more", 5) == (words + b"more", "good.test")
    assert await hello(fed(words[3:]), words[:3], 5) == (words, "good.test")
    reader = fed()
    hearing = asyncio.create_task(hello(reader, b"", 5))
    for place in range(len(words)):
        reader.feed_data(words[place : place + 1])
        await asyncio.sleep(0)
    assert await hearing == (words, "good.test")


async def test_clients_that_speak_at_once_are_not_taken_for_each_other() -> None:
    names = ("one.test", None, "three.test")
    words = [first_words(name) for name in names]
    readers = [fed(each[:20]) for each in words]
    hearing = [asyncio.create_task(hello(reader, b"", 5)) for reader in readers]
    await asyncio.sleep(0)
    for reader, each in reversed(list(zip(readers, words, strict=True))):
        reader.feed_data(each[20:])
    assert [asked for _, asked in await asyncio.gather(*hearing)] == list(names)


async def test_a_client_that_leaves_before_it_has_said_a_name_is_refused() -> None:
    reader = fed(first_words("good.test")[:20])
    reader.feed_eof()
    with pytest.raises(Refused, match="so short"):
        await hello(reader, b"", 5)


async def test_what_the_other_side_does_not_take_is_dropped() -> None:
    writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: writers.put_nowait(writer), "127.0.0.1", 0)
    reader, client = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1000)
    writer = await writers.get()
    writer.write(b"x" * 50_000_000)
    assert writer.transport.get_write_buffer_size()
    await closed(writer)
    assert not writer.transport.get_write_buffer_size()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(50_000_000)
    client.close()
    server.close()
