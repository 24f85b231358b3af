"""The table: pushed as a whole, never replaced by an older one, kept while the controller is away."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gymbox.errors import ConfigError, Conflict
from gymbox.proxy import Proxy, ProxySettings
from gymbox_sandbox.lifecycle import Route, RouteTable


def table(version: int, *sandboxes: str) -> RouteTable:
    routes = [
        Route(sandbox=name, socket=f"/nowhere/{name}", tools_token="t" * 64, control_token="c" * 64)
        for name in sandboxes
    ]
    return RouteTable(version=version, routes=routes, admin_token="a" * 64)


async def hello(request: web.BaseRequest) -> web.Response:
    return web.Response(text="hello")


async def test_an_older_table_is_refused_and_changes_nothing(world: Any) -> None:
    async with world() as w:
        await w.proxy.routes.replace(table(5, "new"))
        with pytest.raises(Conflict):
            await w.proxy.routes.replace(table(4, "old"))
        assert w.proxy.routes.table == table(5, "new")


async def test_the_same_table_again_is_fine_and_keeps_connections(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", hello)
        for _ in range(3):
            async with w.call("GET", "/sandboxes/a/x") as answer:
                assert answer.status == 200
            await w.proxy.routes.replace(w.proxy.routes.table)


@pytest.mark.parametrize("over", ["socket", "port"])
async def test_routes_are_pushed_to_the_admin_listener_and_can_be_read_back(tmp_path: Path, over: str) -> None:
    path = tmp_path / "admin.sock"
    settings = (
        ProxySettings(admin_socket=path)
        if over == "socket"
        else ProxySettings.model_validate({"admin_port": 0, "admin_token": "push"})
    )
    async with Proxy(settings) as proxy:
        connector = aiohttp.UnixConnector(str(path)) if over == "socket" else aiohttp.TCPConnector()
        base = "http://proxy" if over == "socket" else f"http://127.0.0.1:{proxy.admin_port}"
        headers = {} if over == "socket" else {"Authorization": "Bearer push"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as client:
            async with client.get(base + "/routes") as answer:
                assert answer.status == 503
            async with client.put(base + "/routes", data=table(7, "a").model_dump_json()) as answer:
                assert answer.status == 200
            async with client.get(base + "/routes") as answer:
                assert RouteTable.model_validate(await answer.json()) == table(7, "a")
            async with client.put(base + "/routes", data=table(6).model_dump_json()) as answer:
                assert (answer.status, (await answer.json())["kind"]) == (409, "conflict")
            async with client.put(base + "/routes", data=b"{}") as answer:
                assert (answer.status, (await answer.json())["kind"]) == (422, "invalid")
            for method, where in (("DELETE", "/routes"), ("GET", "/"), ("GET", "/sandboxes/a/x")):
                async with client.request(method, base + where) as answer:
                    assert answer.status == 404


async def test_the_admin_port_needs_its_own_token() -> None:
    async with Proxy(ProxySettings.model_validate({"admin_port": 0, "admin_token": "push"})) as proxy:
        async with aiohttp.ClientSession() as client:
            for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer \xff"}):
                async with client.put(f"http://127.0.0.1:{proxy.admin_port}/routes", headers=headers) as answer:
                    assert answer.status == 401


async def test_the_public_listener_takes_no_routes(world: Any) -> None:
    async with world() as w:
        await w.push()
        async with w.call("PUT", "/routes", data=table(99).model_dump_json()) as answer:
            assert answer.status == 404


async def test_the_admin_socket_is_for_its_user_and_group_only_and_replaces_a_stale_one(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    for _ in range(2):
        async with Proxy(ProxySettings(admin_socket=path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660


async def test_an_admin_socket_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        async with Proxy(ProxySettings(admin_socket=tmp_path / "none" / "admin.sock")):
            pass


async def test_only_the_admin_token_sees_what_is_counted(world: Any) -> None:
    async with world() as w:
        async with w.call("GET", "/metrics") as answer:
            assert answer.status == 503  # nobody has told this proxy which token that is
        await w.push()
        async with w.client.get(f"{w.url}/metrics") as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        for token, status in (("tools-a", 401), ("gbx_admin_for-tests-only", 200)):
            async with w.call("GET", "/metrics", token) as answer:
                assert answer.status == status
