"""Callers who speak Chat, before endpoints that take and tell less, or otherwise, than the caller does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models import Model
from gymbox.models.capture import Capture
from gymbox.models.cassettes import recorded_calls
from gymbox.models.chat import ChatModel
from gymbox.models.recorded import RecordedModel
from gymbox.models.server import ModelServer
from gymbox.serving import Listener

from tests.integration.models.conftest import Stub

TOKEN = "gbx_chat_callers_tests_only"
HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
ANSWER: dict[str, Any] = {
    "id": "c1",
    "created": 7,
    "model": "m",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
}


@asynccontextmanager
async def served(model: Model, http: HttpClient) -> AsyncIterator[openai.AsyncOpenAI]:
    app = ModelServer(model, http).setup_webserver()
    async with Listener(app, Guard(token=TOKEN, takes_api_key=True), drain=1) as listener:
        async with openai.AsyncOpenAI(base_url=f"{listener.url}/v1", api_key=TOKEN, max_retries=0) as api:
            yield api


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
