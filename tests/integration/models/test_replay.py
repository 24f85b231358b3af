"""Answers from a cassette: byte for byte, streamed, failed as recorded, and a miss that says what is nearest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ConfigError, ErrorKind, Invalid, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.capture import Capture
from gymbox.models.cassettes import recorded_calls
from gymbox.models.chat import ChatModel
from gymbox.models.local import LocalModel
from gymbox.models.recorded import RecordedModel
from gymbox.models.replay import ReplayModel, difference
from gymbox.models.scripted import ScriptedModel
from gymbox.models.trajectories import per_call, rebuilt
from gymbox_sandbox.responses import ResponsesParams

from tests.integration.models.vllm_double import vllm_double

HELLO = ResponsesParams.model_validate({"input": "hello"})
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
MESSAGES: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
REPLIES: list[Any] = [[{"content": "one"}, {"type": "function_call", "name": "f", "arguments": {"a": 1}}]]


async def everything(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event async for event in events]


async def asked(model: Model, call: Call) -> list[str]:
    """What every way to ask gives, as JSON."""
    answers: list[Any] = [
        (await model.responses(HELLO, call)).dump(),
        await everything(model.stream(HELLO, call)),
        await model.chat_completions(dict(CHAT), call),
        await everything(model.chat_stream(dict(CHAT), call)),
        await model.messages(dict(MESSAGES), call),
        await everything(model.messages_stream(dict(MESSAGES), call)),
    ]
    return [json.dumps(answer) for answer in answers]


async def test_every_dialect_comes_back_byte_for_byte_plain_and_streamed(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capture:
        recorded = await asked(
            RecordedModel.of(ScriptedModel(replies=REPLIES), capture), Call(http, rollout="0123abcd-env-1-0")
        )
    replay = ReplayModel(cassette=tmp_path)
    assert await asked(replay, Call(http, rollout="ffff9999-env-1-0")) == recorded
    await replay.close()
    # also for whoever names no rollout
    assert await asked(replay, Call(http)) == recorded


async def test_the_same_request_again_gets_its_answers_in_order_and_then_the_last(
    tmp_path: Path, http: HttpClient
) -> None:
    async with Capture(tmp_path) as capture:
        for reply in ("a", "b"):
            model = RecordedModel.of(ScriptedModel(replies=[[{"content": reply}]]), capture)
            await model.responses(HELLO, Call(http))
    replay = ReplayModel(cassette=tmp_path)
    texts = [(await replay.responses(HELLO, Call(http))).output_text for _ in range(4)]
    assert texts == ["a", "b", "b", "b"]


async def test_a_failure_comes_back_as_the_failure_it_was(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capture:
        model = RecordedModel.of(ScriptedModel(replies=REPLIES, fail_with={0: "rate_limited"}), capture)
        with pytest.raises(ModelFailure):
            await model.responses(HELLO, Call(http, rollout="r"))
        with pytest.raises(Invalid):
            await model.chat_completions({"messages": "no"}, Call(http, rollout="r"))
    replay = ReplayModel(cassette=tmp_path)
    with pytest.raises(ModelFailure, match="as its configuration says") as failure:
        await replay.responses(HELLO, Call(http, rollout="r"))
    assert failure.value.rollout_kind == ErrorKind.MODEL_RATE_LIMITED
    with pytest.raises(Invalid):
        await replay.chat_completions({"messages": "no"}, Call(http, rollout="r"))


async def test_a_stream_that_failed_in_the_middle_fails_there_again(tmp_path: Path, http: HttpClient) -> None:
    class Breaks(ScriptedModel):
        async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[dict[str, Any]]:
            yield {"type": "response.created", "response": {}}
            error = {"code": "model_timed_out", "message": "too slow"}
            yield {"type": "response.failed", "response": {"status": "failed", "error": error}}

    async with Capture(tmp_path) as capture:
        await everything(RecordedModel.of(Breaks(), capture).stream(HELLO, Call(http)))
    created, failed = await everything(ReplayModel(cassette=tmp_path).stream(HELLO, Call(http)))
    assert created["type"] == "response.created" and failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "model_timed_out", "message": "too slow"}
    with pytest.raises(ModelFailure, match="too slow"):
        await ReplayModel(cassette=tmp_path).responses(HELLO, Call(http))


async def test_what_was_recorded_plain_is_streamed_and_the_other_way_round(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capture:
        model, call = RecordedModel.of(ScriptedModel(replies=REPLIES), capture), Call(http)
        plain = await model.responses(HELLO, call)
        await model.chat_completions(dict(CHAT), call)
        message = await model.messages(dict(MESSAGES), call)
    replay = ReplayModel(cassette=tmp_path)
    events = await everything(replay.stream(HELLO, call))
    assert events[-1]["response"]["id"] == plain.id
    chunks = await everything(replay.chat_stream(dict(CHAT) | {"stream": True}, call))
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == "one"
    told = await everything(replay.messages_stream(dict(MESSAGES), call))
    assert told[-1]["type"] == "message_stop" and told[0]["message"]["id"] == message["id"]


async def test_a_dialect_that_was_not_recorded_is_converted(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capture:
        model = RecordedModel.of(ScriptedModel(replies=REPLIES), capture)
        params = ResponsesParams.model_validate({"input": [{"role": "user", "content": "hello"}]})
        await model.responses(params, Call(http))
    replay = ReplayModel(cassette=tmp_path, match="order")
    with pytest.raises(ModelFailure, match="is not recorded"):
        await replay.chat_completions(dict(CHAT) | {"temperature": 1}, Call(http))


async def test_a_miss_names_the_nearest_and_where_it_differs(tmp_path: Path, http: HttpClient) -> None:
    def history(*texts: str) -> ResponsesParams:
        return ResponsesParams.model_validate({"input": [{"role": "user", "content": text} for text in texts]})

    async with Capture(tmp_path) as capture:
        model = RecordedModel.of(ScriptedModel(replies=REPLIES), capture)
        for texts in (("x",), ("a", "b", "c")):
            await model.responses(history(*texts), Call(http, rollout="r"))
    replay = ReplayModel(cassette=tmp_path)
    with pytest.raises(ModelFailure) as missed:
        await replay.responses(history("a", "b", "d"), Call(http, rollout="other"))
    assert missed.value.rollout_kind == ErrorKind.MODEL_REFUSED_REQUEST
    assert "nearest is call 1 of rollout r" in missed.value.detail
    assert 'request.input[2].content is "d", recorded was "c"' in missed.value.detail
    with pytest.raises(ModelFailure, match="holds no messages calls|is not recorded"):
        await replay.messages(dict(MESSAGES), Call(http, rollout="r"))
    with pytest.raises(ConfigError, match="holds no recorded model calls"):
        await ReplayModel(cassette=tmp_path / "none").open()


def test_differences_are_told_for_people() -> None:
    assert difference({"model": "a", "x": [1]}, {"model": "b", "x": [1]}) is None
    assert difference({"x": [1]}, {"x": [1, 2]}) == "request.x has 2 entries, recorded were 1"
    assert difference({}, {"x": "y" * 200}) == f'request.x is "{"y" * 116}…, recorded was null'


async def test_of_a_rollout_that_was_tried_again_the_last_attempt_counts(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capture:
        for rollout, text in (("0123abcd-e-0-0", "first"), ("0123abcd-e-0-0.1.2", "second")):
            model = RecordedModel.of(ScriptedModel(replies=[[{"content": text}]]), capture)
            await model.responses(HELLO, Call(http, rollout=rollout))
    replay = ReplayModel(cassette=tmp_path)
    assert (await replay.responses(HELLO, Call(http, rollout="aaaaaaaa-e-0-0"))).output_text == "second"


@pytest.mark.parametrize("dialect", ["responses", "chat", "messages"])
async def test_sampled_ids_are_recorded_in_every_dialect_plain_and_streamed(
    tmp_path: Path, http: HttpClient, dialect: str
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    async with vllm_double([{"content": "so", "tool_calls": [call]}]) as double, Capture(tmp_path) as capture:
        model = RecordedModel.of(ChatModel(name="m", base_url=double.url, token_ids=True), capture)
        if dialect == "responses":
            await model.responses(HELLO, Call(http))
            await everything(model.stream(HELLO, Call(http)))
        elif dialect == "chat":
            await model.chat_completions(dict(CHAT), Call(http))
            await everything(model.chat_stream(dict(CHAT), Call(http)))
        else:
            await model.messages(dict(MESSAGES), Call(http))
            await everything(model.messages_stream(dict(MESSAGES), Call(http)))
    plain, streamed = per_call(list(recorded_calls(tmp_path)))
    assert "".join(map(chr, plain["generation_token_ids"][:-1])) == "so<call>f {}</call>"
    names = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
    assert [plain[name] for name in names] == [streamed[name] for name in names]


@pytest.mark.local_model
async def test_a_real_models_answers_come_back_with_their_sampled_ids(tmp_path: Path, http: HttpClient) -> None:
    pytest.importorskip("xllamacpp")
    model = LocalModel(temperature=0, max_output_tokens=24, context=1024, token_ids=True)
    await model.open()
    try:
        async with Capture(tmp_path) as capture:
            call = Call(http, rollout="0123abcd-e-0-0")
            recorded = await asked(RecordedModel.of(model, capture), call)
            made = rebuilt((await capture.calls_of(call.rollout))[0][:1])
    finally:
        await model.close()
    assert made.main is not None and made.main.loss_mask is not None and sum(made.main.loss_mask) > 0
    assert await asked(ReplayModel(cassette=tmp_path), call) == recorded
