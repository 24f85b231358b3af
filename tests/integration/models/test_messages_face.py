"""A served model called by Anthropic's official client, whatever its back end speaks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from gymbox.errors import ConfigError
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.chat import ChatModel
from gymbox.models.local import LocalModel, bundled_model
from gymbox.models.openai import OpenAIModel
from gymbox.models.scripted import ScriptedModel
from gymbox.models.server import ModelServer
from gymbox.serving import Guard, Listener
from gymbox_sandbox.responses import ResponsesParams
from pydantic import SecretStr

from tests.integration.models.conftest import Handler, Stub
from tests.integration.models.test_anthropic_model import ANSWER, streams, told_of_answer

TOKEN = "gbx_model_tests_only"
Serve = Callable[[Model], AbstractAsyncContextManager[anthropic.AsyncAnthropic]]
PNG = "iVBORw0KGgo="
TOOL: Any = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {}}}
ASKED: Any = {"model": "served", "max_tokens": 64, "messages": [{"role": "user", "content": "add"}], "tools": [TOOL]}
CHAT: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": "adding ü",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"by": 1}'}},
                    {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"by": 2}'}},
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 3},
    },
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "gAAAA",
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "adding ü", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "add", "arguments": '{"by": 1}'},
        {"type": "function_call", "id": "fc_2", "call_id": "b", "name": "add", "arguments": '{"by": 2}'},
    ],
    "usage": {
        "input_tokens": 10,
        "output_tokens": 7,
        "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 3},
    },
}


def chat_pieces() -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "reasoning_content": "h"},
        {"reasoning_content": "m"},
        {"content": "adding"},
        {"content": " ü"},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"by": 1}'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"by": 2}'}}]},
    ]
    shared = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    pieces = [{**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    pieces.append({**shared, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return [*pieces, {**shared, "choices": [], "usage": CHAT["usage"]}]


def streams_chat() -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in chat_pieces():
            await response.write(f"data: {json.dumps(piece)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    return handler


def response_events() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**RESPONSE, "output": []}}]
    for index, item in enumerate(RESPONSE["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "reasoning":
            delta = {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "hm"}
            events.append({**place, **delta})
        elif item["type"] == "message":
            delta = {"type": "response.output_text.delta", "content_index": 0, "delta": "adding ü"}
            events.append({**place, **delta})
        else:
            delta = {"type": "response.function_call_arguments.delta", "delta": item["arguments"]}
            events.append({**place, **delta})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*events, {"type": "response.completed", "response": RESPONSE}]


@pytest.fixture
def serve(http: HttpClient) -> Serve:
    @asynccontextmanager
    async def serving(model: Model) -> AsyncIterator[anthropic.AsyncAnthropic]:
        app = ModelServer(model, http).setup_webserver()
        async with Listener(app, Guard(token=TOKEN, takes_api_key=True), drain=1) as listener:
            # the client's own key goes elsewhere, this server's token is a bearer token
            client = anthropic.AsyncAnthropic(base_url=listener.url, auth_token=TOKEN, api_key=None, max_retries=0)
            async with client:
                yield client

    return serving


BACK_ENDS = ["chat", "openai", "anthropic"]


def back_end(kind: str, stub: Stub, *, streamed: bool) -> Model:
    kinds: dict[str, tuple[type[Any], Any, Handler]] = {
        "chat": (ChatModel, CHAT, streams_chat()),
        "openai": (OpenAIModel, RESPONSE, streams(response_events())),
        "anthropic": (AnthropicModel, ANSWER, streams(told_of_answer())),
    }
    made, whole, stream = kinds[kind]
    stub.plays(stream if streamed else whole)
    model: Model = made(name="served", base_url=stub.url, pause=0.001)
    return model


def check_answer(message: Any) -> None:
    thought, text, *calls = message.content
    assert (thought.type, thought.thinking) == ("thinking", "hm")
    assert (text.type, text.text) == ("text", "adding ü")
    assert [(call.type, call.name, call.input) for call in calls] == [
        ("tool_use", "add", {"by": 1}),
        ("tool_use", "add", {"by": 2}),
    ]
    assert message.stop_reason == "tool_use" and message.role == "assistant"
    usage = message.usage
    total = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert (total, usage.cache_read_input_tokens, usage.output_tokens) == (10, 3, 7)


@pytest.mark.parametrize("kind", BACK_ENDS)
async def test_a_plain_answer_is_whole_for_the_official_client(serve: Serve, stub: Stub, kind: str) -> None:
    async with serve(back_end(kind, stub, streamed=False)) as client:
        check_answer(await client.messages.create(**ASKED))


@pytest.mark.parametrize("kind", BACK_ENDS)
async def test_a_streamed_answer_adds_up_for_the_official_client(serve: Serve, stub: Stub, kind: str) -> None:
    events: list[Any] = []
    async with serve(back_end(kind, stub, streamed=True)) as client:
        async with client.messages.stream(**ASKED) as stream:
            async for event in stream:
                events.append(event)
            check_answer(await stream.get_final_message())

    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and kinds.count("message_stop") == 1
    assert events[0].message.stop_reason is None
    starts = [event.index for event in events if event.type == "content_block_start"]
    stops = [event.index for event in events if event.type == "content_block_stop"]
    assert starts == [0, 1, 2, 3] and sorted(stops) == starts


@pytest.mark.parametrize("kind", BACK_ENDS)
async def test_a_conversation_goes_on_with_results_and_images(serve: Serve, stub: Stub, kind: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    async with serve(back_end(kind, stub, streamed=False)) as client:
        first = await client.messages.create(**ASKED)
        calls = [block for block in first.content if block.type == "tool_use"]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "3"}, image]},
            {"type": "tool_result", "tool_use_id": calls[1].id, "content": "no", "is_error": True},
            {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
        ]
        turns = [
            *ASKED["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": results},
        ]
        await client.messages.create(**{**ASKED, "messages": turns, "system": "be kind"})

    sent = stub.bodies[1]
    if kind == "chat":
        roles = [message["role"] for message in sent["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "tool", "user", "user"]
        assert sent["messages"][2]["reasoning_content"] == "hm"
        assert "cache_control" not in json.dumps(sent)
    elif kind == "openai":
        kinds = [item["type"] for item in sent["input"]]
        assert kinds[1:] == [
            *["reasoning", "message"],
            *["function_call"] * 2,
            *["function_call_output"] * 2,
            "message",
        ]
        assert (sent["input"][1]["id"], sent["input"][1]["encrypted_content"]) == ("rs_1", "gAAAA")
        assert "cache_control" not in json.dumps(sent) and sent["instructions"] == "be kind"
    else:
        thought = sent["messages"][1]["content"][0]
        assert (thought["thinking"], thought["signature"]) == ("hm", "c2ln")
        assert sent["messages"][2]["content"] == results


@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_are_the_official_clients_own(serve: Serve, stub: Stub, streamed: bool) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long", "type": "invalid_request_error"}}, status=400)

    async with serve(back_end("chat", stub, streamed=False)) as client:
        stub.plays(refuse)
        with pytest.raises(anthropic.APIStatusError, match="too long") as failure:
            await client.messages.create(**ASKED, stream=streamed)
        assert failure.value.status_code == 422
        with pytest.raises(anthropic.NotFoundError, match="served"):
            await client.messages.create(**{**ASKED, "model": "serve"}, stream=streamed)
        with pytest.raises(anthropic.APIStatusError, match="container") as failure:
            await client.messages.create(**ASKED, stream=streamed, extra_body={"container": "c"})
        assert failure.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


async def test_a_failure_in_mid_stream_is_an_error_of_the_official_client(serve: Serve, stub: Stub) -> None:
    async with serve(back_end("anthropic", stub, streamed=True)) as client:
        stub.plays(streams(told_of_answer()[:6]))
        with pytest.raises(anthropic.APIStatusError, match="in mid-answer"):
            async with client.messages.stream(**ASKED) as stream:
                await stream.get_final_message()


async def test_a_caller_who_hangs_up_ends_the_call_at_the_back_end(serve: Serve, stub: Stub) -> None:
    async with serve(back_end("anthropic", stub, streamed=True)) as client:
        stub.plays(streams(told_of_answer()[:5], then=asyncio.Event()))
        async with client.messages.stream(**ASKED) as stream:
            async for event in stream:
                if event.type == "content_block_start":
                    break
        await asyncio.wait_for(stub.hung_up.wait(), 30)


async def test_tokens_are_counted_where_the_back_end_can(serve: Serve, stub: Stub) -> None:
    async def vllm(request: web.Request) -> web.StreamResponse:
        assert request.path == "/tokenize"
        return web.json_response({"count": 12, "max_model_len": 4096, "tokens": [1] * 12})

    async def llama(request: web.Request) -> web.StreamResponse:
        if request.path == "/tokenize":
            return web.json_response({"tokens": []})
        assert request.path == "/v1/chat/completions/input_tokens"
        return web.json_response({"input_tokens": 13})

    async def overloaded(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=503)

    async def none(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such route"}}, status=404)

    counted: Any = {name: ASKED[name] for name in ("model", "messages", "tools")}
    async with serve(back_end("chat", stub, streamed=False)) as client:
        stub.plays(vllm)
        assert (await client.messages.count_tokens(**counted)).input_tokens == 12
        assert stub.bodies[-1]["messages"] == [{"role": "user", "content": "add"}]
        stub.plays(llama)
        assert (await client.messages.count_tokens(**counted)).input_tokens == 13
        stub.plays(overloaded)
        with pytest.raises(anthropic.APIStatusError, match="busy"):
            await client.messages.count_tokens(**counted)
        stub.plays(none)
        with pytest.raises(anthropic.APIStatusError, match="cannot count a request's tokens"):
            await client.messages.count_tokens(**counted)
    async with serve(back_end("openai", stub, streamed=False)) as client:
        stub.plays({"object": "response.input_tokens", "input_tokens": 14})
        asked: Any = {**counted, "thinking": {"type": "adaptive"}, "system": "be kind"}
        assert (await client.messages.count_tokens(**asked)).input_tokens == 14
        assert set(stub.bodies[-1]) == {"model", "input", "instructions", "tools"}
    async with serve(ScriptedModel(name="served")) as client:
        with pytest.raises(anthropic.APIStatusError, match="cannot count a request's tokens"):
            await client.messages.count_tokens(**counted)


async def test_options_reach_a_chat_endpoint_and_a_responses_endpoint(serve: Serve, stub: Stub) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    options: Any = {
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "stop_sequences": ["###"],
        "metadata": {"user_id": "u"},
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    for kind in ("chat", "openai"):
        async with serve(back_end(kind, stub, streamed=False)) as client:
            await client.messages.create(**ASKED, **options)
    chat, responses = stub.bodies

    assert chat["messages"][0] == {"role": "system", "content": "be kind"}
    assert chat["reasoning_effort"] == "low" and chat["stop"] == ["###"] and chat["user"] == "u"
    assert chat["response_format"]["json_schema"]["schema"] == schema
    assert (chat["tool_choice"], chat["parallel_tool_calls"], chat["max_tokens"]) == ("required", False, 64)
    assert responses["reasoning"] == {"effort": "low"} and responses["max_output_tokens"] == 64
    assert responses["text"]["format"]["schema"] == schema and responses["tool_choice"] == "required"


async def test_the_token_may_come_where_the_official_client_puts_its_key(serve: Serve, stub: Stub) -> None:
    async with serve(back_end("chat", stub, streamed=False)) as client:
        by_key = anthropic.AsyncAnthropic(base_url=client.base_url, api_key=TOKEN, max_retries=0)
        async with by_key:
            check_answer(await by_key.messages.create(**ASKED))
            assert [model.id async for model in by_key.models.list()] == ["served"]
        wrong = anthropic.AsyncAnthropic(base_url=client.base_url, api_key="wrong", max_retries=0)
        async with wrong:
            with pytest.raises(anthropic.AuthenticationError):
                await wrong.messages.create(**ASKED)


# --- other callers of a Messages endpoint


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_responses_caller_keeps_the_signature_of_thoughts(serve: Serve, stub: Stub, streamed: bool) -> None:
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
    history: list[Any] = [{"role": "user", "content": "add"}]
    async with serve(back_end("anthropic", stub, streamed=streamed)) as client:
        other = openai.AsyncOpenAI(base_url=f"{str(client.base_url).rstrip('/')}/v1", api_key=TOKEN, max_retries=0)
        async with other:
            if streamed:
                async with other.responses.stream(model="served", input=history, tools=[tool]) as stream:
                    response: Any = await stream.get_final_response()
            else:
                response = await other.responses.create(model="served", input=history, tools=[tool])
            history += [item.model_dump(exclude_none=True) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            history += [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]
            stub.plays(ANSWER)
            await other.responses.create(model="served", input=history, tools=[tool])

    assert response.usage.input_tokens == 10 and response.usage.input_tokens_details.cached_tokens == 3
    said, results = stub.bodies[1]["messages"][1:]
    assert said["content"][0] == ANSWER["content"][0]
    assert [block["input"] for block in said["content"][2:]] == [{"by": 1}, {"by": 2}]
    assert [block["tool_use_id"] for block in results["content"]] == ["toolu_1", "toolu_2"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chat_caller_of_a_messages_endpoint_is_answered(serve: Serve, stub: Stub, streamed: bool) -> None:
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    asked: Any = {"model": "served", "messages": [{"role": "user", "content": "add"}], "tools": [tool]}
    async with serve(back_end("anthropic", stub, streamed=streamed)) as client:
        other = openai.AsyncOpenAI(base_url=f"{str(client.base_url).rstrip('/')}/v1", api_key=TOKEN, max_retries=0)
        async with other:
            if streamed:
                async with other.chat.completions.stream(**asked) as stream:
                    answer: Any = await stream.get_final_completion()
            else:
                answer = await other.chat.completions.create(**asked)

    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "adding ü"
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"by": 1}, {"by": 2}]
    assert stub.bodies[0]["max_tokens"] == 8192


# --- a real model


@pytest.fixture
async def local() -> AsyncIterator[LocalModel]:
    pytest.importorskip("xllamacpp")
    try:
        bundled_model()
    except ConfigError as error:
        pytest.skip(str(error))
    model = LocalModel(name="served", temperature=0, max_output_tokens=16, context=1024)
    await model.open()
    yield model
    await model.close()


@pytest.mark.local_model
async def test_a_real_model_answers_the_same_in_every_way_of_asking(
    serve: Serve, http: HttpClient, local: LocalModel
) -> None:
    assert local._endpoint is not None and isinstance(local._endpoint.base_url, str)
    address, key = local._endpoint.base_url, local._endpoint.api_key
    assert isinstance(key, SecretStr)
    # what is cached is added up in another order, which can tip the likeliest token
    defaults = {"temperature": 0, "cache_prompt": False}
    direct = AnthropicModel(name="served", base_url=address, api_key=key, params=defaults)
    chat = ChatModel(name="served", base_url=address, api_key=key, params=defaults)
    asked: Any = {"model": "served", "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]}
    params = ResponsesParams(input="Say hello.", max_output_tokens=16)
    texts: list[str] = []
    counts: list[tuple[int, int]] = []

    response = await direct.responses(params, Call(http))
    texts.append(response.output_text)
    events = [event async for event in direct.stream(params, Call(http))]
    texts.append(events[-1]["response"]["output"][0]["content"][0]["text"])
    for usage in (response.usage.dump() if response.usage else {}, events[-1]["response"]["usage"]):
        counts.append((usage["input_tokens"], usage["output_tokens"]))
    for model in (chat, direct):
        async with serve(model) as client:
            plain = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
            counted = await client.messages.count_tokens(model="served", messages=asked["messages"])
        for message in (plain, streamed):
            texts += [block.text for block in message.content if block.type == "text"]
            usage = message.usage
            counts.append((usage.input_tokens + (usage.cache_read_input_tokens or 0), usage.output_tokens))
            assert message.stop_reason == ("max_tokens" if usage.output_tokens == 16 else "end_turn")
        assert counted.input_tokens == counts[0][0]

    assert len(texts) == 6 and len(set(texts)) == 1 and texts[0]
    assert len(set(counts)) == 1


@pytest.mark.local_model
async def test_tokens_of_a_request_with_tools_are_those_that_its_answer_counts(
    http: HttpClient, local: LocalModel
) -> None:
    body = {**ASKED, "max_tokens": 16}
    first = await local.count_tokens(body, Call(http))
    plain = await local.count_tokens({**body, "tools": []}, Call(http))
    use = {"type": "tool_use", "id": "a", "name": "add", "input": {}}
    turns = [*ASKED["messages"], {"role": "assistant", "content": [use]}]
    turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "3"}]})
    last = {**body, "tools": [], "messages": turns}

    assert first > plain > 5
    message = await local.messages(last, Call(http))
    usage = message["usage"]
    assert await local.count_tokens(last, Call(http)) == usage["input_tokens"] + usage["cache_read_input_tokens"]
