"""The controller's REST API, over HTTP."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import aiohttp
import pytest
from gymbox.client import ControllerClient
from gymbox.controller.settings import ControllerSettings
from gymbox.errors import AtCapacity, Conflict, Gone, Invalid, NotFound
from gymbox_sandbox.lifecycle import CreateSandbox
from gymbox_sandbox.problems import MEDIA_TYPE


async def test_a_hundred_identical_posts_at_once_make_one_sandbox(client, controller):
    request = CreateSandbox(id="s1", environment="counter")
    views = await asyncio.gather(*(client.create(request) for _ in range(100)))

    assert {view.id for view in views} == {"s1"}
    assert [view.id for view in await client.sandboxes()] == ["s1"]
    assert controller.sandboxes.containers == 1


async def test_the_life_of_a_sandbox_over_http(client: ControllerClient):
    made = await client.create(CreateSandbox(id="s1", environment="counter", labels={"team": "a"}))
    assert (made.status, made.provider, made.image) == ("ready", "process", None)
    assert made.phases.ready is not None

    shown = await client.get("s1")
    assert (shown.tokens, shown.url) == (made.tokens, made.url)
    assert [view.tokens for view in await client.sandboxes(labels={"team": "a"})] == [None]
    assert await client.sandboxes(labels={"team": "b"}) == []
    assert await client.sandboxes(environment="weather") == []
    assert (await client.renew("s1", 500)).expires_at > shown.expires_at + 400
    assert isinstance(await client.logs("s1"), str)

    await client.delete("s1")
    await client.delete("s1")
    assert (await client.get("s1")).ended.cause == "deleted"
    with pytest.raises(Gone):
        await client.renew("s1")
    with pytest.raises(Gone):
        await client.create(CreateSandbox(id="s1", environment="counter"))
    for call in (client.get("s2"), client.delete("s2"), client.renew("s2"), client.logs("s2")):
        with pytest.raises(NotFound):
            await call


async def test_who_does_not_wait_is_answered_at_once_with_202(controller_url, token, client, http):
    answer = await http.request(
        "POST",
        f"{controller_url}/sandboxes",
        json={"id": "s1", "environment": "counter", "wait": False},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status == 202
    assert answer.json()["status"] in ("queued", "starting")
    assert (await client.create(CreateSandbox(id="s1", environment="counter"))).status == "ready"
    with pytest.raises(Conflict):
        await client.create(CreateSandbox(id="s1", environment="counter", lease=7))


async def test_the_end_can_be_waited_for(client):
    await client.create(CreateSandbox(id="s1", environment="counter"))
    waiting = asyncio.create_task(client.get("s1", wait_ended=30))
    assert (await client.get("s1", wait_ended=0.01)).ended is None
    await client.delete("s1")

    assert (await waiting).ended.cause == "deleted"


async def test_environments_are_listed_and_shown(client):
    assert {"counter", "weather"} <= {manifest.name for manifest in await client.environments()}
    shown = await client.environment("counter", prepare=True)
    assert shown.hidden_fields == ["expected_count"]
    assert shown.provider.startswith("process provider") and (shown.versions, shown.prepared, shown.base) == (
        {},
        None,
        None,
    )
    with pytest.raises(NotFound, match="did you mean 'counter'"):
        await client.environment("countre")
    with pytest.raises(NotFound, match="did you mean 'counter'"):
        await client.create(CreateSandbox(environment="countre"))


class TestFull:
    @pytest.fixture
    def controller_settings(self) -> ControllerSettings:
        return ControllerSettings(port=0, max_sandboxes=1)

    async def test_when_all_places_are_taken_it_says_when_to_come_back(self, client, controller_url, token, http):
        await client.create(CreateSandbox(id="s1", environment="counter"))
        answer = await http.request(
            "POST",
            f"{controller_url}/sandboxes",
            json={"environment": "counter"},
            headers={"Authorization": f"Bearer {token}"},
            retry=False,
        )
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")

    async def test_the_client_waits_for_a_place(self, client, counter):
        async def use(id: str) -> str:
            async with client.sandbox(counter, id=id) as sandbox:
                return str(sandbox.id)

        assert await asyncio.gather(use("s1"), use("s2")) == ["s1", "s2"]

    async def test_a_client_without_patience_is_refused(self, client, counter, controller_url, token, http):
        impatient = ControllerClient(controller_url, token, http, patience=0)
        async with client.sandbox(counter):
            with pytest.raises(AtCapacity):
                async with impatient.sandbox(counter):
                    pass


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic Z2J4"}, 401),
        ({"Authorization": "{token}", "Host": "evil.example"}, 403),
        ({"Authorization": "{token}", "Host": "evil.example:8710"}, 403),
        ({"Authorization": "{token}", "Origin": "http://evil.example"}, 403),
        ({"Authorization": "{token}", "Origin": "null"}, 403),
        ({"Authorization": "{token}", "Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ({"Authorization": "{token}", "Origin": "http://localhost:1", "Host": "localhost:1"}, 200),
        ({"Origin": "http://localhost:1", "Host": "localhost:1"}, 401),
        ({"Authorization": "{token}"}, 200),
        ({"Authorization": "{token}", "Host": "localhost:1"}, 200),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/sandboxes"), ("POST", "/sandboxes"), ("DELETE", "/sandboxes/s1"), ("GET", "/metrics")],
)
async def test_who_may_call(controller_url, token, method, path, headers, status):
    headers = {name: value.replace("{token}", f"Bearer {token}") for name, value in headers.items()}
    async with aiohttp.request(method, controller_url + path, headers=headers) as answer:
        body: Any = await answer.json() if answer.status >= 400 else None

    if status == 200:  # it got past the guard
        assert answer.status in (200, 404, 422)
    else:
        assert answer.status == status
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert body["kind"] in ("unauthorized", "forbidden")


async def test_a_websocket_upgrade_is_guarded_too(controller_url, token):
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"Authorization": f"Bearer {token}", "Origin": "http://evil.example"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{controller_url}/sandboxes", headers=headers)
            assert refused.value.status in (401, 403)


async def test_health_readiness_and_docs_are_open_but_metrics_are_not(controller_url, token, controller):
    async with aiohttp.ClientSession() as session:
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            async with session.get(controller_url + path) as answer:
                assert answer.status == 200
        async with session.get(f"{controller_url}/openapi.json") as answer:
            assert "/sandboxes/{id}/renew" in (await answer.json())["paths"]
        async with session.get(f"{controller_url}/metrics", headers={"Authorization": f"Bearer {token}"}) as answer:
            assert "gymbox_containers" in await answer.text()
        await controller.sandboxes.drain()
        async with session.get(f"{controller_url}/readyz") as answer:
            assert answer.status == 503


async def test_the_document_of_the_api_tells_its_token_and_every_refusal(controller_url):
    async with aiohttp.request("GET", f"{controller_url}/openapi.json") as answer:
        document: Any = await answer.json()

    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/sandboxes"]["post"]["security"] == [{"token": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]
    refusals = document["paths"]["/sandboxes"]["post"]["responses"]
    assert {"401", "403", "404", "409", "410", "422", "429", "503"} <= set(refusals)
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    assert all(refusals[status]["content"] == {MEDIA_TYPE: problem} for status in refusals if status >= "400")
    assert "404" in document["paths"]["/sandboxes/{id}"]["get"]["responses"]
    assert "HTTPValidationError" not in str(document)


async def test_the_page_of_the_api_and_all_that_it_loads_come_from_the_controller_itself(controller_url):
    async with aiohttp.ClientSession(controller_url) as session:
        async with session.get("/docs") as answer:
            page, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
        types = {}
        for path in loaded:
            async with session.get(path) as answer:
                assert answer.status == 200, path
                types[path] = answer.content_type
                content = await answer.read()
            if path.endswith("bundle.js"):
                assert b"SwaggerUIBundle" in content and len(content) > 500_000

    assert "//" not in re.sub(r"<!--.*?-->|//.*", "", page, flags=re.DOTALL) and "default-src 'self'" in policy
    assert types == {
        "/docs/swagger-ui-bundle.js": "text/javascript",
        "/docs/swagger-ui.css": "text/css",
        "/docs/favicon.png": "image/png",
        "/openapi.json": "application/json",
    }


async def test_the_page_of_the_api_says_where_the_document_is_where_no_script_runs(controller_url):
    async with aiohttp.request("GET", f"{controller_url}/docs") as answer:
        page = await answer.text()

    assert '<div id="swagger-ui"><p>' in page and '<a href="/openapi.json">' in page


async def test_every_faulty_field_of_a_request_is_named(controller_url, token, http):
    answer = await http.request(
        "POST",
        f"{controller_url}/sandboxes",
        json={"id": "a/b", "environment": "counter", "lease": -1, "privileged": True, "image": "evil"},
        headers={"Authorization": f"Bearer {token}"},
    )
    faults = {fault["field"] for fault in answer.json()["faults"]}

    assert answer.status == 422
    assert faults == {"body.id", "body.lease", "body.privileged", "body.image"}
    with pytest.raises(Invalid):
        answer.raise_for_status()


@pytest.mark.parametrize(
    ("query", "told"),
    [("status=bogus", "'queued', 'starting', 'ready', 'paused' or 'ended'"), ("label=x", "name=value")],
)
async def test_a_list_of_sandboxes_by_what_there_is_not_is_refused_with_what_there_is(
    controller_url, token, http, query, told
):
    headers = {"Authorization": f"Bearer {token}"}
    answer = await http.request("GET", f"{controller_url}/sandboxes?{query}", headers=headers)
    assert answer.status == 422 and told in answer.json()["detail"]


async def test_an_answer_carries_the_id_of_its_request(controller_url, token):
    headers = {"Authorization": f"Bearer {token}", "X-Request-ID": "abc.1"}
    async with aiohttp.request("GET", f"{controller_url}/sandboxes", headers=headers) as answer:
        assert answer.headers["X-Request-ID"] == "abc.1"
