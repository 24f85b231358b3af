"""Callers who speak Chat, before endpoints that take and tell less, or otherwise, than the caller does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gymbox.http import HttpClient
from gymbox.models.capture import Capture
from gymbox.models.cassettes import recorded_calls
from gymbox.models.chat import ChatModel
from gymbox.models.openai import OpenAIModel
from gymbox.models.recorded import RecordedModel

from tests.integration.models.conftest import Stub
from tests.integration.models.openai_callers import served

HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
ANSWER: dict[str, Any] = {
    "id": "c1",
    "created": 7,
    "model": "m",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
}


def chat(stub: Stub) -> ChatModel:
    return ChatModel(name="m", base_url=stub.url, pause=0.001)


# --- a history as every endpoint takes it


async def strict(request: web.Request) -> web.StreamResponse:
    """As endpoints whose templates parse the arguments of earlier calls, and that take no empty arrays."""
    body = json.loads(await request.read())
    if body.get("tools") == [] or (not body.get("tools") and "tool_choice" in body):
        return web.json_response({"error": {"message": "no tools"}}, status=400)
    for message in body["messages"]:
        calls = message.get("tool_calls", ["left out"])
        if not calls or (message["role"] == "assistant" and calls == ["left out"] and message["content"] is None):
            return web.json_response({"error": {"message": "nothing said"}}, status=400)
        for call in calls if calls != ["left out"] else []:
            try:
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
            except (ValueError, TypeError, AssertionError):
                return web.json_response({"error": {"message": "arguments"}}, status=400)
    return web.json_response(ANSWER)


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "a", "content": "no such arguments"}
    return [HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, result]


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"by": 1}', {"by": 1}),
        ('{"by": ', {"invalid_arguments": '{"by": '}),
        ("[1]", {"invalid_arguments": "[1]"}),
        ("", {}),
        ({"by": 1}, {"by": 1}),
    ],
)
async def test_a_malformed_call_does_not_make_every_later_request_fail(
    written: Any, sent: Any, stub: Stub, http: HttpClient, tmp_path: Path
) -> None:
    stub.plays(strict)
    asked: Any = called(written)
    async with Capture(tmp_path) as capturing, served(RecordedModel.of(chat(stub), capturing), http) as api:
        found = await api.chat.completions.create(model="m", messages=asked)
        streamed = await api.chat.completions.create(model="m", messages=asked, stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in streamed if chunk.choices]
    assert found.choices[0].message.content == "ok" == "".join(filter(None, pieces))
    for body in stub.bodies:
        assert json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"]) == sent
    # the record has what the model wrote
    assert [call.request["messages"] for call in recorded_calls(tmp_path)] == [asked, asked]


@pytest.mark.parametrize(
    "said",
    [
        {"content": "hi", "tool_calls": []},
        {"content": None, "tool_calls": []},
        {"content": None, "tool_calls": None, "refusal": None},
        {"refusal": "no", "content": "", "tool_calls": []},
    ],
)
async def test_no_empty_array_reaches_an_endpoint(said: Any, stub: Stub, http: HttpClient) -> None:
    stub.plays(strict)
    messages: Any = [HELLO, {"role": "assistant", **said}, HELLO]
    async with served(chat(stub), http) as api:
        await api.chat.completions.create(model="m", messages=messages, tools=[], tool_choice="auto")
    assert stub.bodies[0]["messages"][1].get("content") == (said["content"] or "")
    assert stub.bodies[0].keys() == {"messages", "model"}


@pytest.mark.parametrize("calls", ["nonsense", [1], [{"id": "a", "function": "add"}], [{"function": {}}]])
async def test_calls_that_are_nonsense_are_the_endpoints_to_refuse(calls: Any, stub: Stub, http: HttpClient) -> None:
    stub.plays(ANSWER)
    messages: Any = [HELLO, {"role": "assistant", "tool_calls": calls}]
    async with served(chat(stub), http) as api:
        await api.chat.completions.create(model="m", messages=messages)
    assert stub.bodies[0]["messages"] == messages


# --- citations


CITED: dict[str, Any] = {"url": "https://example.org/a", "title": "A", "start_index": 0, "end_index": 2}


async def test_a_responses_caller_reads_the_citations_of_a_chat_endpoint(stub: Stub, http: HttpClient) -> None:
    message = {"role": "assistant", "content": "ok", "annotations": [{"type": "url_citation", "url_citation": CITED}]}
    stub.plays({**ANSWER, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    async with served(chat(stub), http) as api:
        found: Any = await api.responses.create(model="m", input="hello")
        [cited] = found.output[0].content[0].annotations
        again = await api.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    assert cited.model_dump() == {"type": "url_citation", **CITED}
    assert again.choices[0].message.annotations is not None
    assert again.choices[0].message.annotations[0].url_citation.model_dump() == CITED


async def test_a_chat_caller_reads_the_citations_of_a_responses_endpoint(stub: Stub, http: HttpClient) -> None:
    flat = {"type": "url_citation", **CITED}
    file = {"type": "file_citation", "file_id": "f", "filename": "f.txt", "index": 1}
    parts = [
        {"type": "output_text", "text": "One. ", "annotations": []},
        {"type": "output_text", "text": "ok", "annotations": [flat, file]},
    ]
    said = {"id": "m1", "type": "message", "role": "assistant", "status": "completed", "content": parts}
    stub.plays(
        {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [said]}
    )
    async with served(OpenAIModel(name="m", base_url=stub.url), http) as api:
        found = await api.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
        chunks = await api.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        deltas: Any = [chunk.choices[0].delta async for chunk in chunks if chunk.choices]
    message = found.choices[0].message
    assert message.content == "One. ok" and message.annotations is not None
    cited = message.annotations[0].url_citation
    # of the whole text, which is in one piece now
    assert (cited.url, cited.start_index, cited.end_index) == (CITED["url"], 5, 7)
    assert message.content[cited.start_index : cited.end_index] == "ok"
    assert message.annotations[1].model_dump(exclude_unset=True) == file
    [streamed] = [delta.annotations for delta in deltas if getattr(delta, "annotations", None)]
    assert streamed[0]["url_citation"] == cited.model_dump()
