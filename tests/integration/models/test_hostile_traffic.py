"""Hostile traffic: callers and endpoints that send what nobody should, against served models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from aiohttp import web
from gymbox.errors import ErrorKind, Gone
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.chat import ChatModel
from gymbox.models.events import Event
from gymbox.models.openai import OpenAIModel
from gymbox.models.scripted import ScriptedModel
from gymbox.models.server import ModelServer
from gymbox.serving import Listener
from gymbox_sandbox.responses import Response, ResponsesParams

from tests.integration.models.conftest import Handler, Stub

TOKEN = "gbx_hostile_tests_only"
SECRET = "sk-repeated-by-the-endpoint"
ASKED: dict[str, dict[str, Any]] = {
    "/responses": {"input": "hi"},
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}
KINDS: dict[str, type[ChatModel | OpenAIModel | AnthropicModel]] = {
    "chat": ChatModel,
    "responses": OpenAIModel,
    "messages": AnthropicModel,
}
BEGUN: dict[str, dict[str, Any]] = {
    "chat": {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]},
    "responses": {"type": "response.created", "response": {"id": "r", "output": []}},
    "messages": {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {}}},
}


def model(kind: str, stub: Stub, **more: Any) -> Model:
    given = {"name": "m", "base_url": stub.url, "pause": 0.001, "api_key": SECRET, **more}
    return KINDS[kind].model_validate(given)


@asynccontextmanager
async def served(model: Model, http: HttpClient) -> AsyncIterator[str]:
    async with Listener(ModelServer(model, http).setup_webserver(), Guard(token=TOKEN), drain=1) as listener:
        yield f"{listener.url}/v1"


async def asked(http: HttpClient, url: str, body: Any) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    answer = await http.request("POST", url, data=data, headers=headers, retry=False)
    return answer.status, answer.body.decode()


def streams(*events: Any) -> Handler:
    async def play(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        return response

    return play


SAYS_THE_KEY = {
    "error": {"type": "error", "message": SECRET, "error": {"code": "x", "message": SECRET}},
    "failed": {"type": "response.failed", "response": {"error": {"code": "x", "message": SECRET}}},
    "no object": [SECRET],
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(("kind", "name"), [*product(KINDS, ["error", "no object"]), ("responses", "failed")])
async def test_a_key_that_is_repeated_on_the_way_is_masked(
    name: str, kind: str, path: str, stub: Stub, http: HttpClient
) -> None:
    stub.plays(streams(BEGUN[kind], SAYS_THE_KEY[name]))
    async with served(model(kind, stub), http) as url:
        status, text = await asked(http, url + path, {**ASKED[path], "stream": True})
    assert status == 200 and "error" in text and SECRET not in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "messages"])
async def test_a_request_that_cannot_be_converted_is_the_callers_fault_streamed_and_plain(
    kind: str, stream: bool, stub: Stub, http: HttpClient
) -> None:
    body = {"input": [{"type": "item_reference", "id": "x"}], "stream": stream}
    async with served(model(kind, stub), http) as url:
        status, text = await asked(http, f"{url}/responses", body)
    assert status == 422 and "item_reference" in json.loads(text)["detail"] and not stub.calls


class Ended(Model):
    """Its rollout has ended."""

    name: str = "ended"

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        raise Gone("it has ended")

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        yield await self.responses(params, call)  # type: ignore[misc]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_ends_a_call_before_its_answer_has_its_own_status(
    path: str, stream: bool, http: HttpClient
) -> None:
    async with served(Ended(), http) as url:
        status, _ = await asked(http, url + path, {**ASKED[path], "stream": stream})
    assert status == 410


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_nested_deeper_than_it_could_be_sent_on_is_refused(
    kind: str, path: str, stub: Stub, http: HttpClient
) -> None:
    deep = b"[" * 300 + b"]" * 300
    async with served(model(kind, stub), http) as url:
        status, text = await asked(http, url + path, json.dumps({**ASKED[path], "x": 0}).encode()[:-2] + deep + b"}")
    assert status == 422 and "nested" in json.loads(text)["detail"]


@pytest.mark.parametrize(
    ("path", "field", "wrong"),
    [
        ("/chat/completions", "stream", "false"),
        ("/chat/completions", "stream_options", 5),
        ("/messages", "stream", 1),
    ],
)
async def test_how_an_answer_is_delivered_is_not_guessed(path: str, field: str, wrong: Any, http: HttpClient) -> None:
    async with served(ScriptedModel(replies=[[{"content": "hi"}]]), http) as url:
        status, text = await asked(http, url + path, {**ASKED[path], field: wrong})
    assert status == 422 and json.loads(text)["detail"].startswith(f"{field}:")


def chunk(**choice: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {}, **choice}]}


UNREADABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": ("chat", {"choices": 5}),
    "a choice": ("chat", {"choices": ["x"]}),
    "an index": ("chat", chunk(index={})),
    "a delta": ("chat", chunk(delta="x")),
    "calls": ("chat", chunk(delta={"tool_calls": [5]})),
    "a call's index": ("chat", chunk(delta={"tool_calls": [{"index": []}]})),
    "log-probs": ("chat", chunk(logprobs=5)),
    "token ids": ("chat", chunk(token_ids=1)),
    "no type": ("responses", {"output_index": 0}),
    "a type": ("responses", {"type": ["response.completed"]}),
    "an item": ("responses", {"type": "response.output_item.added", "output_index": 0, "item": 5}),
    "no place": ("responses", {"type": "response.output_text.delta", "item_id": "nowhere", "delta": "x"}),
    "a part": ("responses", {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": 5}),
    "a text": ("responses", {"type": "response.output_text.delta", "output_index": 0, "delta": [5]}),
    "usage": ("responses", {"type": "response.in_progress", "response": {"usage": {"input_tokens": "many"}}}),
    "a response": ("responses", {"type": "response.in_progress", "response": {"output": [5]}}),
    "details": (
        "responses",
        {
            "type": "response.completed",
            "response": {"output": [{"type": "reasoning"}], "usage": {"input_tokens_details": {"cached_tokens": []}}},
        },
    ),
    "parts": (
        "responses",
        {
            "type": "response.completed",
            "response": {
                "output": [{"role": "assistant", "content": [{"type": "output_text", "text": "a", "logprobs": 1}]}]
            },
        },
    ),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("name", UNREADABLE)
async def test_an_event_that_cannot_be_read_is_a_bad_response(
    name: str, path: str, first: bool, stub: Stub, http: HttpClient
) -> None:
    kind, event = UNREADABLE[name]
    stub.plays(streams(event) if first else streams(BEGUN[kind], event))
    async with served(model(kind, stub), http) as url:
        status, text = await asked(http, url + path, {**ASKED[path], "stream": True})
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if status == 200:
        last = told[-1]
        error = last["response"]["error"] if path == "/responses" else last["error"]
        assert ErrorKind.MODEL_BAD_RESPONSE in (error.get("code"), error.get("rollout_kind")) or (
            path == "/messages" and error["type"] == "api_error"
        )
    else:
        assert status == 502 and json.loads(text)["rollout_kind"] == ErrorKind.MODEL_BAD_RESPONSE


async def test_half_a_surrogate_pair_in_a_stream_is_replaced_as_in_a_whole_answer(
    stub: Stub, http: HttpClient
) -> None:
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    stub.plays(
        streams(
            BEGUN["messages"],
            {"type": "content_block_start", "index": 0, "content_block": block},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": '{"a": "\ud800"}'},
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        )
    )
    async with served(model("messages", stub), http) as url:
        status, text = await asked(http, f"{url}/responses", {"input": "hi", "stream": True})
    assert status == 200 and "response.completed" in text and '{\\"a\\": \\"?\\"}' in text


async def test_a_key_that_is_cut_in_a_failures_text_is_masked(stub: Stub, http: HttpClient) -> None:
    async def says(_: web.Request) -> web.StreamResponse:
        return web.Response(text="x" * 180 + SECRET, content_type="text/html")

    stub.plays(says)
    async with served(model("chat", stub), http) as url:
        status, text = await asked(http, url + "/responses", ASKED["/responses"])
    assert status == 502 and "xx***" in text and SECRET[:12] not in text


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}])
async def test_a_call_without_arguments_has_none(arguments: dict[str, Any], stub: Stub, http: HttpClient) -> None:
    stub.plays({"output": [{"type": "message", "role": "assistant", "content": "hi"}]})
    call = {"type": "function_call", "call_id": "a", "name": "f", **arguments}
    body = {"input": [call, {"type": "function_call_output", "call_id": "a", "output": "x"}]}
    async with served(model("responses", stub, keeps_responses=False), http) as url:
        status, text = await asked(http, f"{url}/responses", body)
    if arguments:
        assert status == 422 and "arguments" in text
    else:
        assert status == 200 and stub.bodies[0]["input"][0]["arguments"] == "{}"
