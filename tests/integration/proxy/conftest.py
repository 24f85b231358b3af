"""A real proxy in front of real servers on unix sockets and TCP ports."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gymbox.proxy import Proxy, ProxySettings
from gymbox.proxy.upstreams import Upstreams
from gymbox_sandbox.lifecycle import Ended, Route, RouteTable
from yarl import URL

ADMIN = "gbx_admin_for-tests-only"
Serve = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass
class World:
    """A proxy, its client, and what is needed to put servers behind it."""

    proxy: Proxy
    client: aiohttp.ClientSession
    directory: Path
    stack: contextlib.AsyncExitStack
    routes: dict[str, Route] = field(default_factory=dict)
    versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def url(self) -> str:
        return self.proxy.url

    @staticmethod
    def bearer(token: str = ADMIN) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, token: str = ADMIN, **options: Any) -> AbstractAsyncContextManager[Any]:
        """A request with a token, its path as it is written here."""
        headers = {**self.bearer(token), **options.pop("headers", {})}
        return self.client.request(
            method, URL(self.url + path, encoded=True), headers=headers, allow_redirects=False, **options
        )

    async def metric(self, line: str) -> float:
        """The value of one line of /metrics, 0.0 where there is none."""
        async with self.call("GET", "/metrics") as answer:
            found = [text.rpartition(" ")[2] for text in (await answer.text()).splitlines() if text.startswith(line)]
        return float(found[0]) if found else 0.0

    async def push(self) -> None:
        table = RouteTable(version=next(self.versions), routes=list(self.routes.values()), admin_token=sha256(ADMIN))
        await self.proxy.routes.replace(table)

    async def sandbox(
        self, name: str, serve: Serve, *, session: str = "", ended: Ended | None = None, tcp: bool = False
    ) -> web.ServerRunner:
        """Put a server behind `/sandboxes/{name}`; its tokens are `tools-{name}` and `control-{name}`."""
        socket = self.directory / f"{name}.sock"
        runner = await self.serve(serve, None if tcp else socket)
        self.routes[name] = Route(
            sandbox=name,
            socket=None if tcp else str(socket),
            address="{}:{}".format(*runner.addresses[0]) if tcp else None,
            session=session,
            tools_token=sha256(f"tools-{name}"),
            control_token=sha256(f"control-{name}"),
            ended=ended,
        )
        await self.push()
        return runner

    async def serve(self, serve: Serve, socket: Path | None) -> web.ServerRunner:
        runner = web.ServerRunner(
            web.Server(serve, auto_decompress=False, handler_cancellation=True), shutdown_timeout=0.1
        )
        await runner.setup()
        self.stack.push_async_callback(runner.cleanup)
        if socket is None:
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        else:
            await web.UnixSite(runner, socket, backlog=4096).start()
        return runner

    async def raw(
        self, name: str, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        """Put a server that writes its own bytes behind `/sandboxes/{name}`."""
        socket = self.directory / f"{name}.sock"
        server = await asyncio.start_unix_server(talk, socket)
        self.stack.callback(server.close)
        self.routes[name] = Route(
            sandbox=name,
            socket=str(socket),
            tools_token=sha256(f"tools-{name}"),
            control_token=sha256(f"control-{name}"),
        )
        await self.push()

    async def until_counted(self, line: str, at_least: float = 1) -> None:
        """Return once a metric is there: an answer is counted after it has been sent."""
        async with asyncio.timeout(5):
            while await self.metric(line) < at_least:
                pass  # each look is a request to the proxy, which gives it its turn

    async def say(self, request: bytes) -> bytes:
        """Everything that the proxy answers to these bytes until it closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        writer.write(request)
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[World]]:
    @contextlib.asynccontextmanager
    async def make(upstreams: type[Upstreams] = Upstreams, **settings: object) -> AsyncIterator[World]:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0),
                    timeout=aiohttp.ClientTimeout(total=60),
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                )
            )
            chosen = ProxySettings(**{"drain": 0.1, **settings})
            proxy = await stack.enter_async_context(Proxy(chosen, upstreams(chosen)))
            yield World(proxy, client, tmp_path, stack)

    return make
