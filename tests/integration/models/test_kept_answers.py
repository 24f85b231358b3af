"""`previous_response_id` over HTTP, with the official client: who may go on from what, and where it is kept."""

from typing import Any

import openai
import pytest
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models.chat import ChatModel
from gymbox.models.openai import OpenAIModel
from gymbox.models.response_store import StoreLimits
from gymbox.models.server import ModelServer
from gymbox.serving import Listener

CHAT = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def answers() -> list[dict[str, Any]]:
    return [{**CHAT, "id": f"answer_{number}"} for number in range(5)]


def listener(model: Any, http: HttpClient, kept: StoreLimits | None = None) -> Listener:
    return Listener(ModelServer(model, http, kept).setup_webserver(), Guard(), drain=1)


def client(url: str, rollout: str = "") -> openai.AsyncOpenAI:
    headers = {"X-Gymbox-Rollout": rollout} if rollout else {}
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, default_headers=headers)


async def test_a_caller_goes_on_from_an_earlier_answer(stub: Any, http: HttpClient) -> None:
    stub.plays(*answers())
    async with listener(ChatModel(name="m", base_url=stub.url), http) as served, client(served.url) as api:
        first = await api.responses.create(model="m", input="two and two?")
        second = await api.responses.create(model="m", input="and one more?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert [message["content"] for message in stub.bodies[1]["messages"]] == [
            "two and two?",
            "four",
            "and one more?",
        ]
        assert not {"previous_response_id", "store"} & set(stub.bodies[1])
        assert (await api.responses.retrieve(second.id)).output_text == "four"
        await api.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(second.id)


async def test_a_streamed_answer_is_kept_like_a_plain_one(stub: Any, http: HttpClient) -> None:
    stub.plays(*answers())
    async with listener(ChatModel(name="m", base_url=stub.url), http) as served, client(served.url) as api:
        events = [event async for event in await api.responses.create(model="m", input="2+2?", stream=True)]
        first = events[-1].response  # type: ignore[union-attr]
        again = await api.responses.create(model="m", input="more", previous_response_id=first.id, stream=True)
        last = [event async for event in again][-1].response  # type: ignore[union-attr]
        assert last.previous_response_id == first.id
        assert [message["content"] for message in stub.bodies[1]["messages"]] == ["2+2?", "four", "more"]


async def test_another_rollout_cannot_go_on_from_it(stub: Any, http: HttpClient) -> None:
    stub.plays(*answers())
    async with listener(ChatModel(name="m", base_url=stub.url), http) as served:
        async with client(served.url, "a") as mine, client(served.url, "b") as other:
            first = await mine.responses.create(model="m", input="secret")
            with pytest.raises(openai.NotFoundError, match="own caller and rollout"):
                await other.responses.create(model="m", input="x", previous_response_id=first.id)
            with pytest.raises(openai.NotFoundError):
                await other.responses.retrieve(first.id)
            assert stub.calls == 1


async def test_what_is_not_to_be_stored_is_not_kept(stub: Any, http: HttpClient) -> None:
    stub.plays(*answers())
    async with listener(ChatModel(name="m", base_url=stub.url), http) as served, client(served.url) as api:
        first = await api.responses.create(model="m", input="x", store=False)
        with pytest.raises(openai.NotFoundError, match="no response"):
            await api.responses.create(model="m", input="y", previous_response_id=first.id)
        with pytest.raises(openai.UnprocessableEntityError, match="store"):
            await api.responses.create(model="m", input="x", store="yes")  # type: ignore[call-overload]
    async with listener(ChatModel(name="m", base_url=stub.url), http, StoreLimits(count=0)) as served:
        async with client(served.url) as api:
            first = await api.responses.create(model="m", input="x")
            with pytest.raises(openai.NotFoundError, match="at most 0"):
                await api.responses.retrieve(first.id)


async def test_a_back_end_that_keeps_its_answers_is_asked_itself(stub: Any, http: HttpClient) -> None:
    part = {"type": "output_text", "text": "four", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    stub.plays({"id": "resp_1", "object": "response", "status": "completed", "output": [message]})
    async with listener(OpenAIModel(name="m", base_url=stub.url), http) as served, client(served.url) as api:
        await api.responses.create(model="m", input="x", previous_response_id="resp_0", store=True)
        assert stub.bodies[0]["previous_response_id"] == "resp_0" and stub.bodies[0]["store"] is True
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve("resp_1")
    forgetful = OpenAIModel(name="m", base_url=stub.url, keeps_responses=False)
    async with listener(forgetful, http) as served, client(served.url) as api:
        first = await api.responses.create(model="m", input="x")
        await api.responses.create(model="m", input="y", previous_response_id=first.id)
        assert [item["role"] for item in stub.bodies[-1]["input"]] == ["user", "assistant", "user"]
        assert "previous_response_id" not in stub.bodies[-1]


@pytest.mark.parametrize("rollout", ["x" * 129, "a b", "../r", "r\xe9"])
async def test_a_header_that_names_no_rollout_is_refused_by_name(rollout: str, stub: Any, http: HttpClient) -> None:
    stub.plays(*answers())
    async with listener(ChatModel(name="m", base_url=stub.url), http) as served:
        for path, body in (("responses", {"input": "x"}), ("messages", {"messages": [], "max_tokens": 1})):
            headers = {"X-Gymbox-Rollout": rollout}
            refused = await http.request("POST", f"{served.url}/v1/{path}", json=body, headers=headers)
            assert refused.status == 422 and "X-Gymbox-Rollout" in refused.json()["error"]["message"]
            assert len(refused.body) < 2000
    assert stub.calls == 0


async def test_callers_with_keys_of_their_own_in_x_api_key_do_not_see_each_others_answers(
    stub: Any, http: HttpClient
) -> None:
    stub.plays(*answers())
    async with listener(ChatModel(name="m", base_url=stub.url), http) as served:

        async def ask(key: str, **body: Any) -> Any:
            headers = {"x-api-key": key}
            return await http.request("POST", f"{served.url}/v1/responses", json=body, headers=headers)

        first = (await ask("one", input="secret")).json()["id"]
        assert (await ask("two", input="x", previous_response_id=first)).status == 404
        assert (await ask("one", input="x", previous_response_id=first)).status == 200
