"""What is counted of a model's calls, in each dialect, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import pytest
from gymbox.errors import ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.metered import MeteredModel
from gymbox.models.prices import Price, Spent
from gymbox.models.replicas import Try
from gymbox.models.scripted import ScriptedModel, Tokens
from gymbox_sandbox.responses import Response, ResponsesParams

ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PARAMS = ResponsesParams(input="hi")
REPLIES: list[Any] = [[{"content": "hello there"}]]
PRICE = Price(input=1, output=2)


class Counted:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Spent | None, Price | None, bool, int]] = []

    def count(
        self, model: str, spent: Spent | None, price: Price | None, *, answered: bool, unusable: int = 0
    ) -> None:
        self.calls.append((model, spent, price, answered, unusable))


def scripted(**fields: Any) -> ScriptedModel:
    usage = Tokens(input=9, output=4)
    return ScriptedModel(**{"replies": REPLIES, "usage": usage, "price": PRICE, **fields})


async def use(model: Model, way: str) -> None:
    call = Call(http=HttpClient(), rollout="r")
    ways: dict[str, Any] = {
        "responses": lambda: model.responses(PARAMS, call),
        "chat": lambda: model.chat_completions(dict(ASKED), call),
        "messages": lambda: model.messages({**ASKED, "max_tokens": 9}, call),
        "stream": lambda: model.stream(PARAMS, call),
        "chat_stream": lambda: model.chat_stream(dict(ASKED), call),
        "messages_stream": lambda: model.messages_stream({**ASKED, "max_tokens": 9}, call),
    }
    if way.endswith("stream"):
        assert [event async for event in ways[way]()]
    else:
        assert await ways[way]()


WAYS = ["responses", "chat", "messages", "stream", "chat_stream", "messages_stream"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_is_counted_with_its_tokens_and_price_in_every_dialect(way: str) -> None:
    counted = Counted()
    model = MeteredModel.of(scripted(), counted)
    await use(model, way)
    assert counted.calls == [("scripted", Spent(input_tokens=9, output_tokens=4), PRICE, True, 0)]
    assert model.has_store is False


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_tells_no_tokens_is_unknown_and_not_free(way: str) -> None:
    counted = Counted()
    await use(MeteredModel.of(scripted(usage=Tokens()), counted), way)
    assert counted.calls == [("scripted", None, PRICE, True, 0)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_fails_is_counted_as_one_of_which_nothing_is_known(way: str) -> None:
    counted = Counted()
    with pytest.raises(ModelFailure):
        await use(MeteredModel.of(scripted(fail_with={0: "unavailable"}), counted), way)
    assert counted.calls == [("scripted", None, PRICE, False, 0)]


@pytest.mark.parametrize("way", ["stream", "chat_stream", "messages_stream"])
async def test_a_stream_that_is_left_early_is_counted_with_what_it_had_told(way: str) -> None:
    counted = Counted()
    model = MeteredModel.of(scripted(), counted)
    call = Call(http=HttpClient())
    streams: dict[str, AsyncIterator[Any]] = {
        "stream": model.stream(PARAMS, call),
        "chat_stream": model.chat_stream(dict(ASKED), call),
        "messages_stream": model.messages_stream({**ASKED, "max_tokens": 9}, call),
    }
    async with aclosing(cast(Any, streams[way])) as events:
        await anext(events)
    [(_, spent, _, answered, _)] = counted.calls
    assert not answered
    assert spent is None or spent.input_tokens == 9


class Broken(Model):
    """Streams an answer that fails in its midst, and tells what it had used."""

    name: str = "broken"

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        raise AssertionError

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Any]:
        failed = {"error": {"code": "model_unavailable", "message": "away"}, "usage": {"input_tokens": 7}}
        yield {"type": "response.failed", "response": failed}


async def test_an_answer_that_failed_in_its_midst_is_none_and_what_it_used_counts() -> None:
    counted = Counted()
    await use(MeteredModel.of(Broken(), counted), "stream")
    assert counted.calls == [("broken", Spent(input_tokens=7), None, False, 0)]


class Tried(Model):
    """Answers at the third try, after one that gave nonsense and one that gave nothing; or fails for good."""

    name: str = "tried"
    good: bool = True

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        assert call.tries is not None
        call.tries.extend([Try("a", 200, ErrorKind.MODEL_BAD_RESPONSE.value), Try("a", 503, "model_unavailable")])
        if not self.good:
            call.tries.append(Try("a", 200, ErrorKind.MODEL_BAD_RESPONSE.value))
            raise ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, "nonsense")
        call.tries.append(Try("a", 200))
        return Response.model_validate({"output": [], "usage": {"input_tokens": 3, "output_tokens": 1}})


@pytest.mark.parametrize("good", [True, False])
async def test_answers_that_could_not_be_used_are_counted_beside_the_call(good: bool) -> None:
    counted = Counted()
    model = MeteredModel.of(Tried(good=good), counted)
    if good:
        await use(model, "responses")
    else:
        with pytest.raises(ModelFailure):
            await use(model, "responses")
    [(_, spent, _, answered, unusable)] = counted.calls
    assert (spent is not None, answered, unusable) == (good, good, 1)


async def test_it_is_opened_and_closed_with_its_model_and_counts_no_counting() -> None:
    told: list[str] = []

    class Noted(ScriptedModel):
        async def open(self) -> None:
            told.append("open")

        async def close(self) -> None:
            told.append("close")

        async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
            return 5

    counted = Counted()
    model = MeteredModel.of(Noted(), counted)
    await model.open()
    assert await model.count_tokens({}, Call(http=HttpClient())) == 5
    await model.close()
    assert told == ["open", "close"] and counted.calls == []
