"""A model at an address of its own for each rollout, called by clients that agents bring."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from gymbox.http import HttpClient
from gymbox.models import BoundModel
from gymbox.models.capture import Capture
from gymbox.models.chat import ChatModel
from gymbox.models.recorded import RecordedModel
from gymbox.models.rollout_endpoints import RolloutEndpoint, RolloutEndpoints
from gymbox.models.scripted import ScriptedModel
from gymbox.models.trajectories import per_call, rebuilt

from tests.integration.models.vllm_double import vllm_double

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
        within = await http.request(
            "POST",
            f"{one.url}/rollouts/two/v1/responses",
            json={"input": "x"},
            headers={"Authorization": f"Bearer {one.key}"},
        )
        assert within.status == 404
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


async def test_streams_and_messages_of_official_clients_are_recorded_with_their_sampled_ids(
    tmp_path: Path, http: HttpClient
) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    replies: list[Any] = [{"content": "so", "tool_calls": calls}, {"content": "done"}]
    tool: Any = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    async with vllm_double(replies) as double, Capture(tmp_path) as capture:
        model = RecordedModel.of(ChatModel(name="m", base_url=double.url, token_ids=True), capture)
        endpoints = RolloutEndpoints(model, http)
        try:
            claude, gpt = await endpoints.of("claude"), await endpoints.of("gpt")
            messages: list[Any] = [{"role": "user", "content": "hello"}]
            async with anthropic.AsyncAnthropic(base_url=claude.url, api_key=claude.key, max_retries=0) as api:
                async with api.messages.stream(model="m", max_tokens=99, messages=messages, tools=[tool]) as stream:
                    first = await stream.get_final_message()
                assert [block.type for block in first.content] == ["text", "tool_use"]
                result = {"type": "tool_result", "tool_use_id": "c1", "content": "1"}
                messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
                last = await api.messages.create(model="m", max_tokens=99, messages=messages, tools=[tool])
                assert last.content[0].type == "text" and last.content[0].text == "done"
            async with sdk(gpt) as api:
                events = [event async for event in await api.responses.create(model="m", input="hello", stream=True)]
                chunks = [
                    chunk async for chunk in await api.chat.completions.create(model="m", messages=HELLO, stream=True)
                ]
            assert events[-1].type == "response.completed" and chunks[-1].choices
            made = rebuilt((await capture.calls_of("claude"))[0])
            assert made.mask_reason is None and made.main is not None and made.main.calls == [0, 1]
            sampled = [
                id for id, mask in zip(made.main.token_ids or [], made.main.loss_mask or [], strict=True) if mask
            ]
            assert "".join(map(chr, sampled)) == "so<call>f {}</call>\x03done\x03"
            streamed, missing = await capture.calls_of("gpt")
            assert [(call.dialect, call.stream) for call in streamed] == [("responses", True), ("chat", True)]
            assert not missing and [len(each["generation_token_ids"]) for each in per_call(streamed)] == [20, 20]
        finally:
            await endpoints.close()
