"""Routes: the proxy is told the whole table, one push at a time, until it takes it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gymbox.controller import routes as module
from gymbox.controller.routes import RemoteRoutes, Routes
from gymbox.errors import Conflict, Unauthorized, Unavailable
from gymbox.http import HttpClient
from gymbox_sandbox.lifecycle import Route, RouteTable


def route(sandbox: str) -> Route:
    return Route(sandbox=sandbox, socket="/x", tools_token="t", control_token="c")


@asynccontextmanager
async def pushing(sink: Any, **options: Any) -> AsyncIterator[Routes]:
    routes = Routes(sink, "fingerprint", **options)
    routes.open()
    try:
        yield routes
    finally:
        await routes.close()


async def test_a_route_is_in_once_it_is_taken(table):
    async with pushing(table) as routes:
        version = routes.put(route("s1"))
        assert not routes.has_taken(version)
        await routes.taken(version)
        await routes.taken(version)

        assert [each.sandbox for each in table.tables[-1].routes] == ["s1"]
        assert table.tables[-1].admin_token == "fingerprint"


async def test_many_changes_at_once_are_few_pushes(table):
    async with pushing(table) as routes:
        versions = [routes.put(route(f"s{n}")) for n in range(1000)]
        await routes.taken(versions[-1])

        assert len(table.tables) <= 2
        assert len(table.tables[-1].routes) == 1000


async def test_versions_grow_across_controllers_however_much_the_first_had_to_tell(table):
    async with pushing(table) as routes:
        for n in range(1000):
            version = routes.put(route(f"s{n}"))
        await routes.taken(version)
    async with pushing(table) as routes:
        await routes.taken(routes.put(route("s1")))

    assert [each.version for each in table.tables] == sorted({each.version for each in table.tables})


async def test_a_proxy_that_fails_is_told_again(table):
    table.errors = [Unavailable("down"), OSError("down")]
    async with pushing(table) as routes:
        await routes.taken(routes.put(route("s1")))


async def test_a_proxy_with_a_newer_table_is_given_a_newer_one_still(table):
    table.errors = [Conflict("newer", version=10**17)]
    async with pushing(table) as routes:
        await routes.taken(routes.put(route("s1")))

        assert table.tables[-1].version > 10**17


async def test_who_waits_too_long_is_told_that_the_proxy_does_not_answer(table, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    table.errors = [Unavailable("down")] * 100
    async with pushing(table) as routes:
        with pytest.raises(Unavailable, match="proxy"):
            await routes.taken(routes.put(route("s1")))


async def test_an_unchanged_table_is_sent_again_for_a_proxy_that_was_restarted(table):
    async with pushing(table, refresh=0.01) as routes:
        await routes.taken(routes.put(route("s1")))
        before = len(table.tables)
        async with asyncio.timeout(5):
            while len(table.tables) < before + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_a_proxy_elsewhere_gets_the_table_by_its_admin_socket_also_after_its_restart():
    folder = Path(tempfile.mkdtemp(prefix="gbx"))
    socket, got = str(folder / "admin.sock"), []

    async def put(request: web.Request) -> web.Response:
        got.append(RouteTable.model_validate_json(await request.read()))
        if request.headers.get("Authorization") != "Bearer t":
            return web.json_response({"kind": "unauthorized", "detail": "no"}, status=401)
        return web.json_response({})

    app = web.Application()
    app.router.add_put("/routes", put)
    try:
        async with HttpClient() as http:
            remote = RemoteRoutes(http, socket=socket, token="t")
            for version in (1, 2):
                runner = web.AppRunner(app)
                await runner.setup()
                await web.UnixSite(runner, socket).start()
                await remote.replace(RouteTable(version=version, routes=[route("s1")]))
                if version == 1:
                    with pytest.raises(Unauthorized):
                        await RemoteRoutes(http, socket=socket).replace(RouteTable(version=1, routes=[]))
                await runner.cleanup()
                with pytest.raises(Unavailable):
                    await remote.replace(RouteTable(version=version, routes=[]))
    finally:
        shutil.rmtree(folder)

    assert [table.version for table in got] == [1, 1, 2]
    assert got[0].routes[0].sandbox == "s1"
