"""A served model, called by the official client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import openai
import pytest
from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.chat import ChatModel
from gymbox.models.endpoint import TRIES
from gymbox.models.openai import OpenAIModel
from gymbox.models.scripted import ScriptedModel
from gymbox.models.server import ModelServer
from gymbox.serving import Guard, Listener
from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

TOKEN = "gbx_model_tests_only"
Serve = Callable[[Model], AbstractAsyncContextManager[str]]
TWO_CALLS = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "content": "adding"},
    {"type": "function_call", "name": "add", "call_id": "a", "arguments": {"by": 1}},
    {"type": "function_call", "name": "add", "call_id": "b", "arguments": {"by": 2}},
]
REFUSAL = [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]
HELLO: Any = [{"role": "user", "content": "hello"}]


class Cut(Model):
    """Answers as an endpoint does whose limit came first, and leaves out what may be left out."""

    name: str = "cut"

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        return Response.model_validate(
            {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "output": [{"role": "assistant", "content": "half an ans"}],
                "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            }
        )


class Endless(Model):
    """Never answers; tells when it is cancelled."""

    name: str = "endless"

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        state["asked"].set()
        try:
            await asyncio.Event().wait()
        finally:
            state["cancelled"].set()
        raise AssertionError


state: dict[str, asyncio.Event] = {}


@pytest.fixture
def serve(http: HttpClient) -> Serve:
    @asynccontextmanager
    async def serving(model: Model) -> AsyncIterator[str]:
        app = ModelServer(model, http).setup_webserver()
        async with Listener(app, Guard(token=TOKEN), drain=1) as listener:
            yield f"{listener.url}/v1"

    return serving


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=TOKEN, max_retries=0)


async def test_the_official_client_gets_responses(serve: Serve) -> None:
    async with serve(ScriptedModel(replies=[TWO_CALLS])) as url, client(url) as api:
        response = await api.responses.create(model="scripted", input="hello")
        assert response.status == "completed" and response.output_text == "adding"
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
        assert [model.id async for model in api.models.list()] == ["scripted"]


@pytest.mark.parametrize("model", [ScriptedModel(replies=[TWO_CALLS]), ScriptedModel(replies=[REFUSAL]), Cut()])
async def test_streamed_and_plain_responses_are_the_same_with_one_terminal_event(model: Model, serve: Serve) -> None:
    async with serve(model) as url, client(url) as api:
        plain = await api.responses.create(model=model.name, input="hello")
        events = [event async for event in await api.responses.create(model=model.name, input="hello", stream=True)]
        async with api.responses.stream(model=model.name, input="hello") as stream:
            final = [event async for event in stream][-1].response  # type: ignore[union-attr]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    terminal = [kind for kind in kinds if kind in ("response.completed", "response.incomplete", "response.failed")]
    assert terminal == [kinds[-1]] == [f"response.{plain.status}"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == [item.type for item in plain.output]
    assert final.output_text == plain.output_text
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == plain.output_text


async def test_of_several_models_a_request_has_to_name_one(http: HttpClient) -> None:
    server = ModelServer({"small": ScriptedModel(replies=[[]]), "big": ScriptedModel(replies=[[]])}, http)
    async with Listener(server.setup_webserver(), Guard(token=TOKEN), drain=1) as listener:
        async with client(f"{listener.url}/v1") as api:
            with pytest.raises(openai.NotFoundError, match="names no model; known: small, big"):
                await api.responses.create(input="hello")


@pytest.mark.parametrize("added", ["", "/v1"])
async def test_a_base_url_that_is_wrong_is_told_how_it_should_be(added: str, serve: Serve) -> None:
    async with serve(ScriptedModel(replies=[[]])) as url:
        async with client(f"{url.removesuffix('/v1')}{added}{added}") as api:
            with pytest.raises(openai.NotFoundError, match="base URL of OpenAI's clients ends in /v1"):
                await api.responses.create(model="scripted", input="hello")


async def test_the_official_client_gets_chat_completions(serve: Serve) -> None:
    async with serve(ScriptedModel(replies=[TWO_CALLS])) as url, client(url) as api:
        answer = await api.chat.completions.create(model="scripted", messages=HELLO)
    assert len(answer.choices) == 1 and answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content == "adding"
    assert [call.id for call in answer.choices[0].message.tool_calls or []] == ["a", "b"]


@pytest.mark.parametrize("replies", [[TWO_CALLS], [REFUSAL]])
async def test_streamed_chat_gives_each_call_its_own_index_and_the_same_answer(
    replies: list[Any], serve: Serve
) -> None:
    async with serve(ScriptedModel(replies=replies)) as url, client(url) as api:
        plain = await api.chat.completions.create(model="scripted", messages=HELLO)
        stream = await api.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    told: dict[int, str] = {}
    for call in calls:
        told[call.index] = told.get(call.index, "") + ((call.function and call.function.arguments) or "")
    whole: Any = plain.choices[0].message.tool_calls or []
    assert [call.id for call in calls if call.id] == [call.id for call in whole]
    assert [told[index] for index in range(len(told))] == [call.function.arguments for call in whole]
    assert "".join(delta.content or "" for delta in deltas) == (plain.choices[0].message.content or "")
    assert "".join(delta.refusal or "" for delta in deltas) == (plain.choices[0].message.refusal or "")
    assert chunks[-1].usage is not None and not chunks[-1].choices
    assert chunks[-2].choices[0].finish_reason == plain.choices[0].finish_reason


async def test_streamed_chat_has_no_usage_unless_it_is_asked_for(serve: Serve) -> None:
    async with serve(Cut()) as url, client(url) as api:
        chunks = [chunk async for chunk in await api.chat.completions.create(model="cut", messages=HELLO, stream=True)]
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_output_can_be_sent_back_as_input(serve: Serve) -> None:
    script = [TWO_CALLS, [{"type": "message", "content": "three"}]]
    async with serve(ScriptedModel(replies=script)) as url, client(url) as api:
        first = await api.responses.create(model="scripted", input="hello")
        results = [{"type": "function_call_output", "call_id": id, "output": "1"} for id in "ab"]
        again: Any = [*HELLO, *first.output, *results]
        assert (await api.responses.create(model="scripted", input=again)).output_text == "three"


async def test_token_ids_reach_the_caller_of_chat(serve: Serve) -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    reply = [{"type": "message", "content": "x", **tokens}]
    async with serve(ScriptedModel(replies=[reply])) as url, client(url) as api:
        answer = await api.chat.completions.create(model="scripted", messages=HELLO)
        stream = await api.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
    assert answer.choices[0].message.model_dump()["generation_token_ids"] == [2]
    assert any(delta.get("generation_token_ids") == [2] for delta in deltas)


async def test_models_behind_models_speak_both_dialects(serve: Serve, http: HttpClient) -> None:
    params = ResponsesParams(input="hello")
    async with serve(ScriptedModel(replies=[TWO_CALLS])) as url:
        by_chat = ChatModel.model_validate({"name": "scripted", "base_url": url, "api_key": TOKEN})
        by_responses = OpenAIModel.model_validate({"name": "scripted", "base_url": url, "api_key": TOKEN})
        for model in (by_chat, by_responses):
            response = await model.responses(params, Call(http))
            assert response.output_text == "adding"
            assert [call.call_id for call in response.function_calls] == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/responses", b"{", 422),
        ("/responses", b"[]", 422),
        ("/responses", b'{"input": [{"type": "function_call"}]}', 422),
        ("/responses", b'{"model": "other", "input": "x"}', 404),
        ("/chat/completions", b'{"messages": []}', 422),
        ("/chat/completions", b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}]}', 422),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong_with_it(
    path: str, body: bytes, status: int, serve: Serve, http: HttpClient
) -> None:
    async with serve(ScriptedModel()) as url:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        answer = await http.request("POST", f"{url}{path}", data=body, headers=headers, retry=False)
        health = await http.json("GET", url.removesuffix("/v1") + "/healthz")
    assert answer.status == status and json.loads(answer.body)["detail"]
    assert health == {"status": "ok", "model": "scripted"}


ANSWERS = {
    ErrorKind.MODEL_REFUSED_REQUEST: (422, 1),
    ErrorKind.MODEL_RATE_LIMITED: (429, 2),
    ErrorKind.MODEL_UNAVAILABLE: (503, 2),
    ErrorKind.MODEL_TIMED_OUT: (504, 2),
    ErrorKind.MODEL_UNAUTHORIZED: (502, 1),
    ErrorKind.MODEL_BAD_RESPONSE: (502, 1),
}


class Failing(Model):
    """Fails as it is told to, and counts how often it was asked."""

    name: str = "failing"
    kind: ErrorKind
    wait: float | None = None
    _asked: list[Call] = PrivateAttr(default_factory=list)

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        self._asked.append(call)
        raise ModelFailure(self.kind, "no answer", retry_after=self.wait)


@pytest.mark.parametrize("kind", ANSWERS)
async def test_the_official_client_repeats_only_what_may_succeed(kind: ErrorKind, serve: Serve) -> None:
    model = Failing(kind=kind, wait=0.01)
    status, asked = ANSWERS[kind]
    async with serve(model) as url, openai.AsyncOpenAI(base_url=url, api_key=TOKEN, max_retries=1) as api:
        with pytest.raises(openai.APIStatusError) as raised:
            await api.responses.create(model="failing", input="hello")
    assert raised.value.status_code == status and len(model._asked) == asked
    assert isinstance(raised.value.body, dict)
    assert (raised.value.body["rollout_kind"], raised.value.body["status"]) == (kind, status)
    assert raised.value.response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_model_behind_a_served_model_fails_by_the_same_kind(
    kind: ErrorKind, serve: Serve, http: HttpClient
) -> None:
    model = Failing(kind=kind)
    async with serve(model) as url:
        settings = {"name": "failing", "base_url": url, "api_key": TOKEN, "pause": 0.001}
        outer = ChatModel.model_validate(settings)
        with pytest.raises(ModelFailure, match="no answer") as raised:
            await outer.responses(ResponsesParams(input="hello"), Call(http))
    assert raised.value.rollout_kind is kind and len(model._asked) == TRIES[kind]


@pytest.mark.parametrize("path", ["responses", "chat"])
async def test_a_caller_that_hangs_up_cancels_the_call_behind_it_and_is_no_bug(
    path: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    state.update(asked=asyncio.Event(), cancelled=asyncio.Event())
    async with serve(Endless()) as url, client(url) as api:
        asked: Any = (
            api.responses.create(model="endless", input="x")
            if path == "responses"
            else api.chat.completions.create(model="endless", messages=HELLO)
        )
        task = asyncio.ensure_future(asked)
        await state["asked"].wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(10):
            await state["cancelled"].wait()
    assert "failed" not in caplog.text and "Traceback" not in caplog.text


async def test_a_server_of_ones_own_overrides_the_answer(http: HttpClient) -> None:
    class Loud(ModelServer):
        async def responses(self, params: ResponsesParams, call: Call) -> Response:
            if params.temperature:
                raise Invalid("loud enough")
            return Response.model_validate({"output": [{"role": "assistant", "content": str(params.input).upper()}]})

    async with Listener(Loud(ScriptedModel(), http).setup_webserver(), Guard(token=TOKEN), drain=1) as listener:
        async with client(f"{listener.url}/v1") as api:
            assert (await api.responses.create(model="scripted", input="hello")).output_text == "HELLO"
            with pytest.raises(openai.UnprocessableEntityError) as raised:
                await api.responses.create(model="scripted", input="hello", temperature=1)
            assert isinstance(raised.value.body, dict) and raised.value.body["detail"] == "loud enough"
