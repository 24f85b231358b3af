"""A real HTTP server that answers as a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Stub:
    """Plays its answers in turn, the last one for ever, and remembers what it was sent."""

    def __init__(self) -> None:
        self.answers: list[Handler] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.hung_up = asyncio.Event()
        self.arrived = asyncio.Event()
        self.url = ""

    @property
    def calls(self) -> int:
        return len(self.bodies)

    def plays(self, *answers: Handler | dict[str, Any]) -> None:
        self.answers = [_json(each) if isinstance(each, dict) else each for each in answers]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(json.loads(await request.read()))
        self.headers.append(request.headers)
        self.arrived.set()
        handler = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        try:
            return await handler(request)
        except asyncio.CancelledError:
            self.hung_up.set()
            raise


def _json(body: dict[str, Any]) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return handler


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    stub = Stub()
    app = web.Application()
    app.router.add_post("/{path:.*}", stub.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    stub.url = f"http://{host}:{port}/v1"
    yield stub
    await runner.cleanup()
