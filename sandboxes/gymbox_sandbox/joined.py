"""Joined: HTTP answers whose head leaves with the first of their body, in one packet and one wake-up of the client."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gymbox_sandbox.uvicorn_parts import HttpToolsProtocol

LARGEST_COPY = 64 * 1024
"""Bytes of a body that are put behind the head; a larger piece goes by itself, uncopied."""


class JoinedHttp(HttpToolsProtocol):
    """Uvicorn's protocol, which writes an answer's head before it has the body: here it waits for it, until the loop's
    next turn at most."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _Joined(transport, self.loop)))


class _Joined:
    """A transport that holds back what begins as an answer's head does."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self.is_closing = transport.is_closing  # asked for each request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        held, self._held = self._held, b""
        if held and len(data) <= LARGEST_COPY:
            self._transport.write(held + data)
            return
        if held:
            self._transport.write(held)
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)
