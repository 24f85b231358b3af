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


async def hello(reader: asyncio.StreamReader, already: bytes, within: float) -> tuple[bytes, str | None]:
    """The first bytes of a TLS connection, and the server's name in them (SNI), if there is one.

    Raises:
        Refused: it is no TLS, is too long, or did not come in time.
    """
    data = already
    try:
        async with asyncio.timeout(within):
            while not (found := _asked_for(data)):
                chunk = await reader.read(CHUNK)
                data += chunk
                if not chunk or len(data) > LONGEST_HELLO:
                    raise Refused("(tls)", "no TLS client is so long, or so short, about its first words", status=400)
    except TimeoutError as error:
        raise Refused("(tls)", f"no TLS client began within {within:g} s", status=408) from error
    return data, found[0]


def _asked_for(data: bytes) -> list[str | None]:
    """The server name that a ClientHello asks for; nothing while it is not whole.

    Raises:
        Refused: this is no TLS.
    """
    found: list[str | None] = []

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        found.append(name)
        return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # that is all we want to know of it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return []
    except ssl.SSLError as error:
        if not found:
            raise Refused("(tls)", "what was sent is no TLS", status=400) from error
    return found


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
        for writer in (client[1], server[1]):
            await closed(writer)


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
    """Close a connection; one that the other side has broken is fine."""
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1)
