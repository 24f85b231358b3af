"""Rollouts in the path of a served model, also behind the proxy; their calls recorded."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from gymbox.http import HttpClient
from gymbox.models.capture import Capture
from gymbox.models.cassettes import RecordedCall, recorded_calls
from gymbox.models.recorded import RecordedModel
from gymbox.models.scripted import ScriptedModel
from gymbox.models.server import ModelServer
from gymbox.proxy import Proxy, ProxySettings
from gymbox.serving import Guard, Listener
from gymbox_sandbox.lifecycle import RouteTable

TOKEN, ADMIN = "gbx_model_tests_only", "gbx_admin_tests-only"


@dataclass
class Served:
    url: str
    proxied: str
    folder: Path
    capture: Capture

    async def recorded(self) -> list[RecordedCall]:
        """All calls so far."""
        await self.capture.calls_of("whatever was handed in before has then been written")
        return list(recorded_calls(self.folder))


@pytest.fixture
async def served(tmp_path: Path, http: HttpClient) -> AsyncIterator[Served]:
    async with Capture(tmp_path) as capture:
        model = RecordedModel.of(ScriptedModel(replies=[[{"content": "hi"}]]), capture)
        app = ModelServer(model, http).setup_webserver()
        async with Listener(app, Guard(token=TOKEN), drain=1) as listener:
            upstream: Any = {"m": {"url": listener.url, "token": TOKEN}}
            async with Proxy(ProxySettings(models=upstream)) as proxy:
                admin = hashlib.sha256(ADMIN.encode()).hexdigest()
                await proxy.routes.replace(RouteTable(version=1, routes=[], admin_token=admin))
                yield Served(listener.url, f"{proxy.url}/models/m", tmp_path, capture)


@pytest.mark.parametrize("prefix", ["/rollouts/r-1", "/ng-rollout/r-1", "/ng-rollout/r-1/training-token-capture"])
async def test_every_call_below_a_rollouts_path_is_recorded_as_its(served: Served, prefix: str) -> None:
    for base, token in ((served.url, TOKEN), (served.proxied, ADMIN)):
        async with openai.AsyncOpenAI(base_url=f"{base}{prefix}/v1", api_key=token, max_retries=0) as api:
            assert (await api.responses.create(model="scripted", input="hello")).output_text == "hi"
            hello: Any = [{"role": "user", "content": "hello"}]
            assert (await api.chat.completions.create(model="scripted", messages=hello)).choices[0].message
            assert [model.id async for model in api.models.list()] == ["scripted"]
    found = [(call.rollout, call.call, call.dialect) for call in await served.recorded()]
    assert found == [("r-1", number, ("responses", "chat")[number % 2]) for number in range(4)]


async def test_no_redirect_leads_out_of_a_rollouts_path(served: Served, http: HttpClient) -> None:
    for prefix in ("/rollouts/r", ""):
        url = f"{served.url}{prefix}/v1/responses/"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = await http.request("POST", url, json={"input": "x"}, headers=headers, retry=False)
        assert answer.status == 404 and "Location" not in answer.headers
    assert not await served.recorded()


async def test_calls_without_a_rollout_are_recorded_too_and_a_path_is_no_way_around_the_token(
    served: Served, http: HttpClient
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0) as api:
        await api.responses.create(model="scripted", input="hello")
    assert [call.rollout for call in await served.recorded()] == [""]
    for path in ("/rollouts/r/v1/responses", "/rollouts/healthz/v1/responses", "/rollouts/r/healthz"):
        assert (await http.request("POST", served.url + path, json={"input": "x"})).status == 401
