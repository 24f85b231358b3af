"""Endpoints: what they are asked, and what is made of their failures."""

import asyncio
import base64
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.chat import ChatModel
from gymbox.models.openai import OpenAIModel
from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PARAMS = ResponsesParams(input="hello")
SECRET = "sk-very-secret-1234"


GOOD = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
    "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
}
GOOD_CHAT = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def answers_json(body: Any, status: int = 200, **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return handler


def answers_bytes(body: bytes, status: int = 200, content_type: str = "application/json") -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, content_type=content_type)

    return handler


async def resets(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def never_answers(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


FAULTS = {
    "429": answers_json({"error": {"message": "slow down"}}, 429),
    "500": answers_json({"error": {"message": "oops"}}, 500),
    "reset": resets,
    "half JSON": answers_bytes(json.dumps(GOOD).encode()[:50]),
    "200 error": answers_json({"error": {"message": "x"}}),
    "200 error whose code is nearly a number": answers_json({"error": {"message": "x", "code": "²"}}),
    "200 error whose code is a number without end": answers_json({"error": {"message": "x", "code": "9" * 5000}}),
}
"""Some that may pass; all that a back end does wrong, and how it is told, is in test_misbehaving_backends."""


def model(url: str, **options: Any) -> OpenAIModel:
    settings = {"name": "m", "base_url": url, "api_key": SECRET, "pause": 0.001, "timeout": 5, **options}
    return OpenAIModel.model_validate(settings)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_passing_fault_costs_a_retry_and_no_rollout(name: str, stub: Any, http: HttpClient) -> None:
    stub.plays(FAULTS[name], GOOD)
    response = await model(stub.url).responses(PARAMS, Call(http))
    assert response.output_text == "hi" and stub.calls == 2


async def test_a_dead_endpoint_is_unavailable_and_says_what_to_check(http: HttpClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ModelFailure, match="could not be reached.*check that the server runs") as raised:
            await model(url).responses(PARAMS, Call(http))
    assert raised.value.rollout_kind is ErrorKind.MODEL_UNAVAILABLE


async def test_retry_after_is_honoured_and_passed_on(stub: Any, http: HttpClient) -> None:
    stub.plays(answers_json({}, 429, Retry_After="0.2"), GOOD)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await model(stub.url).responses(PARAMS, Call(http))
    assert loop.time() - began >= 0.2
    stub.plays(answers_json({}, 401, Retry_After="7"))
    with pytest.raises(ModelFailure) as raised:
        await model(stub.url).responses(PARAMS, Call(http))
    assert raised.value.retry_after == 7


async def test_the_first_failure_of_a_kind_is_logged_once_for_all_calls(
    stub: Any, http: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    stub.plays(answers_json({}, 400))
    asked = model(stub.url)
    for _ in range(3):
        with pytest.raises(ModelFailure):
            await asked.responses(PARAMS, Call(http))
    assert len(caplog.records) == 1 and "answered 400" in caplog.text


async def test_a_key_that_the_endpoint_repeats_is_masked(stub: Any, http: HttpClient) -> None:
    stub.plays(answers_json({"error": {"message": f"bad key {SECRET}"}}, 401))
    with pytest.raises(ModelFailure, match=r"bad key \*\*\*") as raised:
        await model(stub.url).responses(PARAMS, Call(http))
    assert SECRET not in str(raised.value.to_wire())


async def test_a_caller_that_gives_up_cancels_the_request_at_the_endpoint(stub: Any, http: HttpClient) -> None:
    stub.plays(never_answers)
    task = asyncio.create_task(model(stub.url).responses(PARAMS, Call(http)))
    await stub.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await stub.hung_up.wait()


async def test_no_more_calls_than_max_concurrency_are_in_flight(stub: Any, http: HttpClient) -> None:
    inside, most = 0, 0

    async def counts(_: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.02)
        inside -= 1
        return web.json_response(GOOD)

    stub.plays(counts)
    asked = model(stub.url, max_concurrency=3)
    await asked.open()
    await asyncio.gather(*(asked.responses(PARAMS, Call(http)) for _ in range(12)))
    await asked.close()
    await asked.close()
    assert most == 3


async def test_a_request_has_what_is_set_and_nothing_else(stub: Any, http: HttpClient) -> None:
    stub.plays(GOOD)
    params = ResponsesParams.model_validate(
        {
            "input": [
                {"role": "user", "content": "x", "id": None},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{", "status": None},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "y", "logprobs": None}],
                    "generation_token_ids": [1],
                },
            ],
            "temperature": None,
            "stream": True,
            "tools": [],
            "tool_choice": "auto",
            "top_k": 5,
        }
    )
    asked = model(stub.url, params={"temperature": 0.5, "top_k": 1}, organization="o", headers={"X-Extra": "e"})
    await asked.responses(params, Call(http))
    assert stub.bodies == [
        {
            "model": "m",
            "temperature": 0.5,
            "top_k": 5,
            "input": [
                {"type": "message", "role": "user", "content": "x"},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"invalid_arguments": "{"}'},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "y", "annotations": []}],
                    "status": "completed",
                },
            ],
        }
    ]
    assert stub.headers[0]["Authorization"] == f"Bearer {SECRET}"
    assert stub.headers[0]["OpenAI-Organization"] == "o" and stub.headers[0]["X-Extra"] == "e"


async def test_an_answer_in_the_background_is_refused_before_anything_is_sent(stub: Any, http: HttpClient) -> None:
    with pytest.raises(Invalid, match="background"):
        await model(stub.url).responses(ResponsesParams.model_validate({"background": True}), Call(http))
    assert stub.calls == 0


async def test_half_a_surrogate_pair_is_replaced_so_that_records_can_be_written(stub: Any, http: HttpClient) -> None:
    text = json.dumps(GOOD).replace('"hi"', '"h\\ud83d"')
    stub.plays(answers_bytes(text.encode()))
    response = await model(stub.url).responses(PARAMS, Call(http))
    assert response.output_text == "h?"
    response.model_dump_json()


SCHEMA = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"A": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("text", "good"),
    [("prose", False), ('{"a": "x"}', False), ("{}", False), ('{"a": 1, "b": 2}', False), ('{"a": 1}', True)],
)
async def test_structured_output_that_is_not_enforced_is_no_answer(
    text: str, good: bool, stub: Any, http: HttpClient
) -> None:
    message = {"role": "assistant", "content": text, "reasoning_content": "r"}
    stub.plays({**GOOD_CHAT, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    asked = ChatModel(name="m", base_url=stub.url, pause=0.001)
    wanted = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    params = ResponsesParams.model_validate({"input": "x", "text": wanted})
    if good:
        assert (await asked.responses(params, Call(http))).output_text == text
    else:
        with pytest.raises(ModelFailure, match="did not enforce") as raised:
            await asked.responses(params, Call(http))
        assert raised.value.rollout_kind is ErrorKind.MODEL_BAD_RESPONSE


async def test_a_chat_endpoint_is_asked_in_its_own_format(stub: Any, http: HttpClient) -> None:
    stub.plays(GOOD_CHAT)
    asked = ChatModel(name="m", base_url=f" {stub.url}/ ", params={"max_output_tokens": 9, "seed": 1})
    response = await asked.responses(PARAMS, Call(http))
    assert response.output_text == "hi" and response.usage is not None and response.usage.total_tokens == 2
    assert stub.bodies == [
        {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9, "seed": 1}
    ]
    assert "Authorization" not in stub.headers[0]


async def test_a_chat_answer_that_is_none_is_told_as_such(stub: Any, http: HttpClient) -> None:
    stub.plays({**GOOD_CHAT, "choices": []})
    with pytest.raises(ModelFailure, match="one choice"):
        await ChatModel(name="m", base_url=stub.url, pause=0.001).responses(PARAMS, Call(http))


async def test_token_ids_are_asked_for_and_a_broken_prefix_is_marked(stub: Any, http: HttpClient) -> None:
    def sampled(prompt: list[int]) -> dict[str, Any]:
        choice = {
            **GOOD_CHAT["choices"][0],
            "token_ids": [9],
            "logprobs": {"content": [{"token": "hi", "logprob": -1.0}]},
        }
        return {**GOOD_CHAT, "choices": [choice], "prompt_token_ids": prompt}

    stub.plays(sampled([1]), sampled([1, 9, 2]), sampled([1, 8, 2]))
    asked = ChatModel(name="m", base_url=stub.url, token_ids=True)
    first = await asked.responses(PARAMS, Call(http))
    assert stub.bodies[0]["return_token_ids"] and stub.bodies[0]["logprobs"]
    more = ResponsesParams(input=[*PARAMS.items, *first.output, *PARAMS.items])
    kept = await asked.responses(more, Call(http))
    broken = await asked.responses(more, Call(http))
    assert "mask_sample" not in kept.dump()["output"][-1]
    last = broken.dump()["output"][-1]
    assert last["mask_sample"] is True and "differs at token 1" in last["mask_reason"]
    assert stub.bodies[1]["messages"][1]["generation_token_ids"] == [9]
    without = ChatModel(name="m", base_url=stub.url, token_ids=True, token_echo=False)
    await without.responses(more, Call(http))
    assert "generation_token_ids" not in json.dumps(stub.bodies[-1])


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://me:pw@host/v1", ""])
def test_an_address_that_cannot_be_one_is_refused_at_start(url: str) -> None:
    with pytest.raises(ValidationError):
        OpenAIModel.model_validate({"name": "m", "base_url": url})


def test_a_key_is_one_line_and_never_shown() -> None:
    asked = OpenAIModel.model_validate({"name": "m", "api_key": f"{SECRET}\n", "headers": {"X": "hush"}})
    assert asked.api_key is not None and asked.api_key.get_secret_value() == SECRET
    assert SECRET not in repr(asked) + asked.model_dump_json() and "hush" not in repr(asked)


@pytest.mark.parametrize("shift", ["", "u:", "us:"])
async def test_a_key_that_comes_back_encoded_is_not_shown_either(shift: str, stub: Any, http: HttpClient) -> None:
    key = "k3y/with+all&kinds=of"
    told = [
        base64.b64encode(f"{shift}{key}".encode()).decode(),
        base64.urlsafe_b64encode(f"{shift}{key}".encode()).decode(),
        quote(key, safe=""),
        key.encode().hex(),
    ]
    for text in (" ".join(told), "x" * 470 + told[0]):  # the second is cut short
        stub.plays(answers_json({"error": {"message": text}}, 401))
        with pytest.raises(ModelFailure) as failed:
            await ChatModel.model_validate({"name": "m", "base_url": stub.url, "api_key": key}).responses(
                PARAMS, Call(http)
            )
        shown = failed.value.detail
        assert "***" in shown
        # of what stands at the edges, some bits are the neighbours'
        assert not any(form[4:20] in shown for form in told)
