"""Many requests at once."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from aiohttp import web
from gymbox.serving import raise_file_limit

MANY = 2000


async def test_two_thousand_requests_in_flight_are_all_answered(world: Any) -> None:
    raise_file_limit()
    waiting, all_here = 0, asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.Response:
        nonlocal waiting
        body = await request.read()
        waiting += 1
        if waiting == MANY:
            all_here.set()
        await all_here.wait()
        return web.Response(body=body)

    async def call(w: Any, number: int) -> None:
        async with w.call("POST", f"/sandboxes/{number % 4}/tools/x", data=str(number).encode()) as answer:
            assert (answer.status, await answer.read()) == (200, str(number).encode())

    async with world() as w:
        for name in range(4):
            await w.sandbox(str(name), serve)
        await asyncio.gather(*(call(w, number) for number in range(MANY)))
        assert await w.metric('gymbox_proxy_requests_total{kind="sandboxes",status="200"}') == MANY


async def test_more_requests_than_connections_to_one_sandbox_wait_their_turn(world: Any) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok")

    async def call(w: Any) -> int:
        async with w.call("POST", "/sandboxes/a/tools/x") as answer:
            await answer.read()
            return int(answer.status)

    async with world(connections_per_sandbox=8) as w:
        await w.sandbox("a", serve)
        assert set(await asyncio.gather(*(call(w) for _ in range(200)))) == {200}


async def test_nothing_is_left_open_after_sandboxes_have_come_and_gone(world: Any) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok")

    async with world() as w:
        before = None
        for number in range(30):
            runner = await w.sandbox(f"s{number}", serve)
            async with w.call("GET", f"/sandboxes/s{number}/x") as answer:
                assert answer.status == 200
            del w.routes[f"s{number}"]
            await w.push()
            await runner.cleanup()
            if number == 4:
                before = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= before
