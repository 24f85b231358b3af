"""Models behind the Messages API: what they are sent, and what is made of their answers, whole and streamed."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.events import TERMINAL
from gymbox_sandbox.responses import FunctionCall, Reasoning, ResponsesParams
from pydantic import SecretStr

from tests.integration.models.conftest import Handler, Stub

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}}}
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "text", "text": "adding ü", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"by": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "add", "input": {"by": 2}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 7},
}
TEXT = {**ANSWER, "content": [{"type": "text", "text": '{"a": 1}'}], "stop_reason": "end_turn"}
DELTAS = [
    (
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "c2ln"}],
    ),
    (
        1,
        {"type": "text", "text": "", "citations": None},
        [{"type": "text_delta", "text": piece} for piece in ("add", "ing ü")],
    ),
    (
        2,
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}},
        [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"by"', ": 1}")],
    ),
    (
        3,
        {"type": "tool_use", "id": "toolu_2", "name": "add", "input": {}},
        [{"type": "input_json_delta", "partial_json": '{"by": 2}'}],
    ),
]


def told_of_answer() -> list[dict[str, Any]]:
    usage = {**ANSWER["usage"], "output_tokens": 1}
    begun = {**ANSWER, "content": [], "stop_reason": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, start, deltas in DELTAS:
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": "tool_use", "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": delta, "usage": ANSWER["usage"]}, {"type": "message_stop"}]


def streams(events: list[dict[str, Any]], *, then: asyncio.Event | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
        if then is not None:
            await then.wait()
        return response

    return handler


def refuses(status: int, kind: str, message: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response({"type": "error", "error": {"type": kind, "message": message}}, status=status)

    return handler


def model(stub: Stub, **more: Any) -> AnthropicModel:
    return AnthropicModel(name="claude", base_url=stub.url, api_key=SecretStr("sk-ant-1234"), pause=0.001, **more)


def params(**more: Any) -> ResponsesParams:
    return ResponsesParams.model_validate({"input": "add", "tools": [ADD], **more})


async def gathered(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event async for event in events]


async def test_a_request_is_converted_and_signed_as_the_api_wants(stub: Stub, http: HttpClient) -> None:
    stub.plays(ANSWER)
    asked = model(stub, beta=["a-1", "b-2"], params={"temperature": 0.5, "top_k": 3}, max_tokens=77)
    response = await asked.responses(params(reasoning={"effort": "low"}, tool_choice="required"), Call(http))

    assert stub.bodies == [
        {
            "model": "claude",
            "messages": [{"role": "user", "content": "add"}],
            "max_tokens": 77,
            "temperature": 0.5,
            "top_k": 3,
            "tools": [{"name": "add", "input_schema": ADD["parameters"]}],
            "tool_choice": {"type": "any"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "low"},
        }
    ]
    headers = stub.headers[0]
    assert headers["x-api-key"] == "sk-ant-1234" and "Authorization" not in headers
    assert headers["anthropic-version"] == "2023-06-01" and headers["anthropic-beta"] == "a-1,b-2"
    assert [call.arguments for call in response.function_calls] == ['{"by": 1}', '{"by": 2}']
    assert response.usage is not None and response.usage.input_tokens == 10 and response.usage.total_tokens == 17


async def test_thinking_goes_back_with_its_signature_before_what_followed_it(stub: Stub, http: HttpClient) -> None:
    stub.plays(ANSWER, TEXT)
    asked = model(stub)
    first = await asked.responses(params(), Call(http))
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in first.function_calls
    ]
    history = [{"role": "user", "content": "add"}, *[item.dump() for item in first.output], *results]
    await asked.responses(params(input=history), Call(http))

    said = stub.bodies[1]["messages"][1]["content"]
    assert said[0] == ANSWER["content"][0]
    assert [block["type"] for block in said] == ["thinking", "text", "tool_use", "tool_use"]


async def test_a_streamed_answer_is_the_same_as_the_whole_one(stub: Stub, http: HttpClient) -> None:
    stub.plays(ANSWER, streams(told_of_answer()))
    asked = model(stub)
    whole = await asked.responses(params(), Call(http))
    events = await gathered(asked.stream(params(), Call(http)))

    assert stub.bodies[1]["stream"] is True
    assert [event["type"] in TERMINAL for event in events].count(True) == 1
    last = events[-1]["response"]
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["add", "ing ü"]
    assert last["usage"] == (whole.usage.dump() if whole.usage else None)
    assert [item["type"] for item in last["output"]] == [item.type for item in whole.output]
    for streamed, item in zip(last["output"], whole.output, strict=True):
        if isinstance(item, FunctionCall):
            assert (streamed["call_id"], json.loads(streamed["arguments"])) == (
                item.call_id,
                json.loads(item.arguments),
            )
        elif isinstance(item, Reasoning):
            assert streamed["encrypted_content"] == "thinking:c2ln"


async def test_a_stream_ends_with_its_answer_though_the_line_stays_open(stub: Stub, http: HttpClient) -> None:
    stub.plays(streams(told_of_answer(), then=asyncio.Event()))
    async with asyncio.timeout(30):
        events = await gathered(model(stub).stream(params(), Call(http)))
        passed = await gathered(model(stub).messages_stream({"messages": []}, Call(http)))

    assert events[-1]["type"] == "response.completed" and passed[-1]["type"] == "message_stop"


async def test_closing_a_stream_ends_the_call_at_the_endpoint(stub: Stub, http: HttpClient) -> None:
    stub.plays(streams(told_of_answer()[:5], then=asyncio.Event()))
    events = model(stub).stream(params(), Call(http))
    async for event in events:
        if event["type"] == "response.output_item.added":
            break
    await events.aclose()  # type: ignore[attr-defined]

    await asyncio.wait_for(stub.hung_up.wait(), 30)


ERROR = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down, sk-ant-1234"}}


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (told_of_answer()[:6], "model_unavailable"),
        ([*told_of_answer()[:6], ERROR], "model_rate_limited"),
        ([*told_of_answer()[:6], {"type": "content_block_delta", "index": 9}], "model_bad_response"),
    ],
)
async def test_a_stream_that_breaks_off_ends_with_one_failure(
    stub: Stub, http: HttpClient, events: list[dict[str, Any]], kind: str
) -> None:
    stub.plays(streams(events))
    told = await gathered(model(stub).stream(params(), Call(http)))

    assert [event["type"] in TERMINAL for event in told].count(True) == 1
    error = told[-1]["response"]["error"]
    assert told[-1]["type"] == "response.failed" and error["code"] == kind and "sk-ant" not in error["message"]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (told_of_answer()[:6], "overloaded_error"),
        ([*told_of_answer()[:6], ERROR], "rate_limit_error"),
        ([*told_of_answer()[:6], {"type": "error", "error": "odd"}], "overloaded_error"),
    ],
)
async def test_a_passed_stream_that_breaks_off_ends_with_one_error(
    stub: Stub, http: HttpClient, events: list[dict[str, Any]], kind: str
) -> None:
    stub.plays(streams(events))
    told = await gathered(model(stub).messages_stream({"messages": []}, Call(http)))

    assert told[0]["type"] == "message_start"
    assert told[-1]["type"] == "error" and told[-1]["error"]["type"] == kind
    assert "sk-ant" not in told[-1]["error"]["message"]


async def test_a_passed_stream_must_begin_as_one(stub: Stub, http: HttpClient) -> None:
    stub.plays(streams([{"type": "message_delta", "delta": {}}]))
    with pytest.raises(ModelFailure, match="not message_start") as failure:
        await gathered(model(stub).messages_stream({"messages": []}, Call(http)))
    assert failure.value.rollout_kind is ErrorKind.MODEL_BAD_RESPONSE
    stub.plays(streams([{"type": "ping"}]))
    with pytest.raises(ModelFailure, match="in mid-answer"):
        await gathered(model(stub).messages_stream({"messages": []}, Call(http)))


async def test_an_endpoint_that_does_not_stream_is_replayed(stub: Stub, http: HttpClient) -> None:
    stub.plays(ANSWER)
    events = await gathered(model(stub).stream(params(), Call(http)))
    passed = await gathered(model(stub).messages_stream({"messages": []}, Call(http)))

    assert events[-1]["type"] == "response.completed"
    assert [event["type"] for event in passed].count("content_block_start") == 4
    assert passed[-1]["type"] == "message_stop"


async def test_a_messages_request_is_sent_on_as_it_is(stub: Stub, http: HttpClient) -> None:
    stub.plays(ANSWER, streams(told_of_answer()))
    asked = model(stub, params={"temperature": 0.5, "max_output_tokens": 9})
    body = {
        "model": "served",
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "add"}],
        "container": "c",
        "temperature": 1,
        "stream": False,
        "top_k": None,
    }
    answer = await asked.messages(body, Call(http))
    events = await gathered(asked.messages_stream(body, Call(http)))

    expected = {name: value for name, value in body.items() if name not in ("stream", "top_k")}
    assert stub.bodies[0] == expected | {"model": "claude", "max_tokens": 9}
    assert stub.bodies[1] == stub.bodies[0] | {"stream": True}
    assert answer == ANSWER
    assert events == told_of_answer()


async def test_json_that_was_asked_for_is_checked_in_every_way_of_asking(stub: Stub, http: HttpClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    asked = model(stub)
    body = {"messages": [], "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    wanted = params(text={"format": {"type": "json_schema", "name": "a", "schema": schema}}, tools=[])
    events = [
        {"type": "message_start", "message": {**TEXT, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": TEXT["content"][0]},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    stub.plays(TEXT)
    for answer in (asked.responses(wanted, Call(http)), asked.messages(body, Call(http))):
        with pytest.raises(ModelFailure, match="did not enforce it"):
            await answer
    stub.plays(streams(events))
    streamed = await gathered(asked.stream(wanted, Call(http)))
    passed = await gathered(asked.messages_stream(body, Call(http)))
    assert streamed[-1]["response"]["error"]["code"] == "model_bad_response"
    assert passed[-1]["type"] == "error" and "did not enforce it" in passed[-1]["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", ErrorKind.MODEL_REFUSED_REQUEST),
        (401, "authentication_error", ErrorKind.MODEL_UNAUTHORIZED),
        (413, "request_too_large", ErrorKind.MODEL_REFUSED_REQUEST),
        (429, "rate_limit_error", ErrorKind.MODEL_RATE_LIMITED),
        (529, "overloaded_error", ErrorKind.MODEL_UNAVAILABLE),
    ],
)
async def test_each_refusal_has_its_kind(
    stub: Stub, http: HttpClient, status: int, kind: str, expected: ErrorKind
) -> None:
    stub.plays(refuses(status, kind, "because"))
    with pytest.raises(ModelFailure, match="because") as failure:
        await model(stub).responses(params(), Call(http))
    assert failure.value.rollout_kind is expected


async def test_an_answer_that_makes_no_sense_is_asked_for_again(stub: Stub, http: HttpClient) -> None:
    stub.plays({**ANSWER, "stop_reason": None}, ANSWER)
    response = await model(stub).responses(params(), Call(http))
    assert stub.calls == 2 and response.status == "completed"


async def test_tokens_are_counted_by_the_endpoint(stub: Stub, http: HttpClient) -> None:
    stub.plays({"input_tokens": 12}, {"tokens": 12})
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True, "model": "served"}

    assert await model(stub).count_tokens(body, Call(http)) == 12
    assert stub.bodies == [{"model": "claude", "messages": body["messages"]}]
    stub.plays({"tokens": 12})
    with pytest.raises(ModelFailure, match="a count of tokens has input_tokens"):
        await model(stub).count_tokens(body, Call(http))


async def test_what_cannot_be_asked_is_refused_before_anything_is_sent(stub: Stub, http: HttpClient) -> None:
    with pytest.raises(Invalid, match="top_logprobs"):
        await model(stub).responses(params(top_logprobs=3), Call(http))
    assert stub.calls == 0
