"""Serving: answers to failures, guards and listeners, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI, Request, WebSocket
from gymbox import logs
from gymbox.errors import AtCapacity, ConfigError, SandboxEnded
from gymbox.guard import Guard
from gymbox.serving import Guarded, Listener, new_app, serve
from gymbox_sandbox.lifecycle import Ended
from pydantic import BaseModel

TOKEN = "a-token-for-tests-only"


class Body(BaseModel):
    count: int
    name: str


def an_app() -> FastAPI:
    app = new_app("test")

    @app.get("/problem")
    async def problem() -> None:
        raise AtCapacity("full", retry_after=1.2)

    @app.get("/ended")
    async def ended() -> None:
        raise SandboxEnded(Ended(cause="oom_killed", detail="out of memory"))

    @app.get("/bug")
    async def bug() -> None:
        raise RuntimeError("the secret is 42")

    @app.post("/body")
    async def body(body: Body) -> Body:
        return body

    @app.post("/raw")
    async def raw(request: Request) -> int:
        return len(await request.body())

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    return app


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with Listener(an_app(), Guard(token=TOKEN, body_limit=1000)) as running:
        yield running


async def ask(listener: Listener, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}", **options.pop("headers", {})}
    async with aiohttp.request(method, listener.url + path, headers=headers, **options) as answer:
        return answer.status, await answer.json(content_type=None), answer.headers


async def test_a_problem_is_answered_with_its_status_and_when_to_come_back(listener):
    status, body, headers = await ask(listener, "GET", "/problem")

    assert (status, body["kind"], body["detail"], headers["Retry-After"]) == (429, "at_capacity", "full", "2")
    assert headers["Content-Type"] == "application/problem+json"


async def test_an_ended_sandbox_is_answered_with_its_cause(listener):
    status, body, _ = await ask(listener, "GET", "/ended")

    assert (status, body["ended"]["cause"]) == (410, "oom_killed")


async def test_every_wrong_field_is_named(listener):
    status, body, _ = await ask(listener, "POST", "/body", json={"count": "many"})

    assert (status, {fault["field"] for fault in body["faults"]}) == (422, {"body.count", "body.name"})


async def test_a_bug_is_told_by_an_id_that_is_in_the_log_and_by_nothing_else(listener, caplog):
    status, body, headers = await ask(listener, "GET", "/bug", headers={"X-Request-ID": "r1"})

    assert (status, body["kind"], body["request"], headers["X-Request-ID"]) == (500, "internal", "r1", "r1")
    assert "42" not in str(body)
    assert "the secret is 42" in caplog.text


async def test_what_the_framework_refuses_is_a_problem_too(listener):
    assert (await ask(listener, "GET", "/nowhere"))[1]["kind"] == "not_found"
    status, body, headers = await ask(listener, "DELETE", "/body")
    assert (status, body["kind"], headers["Allow"]) == (405, "invalid", "POST")


async def test_a_body_over_the_limit_is_refused_with_and_without_its_length(listener):
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 500

    assert (await ask(listener, "POST", "/raw", data=b"x" * 1000))[:2] == (200, 1000)
    for data in (b"x" * 1001, chunks()):
        status, body, _ = await ask(listener, "POST", "/raw", data=data)
        assert (status, body["status"]) == (413, 413)


async def test_log_lines_carry_the_rollout_that_a_request_is_for(listener):
    seen: list[dict[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(logs.ids())
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with Listener(app, Guard()) as plain:
        headers = {"X-Gymbox-Rollout": "r1", "X-Request-ID": "q1"}
        async with aiohttp.request("GET", plain.url, headers=headers):
            pass

    assert seen == [{"request": "q1", "rollout": "r1"}]


async def test_a_strange_request_id_is_replaced(listener):
    _, _, headers = await ask(listener, "GET", "/problem", headers={"X-Request-ID": "a b"})

    assert headers["X-Request-ID"] != "a b"


@pytest.mark.parametrize("missing", [{"Authorization": "Bearer no"}, {"Origin": "http://evil"}])
async def test_a_websocket_needs_what_a_request_needs(listener, missing):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{listener.url}/ws", headers=headers) as opened:
            assert await opened.receive_str() == "hello"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{listener.url}/ws", headers=headers | missing)
    assert refused.value.status in (401, 403)


async def test_a_websocket_that_cannot_be_answered_is_closed():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    guarded = Guarded(an_app(), Guard(token=TOKEN))
    scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"localhost")]}
    await guarded(scope, None, send)  # type: ignore[arg-type]

    assert sent[0]["type"] == "websocket.close"


async def test_a_plain_app_that_fails_midway_is_cut_off():
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
            raise RuntimeError("midway")

    async with Listener(fails, Guard()) as listener:
        with pytest.raises(aiohttp.ClientError):
            await ask(listener, "GET", "/")


def connections_to(port: int) -> list[socket.socket]:
    """This process's accepted connections on a port it listens on."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(fd)))
        except OSError:  # no socket, or gone meanwhile
            continue
        try:
            if one.getsockname()[1] == port and one.getpeername():
                found.append(one)
                continue
        except (OSError, IndexError, TypeError):
            pass
        one.close()
    return found


async def test_answers_never_wait_for_the_caller_to_acknowledge_what_went_before(listener):
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{listener.url}/healthz"):
            pass
        [accepted] = connections_to(listener.port)
    with accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.parametrize(
    ("guard", "missing"),
    [(Guard(hosts=("box",)), "token"), (Guard(token=TOKEN), "hosts"), (Guard(token=TOKEN, hosts=("*",)), "hosts")],
)
def test_an_address_that_others_reach_needs_a_token_and_hosts(guard, missing):
    with pytest.raises(ConfigError, match=missing):
        Listener(an_app(), guard, host="0.0.0.0")


async def test_an_address_that_others_reach_can_be_served_with_both():
    async with Listener(an_app(), Guard(token=TOKEN, hosts=("box", "127.0.0.1")), host="0.0.0.0") as listener:
        assert listener.url.startswith("http://127.0.0.1:")
        assert (await ask(listener, "GET", "/problem"))[0] == 429


async def test_a_port_that_is_taken_is_said_plainly():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen on"):
            Listener(an_app(), Guard(), port=taken.getsockname()[1])


async def test_an_app_that_fails_to_start_fails_its_listener():
    async def no_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(ConfigError, match="did not start"):
        async with Listener(no_lifespan, Guard()):
            pass


async def test_an_ipv6_address_is_written_with_brackets():
    async with Listener(an_app(), Guard(), host="::1") as listener:
        assert listener.url.startswith("http://[::1]:")


async def test_serving_ends_with_a_signal_after_what_is_in_flight():
    app = an_app()
    entered, draining = asyncio.Event(), asyncio.Event()

    @app.get("/slow")
    async def slow() -> str:
        entered.set()
        await draining.wait()
        return "done"

    started: asyncio.Future[Listener] = asyncio.get_running_loop().create_future()

    async def drain() -> None:
        draining.set()

    serving = asyncio.create_task(serve(app, Guard(), started=started.set_result, draining=drain))
    listener = await started
    asking = asyncio.create_task(ask(listener, "GET", "/slow"))
    await entered.wait()
    os.kill(os.getpid(), signal.SIGTERM)

    assert (await asking)[:2] == (200, "done")
    await serving


async def test_a_second_signal_ends_it_at_once():
    script = (
        "import asyncio, os, signal\n"
        "from gymbox.serving import *\n"
        "async def main():\n"
        "    async def stuck():\n"
        "        print('draining', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "    await serve(new_app('x'), Guard(), started=lambda _: print('up', flush=True), draining=stuck)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    process.terminate()
    assert await process.stdout.readline() == b"draining\n"
    process.terminate()
    await process.communicate()

    assert process.returncode == 128 + signal.SIGTERM


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
