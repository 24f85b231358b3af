"""A key that a model's endpoint repeats in every way reaches no log, no terminal and no file of the run."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from aiohttp import web

from .conftest import Gymbox

KEY = "canary/7f3a+9d1c=e5b2"
"""Nothing that looks like a token: only that it was given as a secret tells."""
TOKEN = "canary-of-the-admin-81b6"


@asynccontextmanager
async def parrot() -> AsyncIterator[str]:
    """The address of an endpoint that refuses, and says why in far too many words."""

    async def answer(request: web.Request) -> web.Response:
        key = request.headers["Authorization"].removeprefix("Bearer ")
        forms = [key, base64.b64encode(key.encode()).decode(), quote(key, safe=""), TOKEN]
        return web.json_response({"error": {"message": f"I do not like {' or '.join(forms)}"}}, status=401)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}/v1".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


async def test_a_key_that_the_endpoint_repeats_is_written_nowhere(gymbox: Gymbox) -> None:
    gymbox.variables = {"OPENAI_API_KEY": KEY, "GYMBOX_TOKEN": TOKEN}
    async with parrot() as url:
        ended = await gymbox.run(
            "environment=counter",
            "provider=process",
            "model=openai",
            "model.name=m",
            f"model.base_url={url}",
            "runner.limit=1",
            "runner.output=out",
            "-v",
        )

    assert ended.code == 1 and "I do not like" in ended.err
    [line] = gymbox.lines("out")
    assert line["error"]["kind"] == "model_unauthorized" and "I do not like" in line["error"]["detail"]
    written = [ended.out, ended.err, *(path.read_text() for path in (gymbox.folder / "out").iterdir())]
    forms = (KEY, base64.b64encode(KEY.encode()).decode().rstrip("="), quote(KEY, safe=""), TOKEN)
    assert [form for form in forms if any(form in text for text in written)] == []
