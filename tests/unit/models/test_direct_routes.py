"""Direct routes: faster, and otherwise like every other."""

from __future__ import annotations

import aiohttp
from gymbox.errors import AtCapacity
from gymbox.guard import Guard
from gymbox.models.direct_routes import add_direct_routes
from gymbox.serving import Listener, new_app
from starlette.requests import Request
from starlette.responses import Response


async def test_a_direct_route_answers_and_fails_like_every_other():
    async def sized(request: Request) -> Response:
        body = await request.body()
        if not body:
            raise AtCapacity("nothing to measure", retry_after=2)
        if body == b"bug":
            raise LookupError("a bug")
        return Response(str(len(body)))

    app = new_app("test")
    add_direct_routes(app, {"/size": sized})
    async with Listener(app, Guard()) as direct, aiohttp.ClientSession(direct.url) as session:
        async with session.post("/size", data=b"12345") as answer:
            assert (answer.status, await answer.text()) == (200, "5")
        async with session.post("/size") as answer:
            assert (answer.status, (await answer.json())["kind"]) == (429, "at_capacity")
            assert answer.headers["Retry-After"] == "2"
        async with session.post("/size", data=b"bug") as answer:
            assert answer.status == 500
        async with session.get("/size") as answer:
            assert answer.status == 405
        async with session.get("/openapi.json") as answer:
            assert list((await answer.json())["paths"]["/size"]) == ["post"]
