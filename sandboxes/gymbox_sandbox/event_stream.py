"""Event stream: an answer of server-sent events, whose end is always said."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.problems import Problem


class EventStream[Event](Response):
    """What `events` yields, as `framed` writes it; where it raises a Problem, that is the last event (`error`)."""

    def __init__(self, first: Event, events: AsyncGenerator[Event], framed: Callable[[Event], bytes]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._framed = framed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):  # which ends what it tells of, if that is how it was made
            with contextlib.suppress(ClientDisconnect):
                await unless_hung_up(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_event(send, self._framed(self._first))
        try:
            async for event in self._events:
                await _send_event(send, self._framed(event))
        except Problem as problem:
            await _send_event(send, frame("error", json.dumps(problem.to_wire())))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": event, "more_body": True})


def frame(name: str, data: str) -> bytes:
    """One event; `data` has no line break."""
    return f"event: {name}\ndata: {data}\n\n".encode()
