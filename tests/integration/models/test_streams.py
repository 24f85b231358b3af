"""Streams: real ones, from endpoints on loopback, as the official client sees them and as a model gives them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import openai
import pytest
from aiohttp import web
from gymbox.errors import ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.chat import ChatModel
from gymbox.models.events import TERMINAL, Gathered, replayed, whole
from gymbox.models.openai import OpenAIModel
from gymbox_sandbox.responses import Response, ResponsesParams

from tests.integration.models.conftest import Stub
from tests.integration.models.openai_callers import TOKEN, served
from tests.integration.models.vllm_double import vllm_double

HELLO: Any = [{"role": "user", "content": "hello"}]
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": "Let me add.",
    "reasoning_content": "They want sums.",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"by": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"by": 2}'}},
    ],
}
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
Play = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": "c1",
        "created": 7,
        "model": "m",
        "object": "chat.completion",
        "choices": [choice],
        "usage": USAGE,
        **more,
    }


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "created": 7, "model": "m", "object": "chat.completion.chunk", "choices": [choice], **more}


LAST = {**chunk({}), "choices": [], "usage": USAGE}


def chunks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """In pieces of three characters; later pieces of a call leave its id out."""
    found = [chunk({"role": "assistant", "content": ""})]
    for name in ("reasoning_content", "content", "refusal"):
        found += [chunk({name: piece}) for piece in pieces(message.get(name) or "")]
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        found.append(chunk({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}))
        for piece in pieces(function["arguments"]):
            found.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    return [*found, chunk({}, "tool_calls" if message.get("tool_calls") else "stop"), LAST]


def pieces(text: str) -> list[str]:
    return [text[place : place + 3] for place in range(0, len(text), 3)]


def plays(events: list[dict[str, Any]], *, done: bool = True, then: str = "end") -> Play:
    """Sends each event as soon as it can; `then` ends, breaks off, or holds the line until the caller hangs up."""

    async def play(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            named = f"event: {event['type']}\r\n" if "type" in event else ""
            data = f"{named}data: {json.dumps(event)}\r\n\r\n".encode()
            # cut in the middle of a line, wherever that is
            await response.write(data[: len(data) // 2])
            await response.write(data[len(data) // 2 :])
        if done:
            await response.write(b"data: [DONE]\n\n")
        if then == "hold":
            await asyncio.Event().wait()
        if then == "break":
            assert request.transport is not None
            request.transport.abort()
        return response

    return play


def chat(stub: Stub, **more: Any) -> ChatModel:
    return ChatModel.model_validate({"name": "m", "base_url": stub.url, "pause": 0.001, **more})


def responses(stub: Stub, **more: Any) -> OpenAIModel:
    return OpenAIModel.model_validate({"name": "m", "base_url": stub.url, "pause": 0.001, **more})


async def told(model: Model, http: HttpClient, **params: Any) -> list[dict[str, Any]]:
    asked = ResponsesParams.model_validate({"input": "hello", **params})
    async with asyncio.timeout(60), aclosing(cast(Any, model.stream(asked, Call(http)))) as events:
        return [event async for event in events]


def without_ids(response: Response) -> dict[str, Any]:
    dumped = {name: value for name, value in response.dump().items() if value is not None}
    dumped["output"] = [{name: value for name, value in item.items() if name != "id"} for item in dumped["output"]]
    return dumped


def gathered(events: list[dict[str, Any]]) -> Response:
    found = Gathered()
    for event in events:
        found.add(event)
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [events[-1]["type"]]
    return found.response()


MESSAGES = {
    "calls": MESSAGE,
    "text": {"role": "assistant", "content": "hi"},
    "thoughts in tags": {"role": "assistant", "content": "<think>hm, so </think>\n\nhi there"},
    "only thoughts": {"role": "assistant", "content": "<think>hm, so"},
    "no thought": {"role": "assistant", "content": "<thin air"},
    "refusal": {"role": "assistant", "content": None, "refusal": "I will not"},
    "nothing": {"role": "assistant", "content": ""},
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_chat_endpoints_stream_makes_the_answer_that_a_plain_call_gives(
    name: str, stub: Stub, http: HttpClient
) -> None:
    stub.plays(answer(MESSAGES[name]), plays(chunks_of(MESSAGES[name])))
    plain = await chat(stub).responses(ResponsesParams(input="hello"), Call(http))
    events = await told(chat(stub), http)
    assert without_ids(gathered(events)) == without_ids(plain)
    assert stub.bodies[1]["stream"] is True and stub.bodies[1]["stream_options"] == {"include_usage": True}
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == plain.output_text.removesuffix("\n") or name == "refusal"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(item["id"] for item in done) == sorted(str(item.id) for item in gathered(events).output)  # type: ignore[union-attr]


async def test_a_responses_endpoints_stream_passes_through_as_it_comes(stub: Stub, http: HttpClient) -> None:
    items = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "x",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "a",
            "name": "add",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ]
    body = whole({"id": "resp_1", "model": "m", "status": "completed", "output": items, "usage": {"input_tokens": 1}})
    stub.plays(body, plays([{**event, "sequence_number": 7} for event in replayed(body)], done=False))
    plain = await responses(stub).responses(ResponsesParams(input="hello"), Call(http))
    events = await told(responses(stub), http)
    assert gathered(events).dump()["output"] == plain.dump()["output"]
    assert all("sequence_number" not in event for event in events)


async def test_items_that_are_told_only_on_the_way_are_in_the_answer(stub: Stub, http: HttpClient) -> None:
    body = whole({"id": "r", "model": "m", "output": [{"type": "message", "role": "assistant", "content": "hi"}]})
    *events, last = replayed(body)
    stub.plays(plays([*events, {**last, "response": {**body, "output": []}}], done=False))
    assert gathered(await told(responses(stub), http)).output_text == "hi"


ENDINGS: dict[str, dict[str, Any]] = {
    "the line stays open after the end": {"then": "hold"},
    "no [DONE]": {"done": False},
    "it breaks off after the end": {"done": False, "then": "break"},
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_an_answer_ends_with_its_terminal_event_whatever_the_line_does(
    dialect: str, ending: str, stub: Stub, http: HttpClient
) -> None:
    body = whole({"id": "r", "model": "m", "output": [{"type": "message", "role": "assistant", "content": "hi"}]})
    sent = chunks_of({"content": "hi"}) if dialect == "chat" else list(replayed(body))
    stub.plays(plays(sent, **ENDINGS[ending]))
    model = chat(stub) if dialect == "chat" else responses(stub)
    assert gathered(await told(model, http)).output_text == "hi"
    if ENDINGS[ending].get("then") == "hold":
        async with asyncio.timeout(30):
            await stub.hung_up.wait()


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("then", ["end", "break"])
async def test_an_answer_that_breaks_off_fails_once_by_its_kind(
    dialect: str, then: str, stub: Stub, http: HttpClient
) -> None:
    body = whole({"id": "r", "model": "m", "output": [{"type": "message", "role": "assistant", "content": "hi"}]})
    sent = chunks_of({"content": "hello"})[:2] if dialect == "chat" else list(replayed(body))[:4]
    stub.plays(plays(sent, done=False, then=then))
    events = await told(chat(stub) if dialect == "chat" else responses(stub), http)
    assert [event["type"] for event in events if event["type"] in TERMINAL] == ["response.failed"]
    error = events[-1]["response"]["error"]
    assert error["code"] == ErrorKind.MODEL_UNAVAILABLE and "'m'" in error["message"]
    with pytest.raises(ModelFailure) as raised:
        gathered(events)
    assert raised.value.rollout_kind is ErrorKind.MODEL_UNAVAILABLE
    assert stub.calls == 1


TOLD: dict[str, tuple[str, list[dict[str, Any]], ErrorKind]] = {
    "chat: an error on the way": (
        "chat",
        [chunk({"content": "a"}), {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}],
        ErrorKind.MODEL_RATE_LIMITED,
    ),
    "chat: no finish that is known": (
        "chat",
        [chunk({"content": "a"}), chunk({}, "exploded"), LAST],
        ErrorKind.MODEL_BAD_RESPONSE,
    ),
    "responses: an error on the way": (
        "responses",
        [*list(replayed({"output": []}))[:2], {"type": "error", "code": "server_error", "message": "oh"}],
        ErrorKind.MODEL_UNAVAILABLE,
    ),
    "responses: failed": (
        "responses",
        [
            *list(replayed({"output": []}))[:2],
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "no"}}},
        ],
        ErrorKind.MODEL_RATE_LIMITED,
    ),
    "responses: completed without output": (
        "responses",
        [*list(replayed({"output": []}))[:2], {"type": "response.completed", "response": {"output": []}}],
        ErrorKind.MODEL_BAD_RESPONSE,
    ),
}


@pytest.mark.parametrize("name", TOLD)
async def test_a_failure_that_the_endpoint_tells_of_on_the_way_has_its_kind(
    name: str, stub: Stub, http: HttpClient
) -> None:
    dialect, sent, kind = TOLD[name]
    stub.plays(plays(sent))
    events = await told(chat(stub) if dialect == "chat" else responses(stub), http)
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["error"]["code"] == kind


async def test_json_that_was_asked_for_and_did_not_come_fails_the_stream(stub: Stub, http: HttpClient) -> None:
    wanted: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object", "required": ["n"]}}
    stub.plays(plays(chunks_of({"content": "prose"})))
    events = await told(chat(stub), http, text={"format": wanted})
    assert events[-1]["response"]["error"]["code"] == ErrorKind.MODEL_BAD_RESPONSE


@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_an_endpoint_that_does_not_stream_is_understood(dialect: str, stub: Stub, http: HttpClient) -> None:
    body = whole({"id": "r", "model": "m", "output": [{"type": "message", "role": "assistant", "content": "hi"}]})
    stub.plays(answer({"role": "assistant", "content": "hi"}) if dialect == "chat" else body)
    events = await told(chat(stub) if dialect == "chat" else responses(stub), http)
    assert gathered(events).output_text == "hi"


async def test_calls_that_share_an_index_are_told_apart_by_their_ids(stub: Stub, http: HttpClient) -> None:
    def piece(**call: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [call]})

    sent = [
        piece(index=0, id="a", function={"name": "add", "arguments": "{"}),
        piece(index=0, function={"arguments": "}"}),
        piece(index=0, id="b", function={"name": "sub", "arguments": "{"}),
        piece(index=0, id="b", function={"arguments": "}"}),
        piece(function={"name": "mul", "arguments": "{}"}),
    ]
    stub.plays(plays([*sent, chunk({}, "tool_calls"), LAST]))
    events = await told(chat(stub), http)
    calls = gathered(events).function_calls
    assert [(call.name, call.arguments) for call in calls] == [("add", "{}"), ("sub", "{}"), ("mul", "{}")]
    assert [call.call_id for call in calls][:2] == ["a", "b"] and calls[2].call_id


async def test_a_streamed_answer_keeps_its_token_ids(http: HttpClient) -> None:
    async with vllm_double([{"content": "ab"}]) as double:
        model = ChatModel.model_validate({"name": "m", "base_url": double.url, "token_ids": True})
        plain = await model.responses(ResponsesParams(input="hello"), Call(http))
        streamed = gathered(await told(model, http))
    assert streamed.dump()["output"][-1]["generation_token_ids"] == plain.dump()["output"][-1]["generation_token_ids"]
    assert without_ids(streamed)["output"] == without_ids(plain)["output"]


# --- through the server


@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_text_arrives_while_the_model_still_speaks_and_a_hang_up_ends_its_call(
    dialect: str, stub: Stub, http: HttpClient
) -> None:
    body = whole({"id": "r", "model": "m", "output": [{"type": "message", "role": "assistant", "content": "hi"}]})
    sent = chunks_of({"content": "hi"})[:2] if dialect == "chat" else list(replayed(body))[:5]
    stub.plays(plays(sent, done=False, then="hold"))
    async with asyncio.timeout(60), served(chat(stub) if dialect == "chat" else responses(stub), http) as api:
        stream: Any = await api.responses.create(model="m", input="hello", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        assert event.delta == "hi" and not stub.hung_up.is_set()
        await stream.close()
        await stub.hung_up.wait()

        stub.hung_up.clear()
        if dialect == "chat":
            chunks: Any = await api.chat.completions.create(model="m", messages=HELLO, stream=True)
            async for each in chunks:
                if each.choices[0].delta.content:
                    break
            await chunks.close()
            await stub.hung_up.wait()


async def test_a_chat_request_is_sent_on_as_it_is_and_its_answer_comes_back_whole(
    stub: Stub, http: HttpClient
) -> None:
    given = answer(MESSAGE, system_fingerprint="f", provider_extra={"a": 1})
    stub.plays(given)
    model = chat(stub, params={"temperature": 0.5, "max_output_tokens": 9, "top_k": 3})
    async with served(model, http) as api:
        raw = await api.chat.completions.with_raw_response.create(
            model="m", messages=HELLO, max_completion_tokens=5, extra_body={"custom": {"deep": [1]}}, tools=TOOLS
        )
    assert json.loads(raw.http_response.content) == given
    assert stub.bodies[0] == {
        "messages": HELLO,
        "max_completion_tokens": 5,
        "custom": {"deep": [1]},
        "tools": TOOLS,
        "temperature": 0.5,
        "top_k": 3,
        "model": "m",
    }


@pytest.mark.parametrize(("given", "limit"), [({}, 9), ({"max_tokens": 4}, 4), ({"max_completion_tokens": 5}, 5)])
async def test_the_limit_has_the_name_that_the_endpoint_knows(
    given: dict[str, int], limit: int, stub: Stub, http: HttpClient
) -> None:
    stub.plays(answer({"role": "assistant", "content": "a"}))
    model = chat(stub, params={"max_output_tokens": 9}, limit_field="max_completion_tokens")
    async with served(model, http) as api:
        await api.responses.create(model="m", input="hello", max_output_tokens=7)
        await api.chat.completions.create(model="m", messages=HELLO, **given)  # type: ignore[call-overload]
    assert stub.bodies[0]["max_completion_tokens"] == 7 and "max_tokens" not in stub.bodies[0]
    # what the caller says in Chat's own words is sent on as it is
    assert {name: value for name, value in stub.bodies[1].items() if name.startswith("max_")} == (
        given or {"max_completion_tokens": limit}
    )


async def test_several_choices_pass_through_whole_and_streamed(stub: Stub, http: HttpClient) -> None:
    both = answer({"role": "assistant", "content": "a"})
    both["choices"] += [{"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"}]
    one, other = chunk({"content": "a"}, "stop"), chunk({"content": "b"}, "stop")
    other["choices"][0]["index"] = 1
    stub.plays(both, plays([one, other, LAST], then="hold"))
    async with asyncio.timeout(60), served(chat(stub), http) as api:
        found = await api.chat.completions.create(model="m", messages=HELLO, n=2)
        stream = await api.chat.completions.create(model="m", messages=HELLO, n=2, stream=True)
        texts = [each.choices[0].delta.content async for each in stream]
    assert [choice.message.content for choice in found.choices] == texts == ["a", "b"]


@pytest.mark.parametrize("asked", ["usage", "no usage"])
async def test_a_streamed_chat_answer_is_the_plain_one_with_usage_only_where_it_is_asked_for(
    asked: str, stub: Stub, http: HttpClient
) -> None:
    stub.plays(plays(chunks_of(MESSAGE)))
    options: Any = {"stream_options": {"include_usage": True}} if asked == "usage" else {}
    async with served(chat(stub), http) as api:
        chunks = await api.chat.completions.create(
            model="m", messages=HELLO, tools=TOOLS, parallel_tool_calls=True, stream=True, **options
        )
        found = [each async for each in chunks]
    assert [each.usage.total_tokens for each in found if each.usage] == ([12] if asked == "usage" else [])
    from gymbox.models.whole_streams import answer_of_chunks

    made = answer_of_chunks(each.model_dump(exclude_unset=True) for each in found)
    assert made is not None and made["choices"][0]["message"] == MESSAGE


async def test_a_chat_caller_of_a_responses_endpoint_gets_a_real_stream(stub: Stub, http: HttpClient) -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "adding"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "add", "arguments": '{"by":1}'},
        {"type": "function_call", "id": "fc_2", "call_id": "b", "name": "add", "arguments": '{"by":2}'},
    ]
    body = whole({"id": "r", "model": "m", "output": items, "usage": {"input_tokens": 1, "output_tokens": 2}})
    stub.plays(plays(list(replayed(body))))
    async with served(responses(stub), http) as api:
        stream = api.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS)
        async with stream as events:
            final = await events.get_final_completion()
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == ("adding", "tool_calls")
    assert [(call.id, call.function.arguments) for call in message.tool_calls or []] == [
        ("a", '{"by":1}'),
        ("b", '{"by":2}'),
    ]
    assert message.model_extra is not None and message.model_extra["reasoning_content"] == "hm"


async def test_a_structured_answer_and_an_image_go_both_ways(stub: Stub, http: HttpClient) -> None:
    wanted: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object", "required": ["n"]}, "strict": True}
    picture: Any = [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}]
    stub.plays(answer({"role": "assistant", "content": '{"n": 1}'}), plays(chunks_of({"content": '{"n": 1}'})))
    async with served(chat(stub), http) as api:
        asked: Any = {"model": "m", "input": [{"role": "user", "content": picture}], "text": {"format": wanted}}
        plain = await api.responses.create(**asked)
        async with api.responses.stream(**asked) as stream:
            final = await stream.get_final_response()
        chunks = await api.chat.completions.create(
            model="m",
            messages=HELLO,
            stream=True,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": wanted["schema"]}},
        )
        text = "".join([each.choices[0].delta.content or "" async for each in chunks])
    assert plain.output_text == final.output_text == text == '{"n": 1}'
    assert stub.bodies[0]["response_format"]["json_schema"]["schema"] == wanted["schema"]
    assert stub.bodies[0]["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png")


async def test_a_failure_before_the_first_event_is_a_typed_exception_of_the_client(
    stub: Stub, http: HttpClient
) -> None:
    async def limited(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "slow", "code": "rate_limit_exceeded"}}, status=429)

    async def refused(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such field"}}, status=400)

    async with served(chat(stub), http) as api:
        stub.plays(limited)
        with pytest.raises(openai.RateLimitError):
            await api.responses.create(model="m", input="x", stream=True)
        stub.plays(refused)
        with pytest.raises(openai.UnprocessableEntityError, match="no such field") as raised:
            await api.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert raised.value.code == "model_refused_request" and raised.value.type == "invalid_request_error"
        with pytest.raises(openai.NotFoundError, match="did you mean 'm'") as unknown:
            await api.responses.create(model="mm", input="x", stream=True)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.UnprocessableEntityError, match="messages"):
            await api.chat.completions.create(model="m", messages=[])


@pytest.mark.parametrize("converted", [True, False])
async def test_a_chat_stream_that_fails_on_the_way_raises_at_the_client(
    converted: bool, stub: Stub, http: HttpClient
) -> None:
    stub.plays(plays(chunks_of({"content": "hello"})[:2], done=False, then="break"))
    form: Any = {"response_format": {"type": "json_object"}} if converted else {}
    async with served(chat(stub), http) as api:
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in await api.chat.completions.create(model="m", messages=HELLO, stream=True, **form):
                pass


async def test_what_breaks_in_the_middle_of_a_models_own_stream_is_told_in_each_dialect(http: HttpClient) -> None:
    class Odd(Model):
        """Streams an item that has no place in a Chat or Messages answer."""

        name: str = "odd"

        async def responses(self, params: ResponsesParams, call: Call) -> Response:
            items = [{"type": "message", "role": "assistant", "content": "hi"}, {"type": "web_search_call"}]
            return Response.model_validate({"status": "completed", "output": items})

    async with served(Odd(), http) as api:
        with pytest.raises(openai.APIError, match="web_search_call"):
            async for _ in await api.chat.completions.create(model="odd", messages=HELLO, stream=True):
                pass
        asked = {"model": "odd", "max_tokens": 5, "messages": HELLO, "stream": True}
        answer = await http.request(
            "POST", f"{api.base_url}messages", json=asked, headers={"x-api-key": TOKEN}, retry=False
        )
    last = answer.body.decode().strip().split("\n\n")[-1]
    assert answer.status == 200 and last.startswith("event: error\n")
    assert "web_search_call" in json.loads(last.partition("data: ")[2])["error"]["message"]


async def test_the_document_tells_of_every_route_and_its_failures(http: HttpClient, stub: Stub) -> None:
    async with served(chat(stub), http) as api:
        root = str(api.base_url).removesuffix("/v1/")
        document = await http.json("GET", f"{root}/openapi.json")
        counted = await http.request(
            "POST", f"{root}/v1/messages/count_tokens", json={"messages": []}, headers={"x-api-key": TOKEN}
        )
    posts = {path for path, operations in document["paths"].items() if "post" in operations}
    assert posts == {"/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"}
    told_of = document["paths"]["/v1/responses"]["post"]
    assert "input" in told_of["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(told_of["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"404", "422", "429", "502", "503", "504"} <= set(told_of["responses"])
    assert counted.status == 422 and json.loads(counted.body)["error"]["type"] == "invalid_request_error"
