"""Servers with the Responses API that are not OpenAI's own: what they leave out, and what they say wrongly."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.events import replayed, whole
from gymbox.models.openai import OpenAIModel
from gymbox.models.server import ModelServer
from gymbox.serving import Listener
from gymbox_sandbox.responses import Response, ResponsesParams

from tests.integration.models.conftest import Stub
from tests.integration.models.test_streams import gathered, plays, told

TOKEN = "gbx_openai_model_tests_only"
PLACES = ("output_index", "content_index", "summary_index", "sequence_number")


def call(id: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "add", "arguments": arguments}


def answer(*items: dict[str, Any], tokens: int = 7, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": tokens, "total_tokens": 5 + tokens}
    return whole({"id": "resp_1", "model": "m", "status": "completed", "output": list(items), "usage": usage, **more})


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
TEXTS = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": text, "annotations": []} for text in ("one", "two")],
}
ANSWER = answer(THOUGHT, TEXTS, call("a", '{"by": 1}'), call("b", '{"by": 2}'))


def model(stub: Stub, **more: Any) -> OpenAIModel:
    return OpenAIModel.model_validate({"name": "m", "base_url": stub.url, "pause": 0.001, **more})


def as_llama_cpp(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of an answer without any place, opened by hardly anything."""
    begun = {"id": body["id"], "object": "response", "status": "in_progress"}
    bare = [{name: value for name, value in event.items() if name not in PLACES} for event in replayed(body)]
    opened = ("response.created", "response.in_progress")
    return [{**event, "response": begun} if event["type"] in opened else event for event in bare]


async def test_events_without_places_make_the_answer_that_a_plain_call_gives(stub: Stub, http: HttpClient) -> None:
    stub.plays(ANSWER, plays(as_llama_cpp(ANSWER), done=False))
    plain = await model(stub).responses(ResponsesParams(input="hello"), Call(http))
    events = await told(model(stub), http)
    assert gathered(events).dump()["output"] == plain.dump()["output"]
    assert all(event["response"].keys() >= whole({}).keys() for event in events[:2]), "clients go on from what it has"
    placed = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert placed == [0, 1, 2, 3]
    assert {
        (event["item_id"], event.get("content_index")) for event in events if event["type"].endswith("text.delta")
    } == {("rs_1", None), ("msg_1", 0), ("msg_1", 1)}


@pytest.mark.parametrize("streamed_items", ["in order", "at once"])
async def test_official_clients_add_up_what_events_without_places_tell(
    streamed_items: str, stub: Stub, http: HttpClient
) -> None:
    events = as_llama_cpp(ANSWER)
    if streamed_items == "at once":
        # both calls begin before either ends
        calls = [event for event in events if "fc_" in json.dumps(event) and "response" not in event]
        *rest, last = [event for event in events if event not in calls]
        ended = [event for event in calls if event["type"].endswith(".done")]
        events = [*rest, *(event for event in calls if event not in ended), *ended, last]
    stub.plays(plays(events, done=False))
    app = ModelServer(model(stub), http).setup_webserver()
    async with Listener(app, Guard(token=TOKEN, takes_api_key=True), drain=1) as listener:
        async with openai.AsyncOpenAI(base_url=f"{listener.url}/v1", api_key=TOKEN, max_retries=0) as api:
            async with api.responses.stream(model="m", input="hello") as stream:
                final = await stream.get_final_response()
            messages: Any = [{"role": "user", "content": "hello"}]
            async with api.chat.completions.stream(model="m", messages=messages) as chunks:
                message = (await chunks.get_final_completion()).choices[0].message
    assert final.output_text == message.content == "onetwo"
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"by": 1}', '{"by": 2}']


@pytest.mark.parametrize("field", ["summary", "content"])
async def test_earlier_reasoning_goes_back_where_the_server_wants_it(field: str, stub: Stub, http: HttpClient) -> None:
    given = [
        THOUGHT,
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {"type": "reasoning", "id": "rs_3", "summary": [], "encrypted_content": "x"},
        {"role": "user", "content": "go on"},
    ]
    stub.plays(ANSWER)
    await model(stub, reasoning_field=field).responses(ResponsesParams.model_validate({"input": given}), Call(http))
    first, *rest, _ = stub.bodies[0]["input"]
    told_as_content = {**THOUGHT, "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert first == (told_as_content if field == "content" else THOUGHT)
    assert rest == given[1:3]


@pytest.mark.parametrize("given", ["request", "default"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_took_all_its_tokens_is_cut_whatever_the_server_says(
    streamed: bool, given: str, stub: Stub, http: HttpClient
) -> None:
    body = answer({**TEXTS, "status": "completed"}, tokens=7)
    stub.plays(plays(list(replayed(body)), done=False) if streamed else body)
    params = {"max_output_tokens": 7}
    asked = model(stub, params=params if given == "default" else {})
    found = await asked_for(asked, http, streamed=streamed, **(params if given == "request" else {}))
    assert (found.status, found.incomplete_details) == ("incomplete", {"reason": "max_output_tokens"})
    assert found.output_text == "onetwo" and found.dump()["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cut_in_the_middle_of_a_thought_is_no_answer(streamed: bool, stub: Stub, http: HttpClient) -> None:
    body = answer(THOUGHT, tokens=7)
    stub.plays(plays(list(replayed(body)), done=False) if streamed else body)
    found = await asked_for(model(stub), http, streamed=streamed, max_output_tokens=7)
    assert (found.status, found.incomplete_details) == ("incomplete", {"reason": "max_output_tokens"})
    assert found.output_text == ""


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("arguments", "tokens", "status"),
    [('{"by": 1}', 7, "completed"), ('{"by": ', 7, "incomplete"), ('{"by": ', 6, "completed")],
)
async def test_a_call_at_the_limit_is_cut_only_where_its_arguments_are_no_object(
    arguments: str, tokens: int, status: str, streamed: bool, stub: Stub, http: HttpClient
) -> None:
    body = answer(call("a", arguments), tokens=tokens)
    stub.plays(plays(list(replayed(body)), done=False) if streamed else body)
    found = await asked_for(model(stub), http, streamed=streamed, max_output_tokens=7)
    assert found.status == status


async def asked_for(asked: OpenAIModel, http: HttpClient, *, streamed: bool, **params: Any) -> Response:
    if streamed:
        return gathered(await told(asked, http, **params))
    return await asked.responses(ResponsesParams.model_validate({"input": "hello", **params}), Call(http))
