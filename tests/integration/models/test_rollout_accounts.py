"""What a rollout tells of the calls that clients of its agent made: their tokens, and whose fault a failure was."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from gymbox.agents import Agent, AgentModel, Tools
from gymbox.environment import Environment
from gymbox.errors import ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, Model, accounts
from gymbox.models.chat import ChatModel
from gymbox.rollout import RolloutResult, run_rollout
from gymbox_sandbox.responses import Message, Response, ResponsesParams, Usage
from gymbox_sandbox.tasks import Task
from pydantic import PrivateAttr

from tests.unit.runner.conftest import MemoryController, environment, row

__all__ = ["environment"]
HELLO: Any = [{"role": "user", "content": "hello"}]
DONE = Response(output=[Message(role="assistant", content="done")])
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "total_tokens": 110,
        "prompt_tokens_details": {"cached_tokens": 40},
    },
}
Gpt = openai.AsyncOpenAI


class Foreign(Agent):
    """Does what a test wants with an official client."""

    _act: Any = PrivateAttr()

    @classmethod
    def that(cls, act: Callable[[Any, AgentModel], Awaitable[Response | None]]) -> Foreign:
        made = cls()
        made._act = act
        return made

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        endpoint = await model.endpoint()
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key, max_retries=0) as gpt:
            return await self._act(gpt, model) or DONE


async def done_by(agent: Agent, model: Model, make: Any, http: HttpClient) -> RolloutResult:
    return await run_rollout(row(), make(row()), agent, model, MemoryController(), http, "r-1")  # type: ignore[arg-type]


def refuses(status: int, **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "not now"}}, status=status, headers=headers)

    return handler


async def ask(gpt: Gpt, model: AgentModel) -> None:
    await gpt.responses.create(model=model.name, input="hello")


async def in_every_dialect(gpt: Gpt, model: AgentModel) -> Response:
    endpoint = await model.endpoint()
    await ask(gpt, model)
    _ = [event async for event in await gpt.responses.create(model="m", input="hello", stream=True)]
    chat = gpt.chat.completions
    await chat.create(model="m", messages=HELLO)
    _ = [chunk async for chunk in await chat.create(model="m", messages=HELLO, stream=True)]
    async with anthropic.AsyncAnthropic(base_url=endpoint.url, api_key=endpoint.key, max_retries=0) as claude:
        await claude.messages.create(model="m", max_tokens=9, messages=HELLO)
        async with claude.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
            last = await stream.get_final_message()
    await model.responses(ResponsesParams(input="hello"))
    usage = Usage(input_tokens=last.usage.input_tokens, output_tokens=10, total_tokens=9)
    return DONE.model_copy(update={"usage": usage})  # as frameworks do: the last call's


async def test_the_usage_is_the_sum_of_what_was_answered_in_any_dialect(
    environment: Callable[..., Environment], stub: Any, http: HttpClient
) -> None:
    stub.plays(ANSWER)
    agent = Foreign.that(in_every_dialect)
    result = await done_by(agent, ChatModel(name="m", base_url=stub.url), environment, http)
    assert stub.calls == 7 and result.response is not None and result.response.usage is not None
    assert result.response.usage.dump() == {
        "input_tokens": 700,
        "output_tokens": 70,
        "total_tokens": 770,
        "input_tokens_details": {"cached_tokens": 280},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


async def test_a_sum_that_is_not_known_replaces_nothing(
    environment: Callable[..., Environment], stub: Any, http: HttpClient
) -> None:
    given = Usage(input_tokens=1, output_tokens=1, total_tokens=2)

    async def twice(gpt: Gpt, model: AgentModel) -> Response:
        await ask(gpt, model)
        await ask(gpt, model)
        return DONE.model_copy(update={"usage": given})

    stub.plays(ANSWER, {**ANSWER, "usage": None})
    result = await done_by(Foreign.that(twice), ChatModel(name="m", base_url=stub.url), environment, http)
    assert result.response is not None and result.response.usage == given


def refused(status: int) -> Any:
    async def act(gpt: Gpt, model: AgentModel) -> None:
        with contextlib.suppress(openai.APIStatusError):
            await ask(gpt, model)

    return act, refuses(status)


async def gives_up(gpt: Gpt, model: AgentModel) -> None:
    with contextlib.suppress(openai.APITimeoutError):
        await gpt.with_options(timeout=0.2).chat.completions.create(model=model.name, messages=HELLO)


async def leaves_it_under_way(gpt: Gpt, model: AgentModel) -> None:
    asking = asyncio.create_task(gives_up(gpt.with_options(timeout=60), model))
    await asyncio.sleep(0.2)
    asking.add_done_callback(lambda _: None)


async def hangs_up_on_a_stream(gpt: Gpt, model: AgentModel) -> None:
    async with await gpt.chat.completions.create(model=model.name, messages=HELLO, stream=True) as stream:
        await anext(aiter(stream))


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3)
    return web.Response()


async def stalls(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "fo"}}]}
    await answer.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await asyncio.sleep(3)
    return answer


@pytest.mark.parametrize("network", ["models", "none"])
@pytest.mark.parametrize(
    ("act", "back_end", "prompt", "patience", "kind"),
    [
        (*refused(503), 0, 60, ErrorKind.MODEL_UNAVAILABLE),
        (*refused(404), 0, 60, ErrorKind.MODEL_REFUSED_REQUEST),  # and there never was another answer
        (gives_up, hangs, 0, 0.1, ErrorKind.MODEL_TIMED_OUT),
        (gives_up, hangs, 0, 60, None),
        (leaves_it_under_way, hangs, 0, 0.1, ErrorKind.MODEL_TIMED_OUT),
        (leaves_it_under_way, hangs, 0, 60, None),
        (hangs_up_on_a_stream, stalls, 0, 0, ErrorKind.MODEL_TIMED_OUT),
    ],
)
async def test_a_harness_that_gives_up_in_silence_for_want_of_an_answer_has_no_reward_if_it_had_patience(
    network: str,
    act: Any,
    back_end: Any,
    prompt: float,
    patience: float,
    kind: ErrorKind | None,
    environment: Callable[..., Environment],
    stub: Any,
    http: HttpClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def within(*rows: Any) -> Environment:
        made = environment(*rows)
        return Environment(made.folder, made.manifest.model_copy(update={"network": network}))

    monkeypatch.setattr(accounts, "PROMPTLY", prompt)
    monkeypatch.setattr(accounts, "PATIENCE", patience)
    stub.plays(back_end)
    model = ChatModel(name="m", base_url=stub.url, pause=0.001)
    result = await done_by(Foreign.that(act), model, within, http)
    if kind is None:  # else it could withhold a bad score by asking once more
        assert result.error is None and result.reward is not None
        assert result.mask_reason is not None and "given up after" in result.mask_reason
    else:
        assert result.reward is None and result.error is not None
        assert (result.error.kind, result.error.stage) == (kind, "agent")


async def test_who_hangs_up_on_a_stream_that_just_said_something_has_heard_enough(
    environment: Callable[..., Environment], stub: Any, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "PROMPTLY", 60)
    monkeypatch.setattr(accounts, "PATIENCE", 0)
    stub.plays(stalls)
    model = ChatModel(name="m", base_url=stub.url, pause=0.001)
    result = await done_by(Foreign.that(hangs_up_on_a_stream), model, environment, http)
    assert (result.error, result.mask_reason) == (None, None) and result.reward is not None


async def tries_again(gpt: Gpt, model: AgentModel) -> None:
    await gives_up(gpt, model)
    await ask(gpt, model)


async def asks_too_much_in_the_end(gpt: Gpt, model: AgentModel) -> None:
    await ask(gpt, model)
    with contextlib.suppress(openai.APIStatusError):
        await ask(gpt, model)


async def takes_the_faster_of_two(gpt: Gpt, model: AgentModel) -> None:
    slow = asyncio.create_task(ask(gpt, model))
    await asyncio.sleep(0.2)
    await ask(gpt, model)
    slow.cancel()
    await asyncio.wait({slow})


@pytest.mark.parametrize(
    ("act", "answers"),
    [
        (tries_again, (hangs, ANSWER)),
        (asks_too_much_in_the_end, (ANSWER, refuses(400))),
        (takes_the_faster_of_two, (hangs, ANSWER)),
    ],
)
async def test_who_goes_on_after_a_call_without_an_answer_is_scored(
    act: Any, answers: Any, environment: Callable[..., Environment], stub: Any, http: HttpClient
) -> None:
    stub.plays(*answers)
    model = ChatModel(name="m", base_url=stub.url, pause=0.001)
    result = await done_by(Foreign.that(act), model, environment, http)
    assert (result.error, result.mask_reason) == (None, None) and result.reward is not None


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (429, "model_rate_limited", True),
        (503, "model_unavailable", True),
        (401, "model_unauthorized", False),
        (400, "model_refused_request", False),
    ],
)
async def test_an_agent_that_fails_over_its_model_ends_in_the_models_kind_and_its_own_words(
    status: int,
    kind: str,
    retryable: bool,
    environment: Callable[..., Environment],
    stub: Any,
    http: HttpClient,
) -> None:
    async def wraps(gpt: Gpt, model: AgentModel) -> None:
        try:
            await ask(gpt, model)
        except openai.APIError as error:
            raise RuntimeError("step 3 of the plan failed") from error

    stub.plays(refuses(status))
    asked = ChatModel(name="m", base_url=stub.url, pause=0.001)
    for act, words in ((ask, "Error: Error code"), (wraps, "RuntimeError: step 3 of the plan failed (its model: ")):
        error = (await done_by(Foreign.that(act), asked, environment, http)).error
        assert error is not None and (error.stage, error.kind, error.retryable) == ("agent", kind, retryable)
        assert words in error.detail and f"answered {status}: not now" in error.detail
        assert error.detail.count("not now") == 1


@pytest.mark.parametrize("dialect", ["responses", "chat", "messages"])
async def test_a_stream_that_breaks_off_gives_the_agents_failure_its_kind(
    dialect: str, environment: Callable[..., Environment], http: HttpClient
) -> None:
    class Breaking(Model):
        name: str = "m"

        async def responses(self, params: ResponsesParams, call: Call) -> Response:
            raise AssertionError

        async def stream(self, params: ResponsesParams, call: Call) -> Any:
            yield {"type": "response.created", "response": {"id": "r", "output": []}}
            yield {
                "type": "response.failed",
                "response": {"id": "r", "error": {"code": "model_timed_out", "message": "m was silent"}},
            }

    async def streams(gpt: Gpt, model: AgentModel) -> None:
        endpoint = await model.endpoint()
        if dialect == "responses":
            stream: Any = await gpt.responses.create(model="m", input="hello", stream=True)
        elif dialect == "chat":
            stream = await gpt.chat.completions.create(model="m", messages=HELLO, stream=True)
        else:
            claude = anthropic.AsyncAnthropic(base_url=endpoint.url, api_key=endpoint.key, max_retries=0)
            stream = await claude.messages.create(model="m", max_tokens=9, messages=HELLO, stream=True)
        _ = [event async for event in stream]
        raise RuntimeError("no answer")

    error = (await done_by(Foreign.that(streams), Breaking(), environment, http)).error
    assert error is not None and (error.kind, error.retryable) == ("model_timed_out", True)
    assert error.detail.startswith(("RuntimeError: no answer", "APIError", "APIStatusError"))
    assert "m was silent" in error.detail


async def test_an_agent_that_got_over_its_models_failure_fails_by_itself(
    environment: Callable[..., Environment], stub: Any, http: HttpClient
) -> None:
    async def goes_on(gpt: Gpt, model: AgentModel) -> None:
        with pytest.raises(openai.APIStatusError):
            await ask(gpt, model)
        await ask(gpt, model)
        raise KeyError("plan")

    stub.plays(refuses(400), ANSWER)
    error = (await done_by(Foreign.that(goes_on), ChatModel(name="m", base_url=stub.url), environment, http)).error
    assert error is not None and (error.kind, error.detail) == ("agent_failed", "KeyError: 'plan'")


async def test_an_answer_to_an_earlier_call_does_not_hide_a_failure(
    environment: Callable[..., Environment], http: HttpClient
) -> None:
    class OneOfTwo(Model):
        name: str = "m"
        _failed: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

        async def responses(self, params: ResponsesParams, call: Call) -> Response:
            if params.input == "fail":
                self._failed.set()
                raise ModelFailure(ErrorKind.MODEL_UNAVAILABLE, "m is away")
            await self._failed.wait()
            await asyncio.sleep(0.05)
            return DONE

    async def at_once(gpt: Gpt, model: AgentModel) -> None:
        asked = [gpt.responses.create(model="m", input=text) for text in ("wait", "fail")]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(found[0], openai.types.responses.Response)
        raise RuntimeError("one branch is missing")

    error = (await done_by(Foreign.that(at_once), OneOfTwo(), environment, http)).error
    assert error is not None and error.kind == "model_unavailable"


async def test_what_fails_after_the_agent_is_not_put_on_the_model(
    environment: Callable[..., Environment], stub: Any, http: HttpClient
) -> None:
    async def ignores(gpt: Gpt, model: AgentModel) -> None:
        await ask(gpt, model)
        with pytest.raises(openai.APIStatusError):
            await ask(gpt, model)

    stub.plays(ANSWER, refuses(400))
    asked = ChatModel(name="m", base_url=stub.url)
    bad = row(verifier_metadata={})
    result = await run_rollout(
        bad,
        environment(bad),
        Foreign.that(ignores),
        asked,
        MemoryController(),
        http,
        "r-1",  # type: ignore[arg-type]
    )
    assert result.error is not None and (result.error.stage, result.error.kind) == ("verify", "verify_failed")
