"""A sandbox with `network: models` reaches the proxy's models, by a key that it never sees, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gymbox.egress import ways
from gymbox.egress.ways import ModelsAt
from gymbox.proxy import Proxy, ProxySettings
from gymbox_sandbox.lifecycle import Route, RouteTable, fingerprint

KEY, ADMIN = "gbx_sbx_models-of-this-one", "admin-token"


@pytest.fixture
async def model() -> AsyncIterator[str]:
    """A model server that tells what it was asked, and streams where it is told to."""

    async def echo(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/stream"):
            stream = web.StreamResponse()
            await stream.prepare(request)
            for number in range(3):
                await stream.write(f"data: {number}\n\n".encode())
                await asyncio.sleep(0.01)
            return stream
        return web.json_response(
            {"path": request.path, "headers": dict(request.headers), "body": await request.text()}
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def proxy(model: str) -> AsyncIterator[Proxy]:
    models = {"small": {"url": f"{model}/small", "token": "provider-secret"}, "judge": {"url": f"{model}/judge"}}
    settings = ProxySettings.model_validate({"models": models, "agents": {"loop": model}})
    async with Proxy(settings) as proxy:
        await proxy.routes.replace(table(1, KEY))
        yield proxy


def table(version: int, key: str) -> RouteTable:
    route = Route(sandbox="one", tools_token="0", control_token="0", models_token=fingerprint(key) if key else "")
    return RouteTable(version=version, routes=[route], admin_token=fingerprint(ADMIN))


def post(path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: models", "Content-Length: 2", *headers]
    return "\r\n".join([*lines, "", "{}"]).encode()


def told(answer: bytes) -> dict[str, Any]:
    return dict(json.loads(answer.partition(b"\r\n\r\n")[2]))


async def test_the_endpoint_leads_to_the_proxys_models_and_needs_no_key_inside(world: Any, proxy: Proxy) -> None:
    sandbox = await world(models=ModelsAt(url=proxy.url, key=KEY))
    for path in ("/v1/chat/completions", "/models/small/v1/chat/completions"):
        found = told(
            await sandbox.said(post(path, "Authorization: Bearer added-outside", "x-api-key: mine"), "models")
        )
        assert found["path"] == "/small/v1/chat/completions" and found["body"] == "{}"
        assert found["headers"]["Authorization"] == "Bearer provider-secret" and KEY not in str(found)


async def test_an_answer_that_is_streamed_comes_as_it_is(world: Any, proxy: Proxy) -> None:
    sandbox = await world(models=ModelsAt(url=proxy.url, key=KEY))
    answer = await sandbox.said(post("/v1/stream"), "models")
    assert b"data: 0" in answer and b"data: 2" in answer


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/models/judge/v1/responses", b"404"),
        ("/models/none/v1/responses", b"404"),
        ("/agents/loop/run", b"404"),
        ("/sandboxes/one/exec", b"404"),
        ("/metrics", b"404"),
        ("/models/../sandboxes/one/exec", b"400"),
        ("/models/%2e%2e/sandboxes/one/exec", b"400"),
        ("http://good.test/v1/", b"404"),
    ],
)
async def test_nothing_of_the_proxy_but_its_models_is_reached(
    world: Any, proxy: Proxy, path: str, status: bytes
) -> None:
    sandbox = await world(models=ModelsAt(url=proxy.url, key=KEY))
    assert (await sandbox.said(post("/v1/responses"), "models")).startswith(b"HTTP/1.1 200 ")
    assert (await sandbox.said(post(path), "models")).split(b" ")[1] == status


async def test_no_host_is_reached_where_only_models_are(world: Any, proxy: Proxy) -> None:
    sandbox = await world(models=ModelsAt(url=proxy.url, key=KEY))
    for asked in (
        b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
        b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n",
    ):
        assert (await sandbox.said(asked)).split(b" ")[1] == b"403"
    assert sandbox.places.dialled == [] and sandbox.ledger.refused == 2


async def test_a_sandbox_without_models_reaches_none(world: Any, proxy: Proxy) -> None:
    sandbox = await world("good.test")
    assert b"this sandbox has no models" in await sandbox.said(post("/v1/responses"), "models")


async def test_the_key_opens_models_of_a_live_sandbox_only(world: Any, proxy: Proxy) -> None:
    sandbox = await world(models=ModelsAt(url=proxy.url, key=KEY))
    assert b" 200 " in await sandbox.said(post("/v1/responses"), "models")
    await proxy.routes.replace(table(2, ""))
    assert b" 401 " in await sandbox.said(post("/v1/responses"), "models")


async def test_a_proxy_that_does_not_answer_is_told_as_that(world: Any) -> None:
    sandbox = await world(models=ModelsAt(url="http://127.0.0.1:9", key=KEY))
    answer = await sandbox.said(post("/v1/responses"), "models")
    assert answer.startswith(b"HTTP/1.1 502 ") and b"what has the models does not answer" in answer


async def test_calls_may_be_led_to_one_model_and_then_reach_no_other(world: Any, proxy: Proxy, model: str) -> None:
    sandbox = await world(models=ModelsAt(url=proxy.url, key=KEY))
    sandbox.ways.lead_models(ModelsAt(url=f"{model}/rollouts/one", key="rollout-key", one=True))
    found = told(await sandbox.said(post("/v1/responses"), "models"))
    assert found["path"] == "/rollouts/one/v1/responses" and found["headers"]["Authorization"] == "Bearer rollout-key"
    assert (await sandbox.said(post("/models/small/v1/responses"), "models")).startswith(b"HTTP/1.1 404 ")


async def test_the_certificates_that_are_trusted_are_read_once(
    world: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ssl.SSLContext] = []

    def trusting() -> ssl.SSLContext:
        context = default(cafile=certificate)
        context.check_hostname = False  # the stub's certificate has names alone
        made.append(context)
        return context

    default = ssl.create_default_context
    monkeypatch.setattr("gymbox.egress.ways.ssl.create_default_context", trusting)
    ways._trusted.cache_clear()
    sandbox = await world(models=ModelsAt(url="http://127.0.0.1:9", key=KEY))
    secure = f"https://127.0.0.2:{sandbox.places.ports[443]}"
    sandbox.ways.lead_models(ModelsAt(url=secure, key=KEY, one=True))
    for _ in range(3):
        assert told(await sandbox.said(post("/v1/responses"), "models"))["line"] == "POST /v1/responses HTTP/1.1"
    assert len(made) == 1
    ways._trusted.cache_clear()


async def test_calls_without_an_answer_are_counted_until_one_is_answered(world: Any, model: str) -> None:
    sandbox = await world(models=ModelsAt(url="http://127.0.0.1:9", key=KEY))
    told_at_once: list[int | None] = []
    sandbox.ledger.tell = lambda: told_at_once.append(sandbox.ledger.models_unanswered)
    assert sandbox.ledger.report()["models_unanswered"] is None
    for count in (1, 2):
        assert b" 502 " in await sandbox.said(post("/v1/responses"), "models")
        assert sandbox.ledger.models_unanswered == count
    sandbox.ways.lead_models(ModelsAt(url=model, key=KEY, one=True))
    assert b" 404 " in await sandbox.said(post("/models/other/v1/responses"), "models")  # this is no call of a model
    assert sandbox.ledger.models_unanswered == 2
    assert b" 200 " in await sandbox.said(post("/v1/responses"), "models")
    assert sandbox.ledger.models_unanswered == 0 and told_at_once == [1, 0]


async def test_an_answer_that_breaks_off_is_none_unless_it_is_the_client_that_left(world: Any) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 100_000)
        arrived.set()
        await go_on.wait()
        with contextlib.suppress(OSError):
            for _ in range(100):
                writer.write(b"x" * 100_000)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    there = ModelsAt(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", key=KEY, one=True)
    sandbox = await world(models=there)
    _, leaving = await asyncio.open_connection("127.0.0.1", sandbox.ports.models)
    leaving.write(post("/v1/responses"))
    await arrived.wait()
    leaving.transport.abort()
    go_on.set()
    await asyncio.gather(*sandbox.ways._open)
    assert not sandbox.ledger.models_unanswered
    assert b" 200 " in await sandbox.said(post("/v1/responses"), "models")
    assert sandbox.ledger.models_unanswered == 1
    server.close()
