"""A model at an address of its own for each rollout, called by clients that agents bring."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from gymbox.http import HttpClient
from gymbox.models import BoundModel
from gymbox.models.capture import Capture
from gymbox.models.recorded import RecordedModel
from gymbox.models.rollout_endpoints import RolloutEndpoint, RolloutEndpoints
from gymbox.models.scripted import ScriptedModel

GOLD: list[Any] = [[{"content": "from the row"}]]
HELLO: Any = [{"role": "user", "content": "hello"}]


def sdk(endpoint: RolloutEndpoint, key: str | None = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=key or endpoint.key, max_retries=0)


async def test_calls_of_the_official_client_are_recorded_as_the_rollouts(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capture:
        endpoints = RolloutEndpoints(RecordedModel.of(ScriptedModel(), capture), http)
        try:
            bound = BoundModel(ScriptedModel(), http, rollout="r-1", gold=GOLD, endpoints=endpoints)
            endpoint = await bound.endpoint()
            assert await bound.endpoint() == endpoint and endpoint.key not in repr(endpoint)
            async with sdk(endpoint) as api:
                answer = await api.responses.create(model=endpoint.model, input="hello")
                chat = await api.chat.completions.create(model=endpoint.model, messages=HELLO)
            assert answer.output_text == chat.choices[0].message.content == "from the row"
            calls, missing = await capture.calls_of("r-1")
            assert [(call.dialect, call.call) for call in calls] == [("responses", 0), ("chat", 1)] and not missing
            await bound.close()
            async with sdk(endpoint) as api:
                with pytest.raises(openai.APIStatusError) as ended:
                    await api.responses.create(model=endpoint.model, input="hello")
            assert ended.value.status_code == 410
        finally:
            await endpoints.close()
            await endpoints.close()


async def test_a_key_opens_its_own_rollout_only_and_nothing_answers_without(http: HttpClient) -> None:
    endpoints = RolloutEndpoints(ScriptedModel(), http)
    try:
        one, two = await asyncio.gather(endpoints.of("one", GOLD), endpoints.of("two", GOLD))
        assert one.key != two.key and one.url != two.url
        for key in (two.key, "gbx_key_other"):
            async with sdk(one, key) as api:
                with pytest.raises(openai.AuthenticationError):
                    await api.responses.create(model="scripted", input="hello")
        bare = await http.request("POST", f"{one.url.split('/rollouts')[0]}/v1/responses", json={"input": "x"})
        assert bare.status == 401
        with_x_api_key = await http.request(
            "POST", f"{one.base_url}/responses", json={"input": "x"}, headers={"x-api-key": one.key}
        )
        assert with_x_api_key.status == 200
    finally:
        await endpoints.close()


async def test_a_rollout_without_shared_endpoints_gets_a_server_of_its_own_and_ends_it(http: HttpClient) -> None:
    bound = BoundModel(ScriptedModel(), http, rollout="alone", gold=GOLD)
    await bound.close()
    endpoint = await bound.endpoint()
    async with sdk(endpoint) as api:
        assert (await api.responses.create(model="scripted", input="hello")).output_text == "from the row"
    await bound.close()
    async with sdk(endpoint) as api:
        with pytest.raises(openai.APIConnectionError):
            await api.responses.create(model="scripted", input="hello")
