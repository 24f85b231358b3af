"""Model calls on disk: whole, in order, without secrets, in every dialect."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from gymbox.errors import ConfigError, ErrorKind, Invalid, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, Model, capture
from gymbox.models.capture import Capture
from gymbox.models.cassettes import RecordedCall, cassette_files, recorded_calls, rollout_key
from gymbox.models.chat import ChatModel
from gymbox.models.prices import Price
from gymbox.models.recorded import RecordedModel, recorded
from gymbox.models.scripted import ScriptedModel
from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import SecretStr

HELLO = ResponsesParams.model_validate({"input": "hello"})
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
MESSAGES: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
REPLIES: list[Any] = [[{"content": "good morning"}], [{"content": "good night"}]]


async def everything(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event async for event in events]


def scripted(**more: Any) -> ScriptedModel:
    return ScriptedModel(replies=REPLIES, **more)


async def test_each_dialect_is_recorded_as_it_came_and_in_order(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path / "calls") as capturing:
        model = RecordedModel.of(scripted(), capturing)
        call = Call(http, rollout="r-1")
        answer = await model.responses(HELLO, call)
        events = await everything(model.stream(HELLO, call))
        chat = await model.chat_completions(dict(CHAT), call)
        chunks = await everything(model.chat_stream(dict(CHAT), call))
        message = await model.messages(dict(MESSAGES), call)
        message_events = await everything(model.messages_stream(dict(MESSAGES), call))
        await model.responses(HELLO, Call(http, rollout="r-2"))
        mine, missing = await capturing.calls_of("r-1")
        assert (await capturing.calls_of("r-1"))[0] == []
    assert missing == 0 and [each.call for each in mine] == list(range(6))
    assert [each.dialect for each in mine] == ["responses", "responses", "chat", "chat", "messages", "messages"]
    assert [each.stream for each in mine] == [False, True] * 3
    assert mine[0].response == answer.dump() and mine[0].request == HELLO.dump()
    assert mine[1].response == events[-1]["response"]
    assert mine[1].events == [*events[:-1], {**events[-1], "response": None}]
    assert mine[2].response == chat and mine[2].request == CHAT
    assert mine[3].events == chunks and mine[3].response is not None
    assert mine[3].response["choices"][0]["message"]["content"] == "good morning"
    assert mine[4].response == message and mine[5].events == message_events
    assert mine[5].response is not None and mine[5].response["content"][0]["text"] == "good morning"
    assert mine[0].digest == mine[1].digest != mine[2].digest == mine[3].digest
    assert all(each.seconds >= 0 and each.began > 0 and each.error is None for each in mine)
    assert mine[1].first_event is not None and mine[0].first_event is None
    others = [each for each in recorded_calls(tmp_path) if each.rollout == "r-2"]
    assert [each.call for each in others] == [0]


async def test_no_secret_reaches_the_disk_in_any_form(tmp_path: Path, http: HttpClient, stub: Any) -> None:
    secret = 'key "with" quotes/and+more'
    content = f"the key is {secret}, in JSON {json.dumps(secret)}"
    said = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    stub.plays({"choices": [said], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    params = ResponsesParams.model_validate({"input": f"tell {secret}", "metadata": {secret: "x"}})
    async with Capture(tmp_path, secrets=[secret]) as capturing:
        model = ChatModel(name="m", base_url=stub.url, api_key=SecretStr(secret), params={"metadata": None})
        answer = await RecordedModel.of(model, capturing).responses(params, Call(http))
        streaming = RecordedModel.of(ScriptedModel(replies=[[{"content": content}]]), capturing)
        await everything(streaming.stream(params, Call(http)))
    assert secret in answer.output_text
    text = b"".join(file.read_bytes() for file in cassette_files(tmp_path)).decode()
    assert "with" not in text and "[redacted " in text
    plain, streamed = recorded_calls(tmp_path)
    assert "[redacted " in json.dumps(plain.response) and streamed.events is None
    assert os.stat(cassette_files(tmp_path)[0]).st_mode & 0o077 == 0


async def test_a_secret_in_pieces_leaves_no_events(tmp_path: Path, http: HttpClient) -> None:
    class Pieces(ScriptedModel):
        async def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
            for text in ("a sec", "ret-value"):
                yield {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
            yield {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

    async with Capture(tmp_path, secrets=["secret-value"]) as capturing:
        await everything(RecordedModel.of(Pieces(), capturing).chat_stream(dict(CHAT), Call(http)))
    [call] = recorded_calls(tmp_path)
    assert call.events is None and "secret-value" not in cassette_files(tmp_path)[0].read_text()
    assert call.response is not None and call.response["choices"][0]["message"]["content"].startswith("a [redacted")


async def test_tokens_tries_and_cost_are_noted(tmp_path: Path, http: HttpClient, stub: Any) -> None:
    from aiohttp import web

    async def busy(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    said = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    stub.plays(busy, {"choices": [said], "usage": {"prompt_tokens": 100, "completion_tokens": 10}})
    price = Price(input=1_000, output=10_000)
    async with Capture(tmp_path) as capturing:
        model = ChatModel(name="m", base_url=stub.url, price=price, pause=0.01)
        await RecordedModel.of(model, capturing).responses(HELLO, Call(http))
    [call] = recorded_calls(tmp_path)
    assert call.usage is not None and (call.usage.input_tokens, call.usage.output_tokens) == (100, 10)
    assert call.cost == pytest.approx(0.1 + 0.1)
    assert [each["status"] for each in call.tries] == [503, 200]
    assert call.tries[0]["kind"] == "model_unavailable"


async def test_failed_and_cancelled_calls_are_recorded_as_such(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capturing:
        call = Call(http, rollout="r")
        failing = RecordedModel.of(scripted(fail_with={0: "rate_limited"}), capturing)
        with pytest.raises(ModelFailure):
            await failing.responses(HELLO, call)
        with pytest.raises(Invalid):
            await RecordedModel.of(scripted(), capturing).chat_completions({"messages": "no"}, call)
        slow = asyncio.create_task(RecordedModel.of(scripted(latency=60), capturing).responses(HELLO, call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        async with aclosing(cast(Any, RecordedModel.of(scripted(), capturing).stream(HELLO, call))) as events:
            await anext(events)
    limited, invalid, cancelled, left = recorded_calls(tmp_path)
    assert limited.error is not None and limited.error["rollout_kind"] == ErrorKind.MODEL_RATE_LIMITED
    assert invalid.error is not None and invalid.error["status"] == 422
    assert cancelled.cancelled and cancelled.error is None
    assert left.cancelled and left.response is None and left.events


async def test_whoever_leaves_a_stream_at_its_last_event_has_cancelled_nothing(
    tmp_path: Path, http: HttpClient
) -> None:
    async with Capture(tmp_path) as capturing:
        async with aclosing(cast(Any, RecordedModel.of(scripted(), capturing).stream(HELLO, Call(http)))) as events:
            async for event in events:
                if event["type"] == "response.completed":
                    break
    [call] = recorded_calls(tmp_path)
    assert not call.cancelled and call.response is not None


async def test_a_stream_that_fails_is_recorded_with_its_kind(tmp_path: Path, http: HttpClient) -> None:
    class Breaks(ScriptedModel):
        async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[dict[str, Any]]:
            yield {"type": "response.created", "response": {}}
            error = {"code": "model_timed_out", "message": "too slow"}
            yield {"type": "response.failed", "response": {"status": "failed", "error": error}}

        async def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
            yield {"error": {"message": "broke", "code": "model_unavailable"}}

        async def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
            yield {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}

    async with Capture(tmp_path) as capturing:
        model, call = RecordedModel.of(Breaks(), capturing), Call(http)
        await everything(model.stream(HELLO, call))
        await everything(model.chat_stream(dict(CHAT), call))
        await everything(model.messages_stream(dict(MESSAGES), call))
    failed, chat, messages = (each.error or {} for each in recorded_calls(tmp_path))
    assert failed == {"rollout_kind": "model_timed_out", "detail": "too slow"}
    assert chat["rollout_kind"] == "model_unavailable" and "busy" in messages["detail"]


async def test_a_call_whose_answer_makes_no_sense_is_recorded_all_the_same(tmp_path: Path, http: HttpClient) -> None:
    class Nonsense(ScriptedModel):
        async def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
            yield {"type": "message_start", "message": 5}
            yield {"type": "message_stop"}

    async with Capture(tmp_path) as capturing:
        await everything(RecordedModel.of(Nonsense(), capturing).messages_stream(dict(MESSAGES), Call(http)))
    [call] = recorded_calls(tmp_path)
    assert call.request["messages"] and call.response is None
    assert call.error is not None and call.error["rollout_kind"] == "model_bad_response"


async def test_sampled_records_the_same_rollouts_in_every_run_and_all_their_calls(tmp_path: Path) -> None:
    half = Capture(tmp_path, mode="sampled", rate=0.5)
    chosen = [half.records(f"0123abcd-env-{number}-0") for number in range(400)]
    again = [half.records(f"ffff0000-env-{number}-0.2.1") for number in range(400)]
    assert chosen == again and 120 < sum(chosen) < 280
    assert not Capture(tmp_path, mode="sampled", rate=0).records("x")
    assert Capture(tmp_path, mode="sampled", rate=1).records("x")
    assert rollout_key("0123abcd-env-3-0.2.1") == rollout_key("env-3-0") == "env-3-0"


async def test_off_records_nothing_and_leaves_no_file(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path / "calls", mode="off") as capturing:
        model = RecordedModel.of(scripted(), capturing)
        assert (await model.responses(HELLO, Call(http))).output_text == "good morning"
        assert await model.chat_completions(dict(CHAT), Call(http))
        assert await everything(model.stream(HELLO, Call(http)))
    assert list((tmp_path / "calls").iterdir()) == []
    with pytest.raises(ConfigError, match="holds no recorded model calls; record some with runner.capture=on"):
        cassette_files(tmp_path)


async def test_many_calls_at_once_all_get_their_line_in_files_of_bounded_size(
    tmp_path: Path, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "LARGEST_FILE", 64 * 1024)
    monkeypatch.setattr(capture, "WAITING", 8)
    async with Capture(tmp_path) as capturing:
        model = RecordedModel.of(scripted(), capturing)
        calls = [Call(http, rollout=f"r-{number % 10}") for number in range(300)]
        await asyncio.gather(*(model.responses(HELLO, call) for call in calls))
        found, missing = await capturing.calls_of("r-3")
        assert len(found) == 30 and missing == 0
    assert len(cassette_files(tmp_path)) > 1
    everyone = [(each.rollout, each.call) for each in recorded_calls(tmp_path)]
    assert sorted(everyone) == sorted((f"r-{number}", call) for number in range(10) for call in range(30))


async def test_long_streams_keep_the_answer_and_leave_the_events_out(
    tmp_path: Path, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "LARGEST_STREAM", 100)
    async with Capture(tmp_path) as capturing:
        await everything(RecordedModel.of(scripted(), capturing).stream(HELLO, Call(http)))
    [call] = recorded_calls(tmp_path)
    assert call.events is None and call.response is not None


async def test_a_disk_that_fails_is_told_once_and_fails_no_call(
    tmp_path: Path, http: HttpClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    async with Capture(tmp_path / "calls") as capturing:
        model = RecordedModel.of(scripted(), capturing)
        await model.responses(HELLO, Call(http, rollout="r"))
        assert (await capturing.calls_of("other")) == ([], 0)
        monkeypatch.setattr(os, "pwrite", full)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert await model.responses(HELLO, Call(http, rollout="r"))
            found, missing = await capturing.calls_of("r")
    assert (len(found), missing) == (1, 3)
    assert caplog.text.count("cannot record model calls") == 1


async def test_calls_that_cannot_be_read_back_are_missing_and_fail_nothing(tmp_path: Path, http: HttpClient) -> None:
    async with Capture(tmp_path) as capturing:
        await RecordedModel.of(scripted(), capturing).responses(HELLO, Call(http, rollout="r"))
        await capturing.calls_of("what was handed in before has then been written")
        cassette_files(tmp_path)[0].unlink()
        assert await capturing.calls_of("r") == ([], 1)


async def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write model calls to"):
        async with Capture(tmp_path / "file" / "calls"):
            raise AssertionError


async def test_two_captures_in_one_folder_have_a_file_each_and_damage_is_named(
    tmp_path: Path, http: HttpClient
) -> None:
    for _ in range(2):
        async with Capture(tmp_path) as capturing:
            await RecordedModel.of(scripted(), capturing).responses(HELLO, Call(http))
    one, two = cassette_files(tmp_path)
    with two.open("ab") as file:
        file.write(b'{"rollout": "torn')
    assert len(list(recorded_calls(tmp_path))) == 2 and len(list(recorded_calls(one))) == 1
    one.write_text('{"rollout": "r"}\n')
    with pytest.raises(ConfigError, match=r"0001.jsonl:1 is no recorded call"):
        list(recorded_calls(tmp_path))


async def test_the_recorded_model_opens_and_closes_its_own(tmp_path: Path, http: HttpClient) -> None:
    class Opened(ScriptedModel):
        async def open(self) -> None:
            happened.append("open")

        async def close(self) -> None:
            happened.append("close")

        async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
            return 7

    happened: list[str] = []
    plain: dict[str, Model] = {"a": Opened()}
    assert recorded(plain, None) == plain
    async with Capture(tmp_path) as capturing:
        model = recorded(plain, capturing)["a"]
        await model.open()
        assert await model.count_tokens({}, Call(http)) == 7
        await model.close()
    assert happened == ["open", "close"]


def test_what_a_line_must_have() -> None:
    call = RecordedCall(call=0, dialect="chat", digest="d", request={})
    assert Response.model_validate(call.response or {}).output == [] and call.cost is None
