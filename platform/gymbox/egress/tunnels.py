"""Tunnels: bytes between a sandbox and one host, once it is sure that they are for that host."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from gymbox.egress.ledger import Refused
from gymbox.network import canonical

CHUNK = 64 * 1024
LONGEST_HELLO = 32 * 1024
"""Bytes in which a TLS client must have said for whom it is."""
IDLE = 600.0
"""Seconds of silence, both ways, after which a tunnel is closed."""


class _Hello(ssl.SSLObject):
    """A handshake that ends once it is known whom the client asks for."""

    asked: str | None = None
    heard: bool = False


def _note(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int:
    assert isinstance(connection, _Hello)
    connection.asked, connection.heard = name, True
    return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # that is all we want to know of it


def _listening() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _Hello
    context.sni_callback = _note
    return context


_LISTENING = _listening()


async def hello(reader: asyncio.StreamReader, already: bytes, within: float) -> tuple[bytes, str | None]:
    """The first bytes of a TLS connection, and the server's name in them (SNI), if there is one.

    Raises:
        Refused: it is no TLS, is too long, or did not come in time.
    """
    incoming = ssl.MemoryBIO()
    handshake = _LISTENING.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    assert isinstance(handshake, _Hello)
    data, chunk = already, already
    try:
        async with asyncio.timeout(within):
            while not _heard(handshake, incoming, chunk):
                chunk = await reader.read(CHUNK)
                data += chunk
                if not chunk or len(data) > LONGEST_HELLO:
                    raise Refused("(tls)", "no TLS client is so long, or so short, about its first words", status=400)
    except TimeoutError as error:
        raise Refused("(tls)", f"no TLS client began within {within:g} s", status=408) from error
    return data, handshake.asked


def _heard(handshake: _Hello, incoming: ssl.MemoryBIO, chunk: bytes) -> bool:
    """Whether a ClientHello is whole with these bytes more.

    Raises:
        Refused: this is no TLS.
    """
    incoming.write(chunk)
    try:
        handshake.do_handshake()
    except ssl.SSLWantReadError:
        return False
    except ssl.SSLError as error:
        if not handshake.heard:
            raise Refused("(tls)", "what was sent is no TLS", status=400) from error
    return handshake.heard


def check_name(host: str, asked: str | None) -> None:
    """
    Raises:
        Refused: TLS is for another name than the connection.
    """
    if asked is not None and canonical(asked) != canonical(host):
        raise Refused(host, f"its TLS asks for {asked!r}")


async def tunnel(
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    first: bytes,
    idle: float = IDLE,
) -> None:
    """Send `first` to the server, then pass bytes on in both directions until both have ended, one fails, or both are
    silent for `idle` seconds. A half that ends is ended on the other side, too. Both are closed."""
    moved = asyncio.Event()
    server[1].write(first)
    halves = [
        asyncio.create_task(_pass_on(client[0], server[1], moved)),
        asyncio.create_task(_pass_on(server[0], client[1], moved)),
    ]
    quiet = asyncio.create_task(_until_quiet(moved, idle))
    try:
        waiting = {quiet, *halves}
        while waiting >= {quiet} and len(waiting) > 1 and not any(half.done() and half.exception() for half in halves):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*halves, quiet):
            task.cancel()
        await asyncio.gather(*halves, quiet, return_exceptions=True)
        await asyncio.gather(closed(client[1]), closed(server[1]))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: asyncio.Event) -> None:
    while chunk := await reader.read(CHUNK):
        moved.set()
        writer.write(chunk)
        await writer.drain()
        moved.set()
    if writer.can_write_eof():
        writer.write_eof()


async def _until_quiet(moved: asyncio.Event, idle: float) -> None:
    with contextlib.suppress(TimeoutError):
        while True:
            moved.clear()
            await asyncio.wait_for(moved.wait(), idle)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection; one that the other side has broken is fine. What it does not take in a second is dropped:
    else its buffer would stay for as long as it likes."""
    writer.close()
    try:
        with contextlib.suppress(OSError, ssl.SSLError):
            async with asyncio.timeout(1):
                await writer.wait_closed()
    finally:
        writer.transport.abort()
