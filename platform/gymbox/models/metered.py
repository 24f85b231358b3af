"""Metered: a model whose calls are counted by what they use, in each dialect as it came."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

from gymbox.models import Call, Model
from gymbox.models.events import TERMINAL, Event
from gymbox.models.front import FrontModel
from gymbox.models.prices import Price, Spent, spent_in


class CallMeter(Protocol):
    """What is told of each call that has ended."""

    def count(
        self, model: str, spent: Spent | None, price: Price | None, *, answered: bool, unusable: int = 0
    ) -> None:
        """`spent` is None where nobody told what it used; `unusable` answers came before, of which nobody did."""


class MeteredModel(FrontModel):
    """Stands before a model and has each of its calls counted; it answers exactly as the model does."""

    _meter: CallMeter = PrivateAttr()

    @classmethod
    def of(cls, model: Model, meter: CallMeter) -> MeteredModel:
        """`model`, its calls counted by `meter`."""
        made = cls.before(model)
        made._meter = meter
        return made

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        with self._counted(call) as count:
            response = await self._model.responses(params, count.call)
            count.answered(response.usage and response.usage.model_dump())
            return response

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        with self._counted(call) as count:
            answer = await self._model.chat_completions(body, count.call)
            count.answered(answer.get("usage"))
            return answer

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        with self._counted(call) as count:
            answer = await self._model.messages(body, count.call)
            count.answered(answer.get("usage"))
            return answer

    def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        return self._streamed(partial(self._model.stream, params), call, _saw_event)

    def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        return self._streamed(partial(self._model.chat_stream, body), call, _saw_chunk)

    def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        return self._streamed(partial(self._model.messages_stream, body), call, _saw_message_event)

    async def _streamed(
        self, stream: Callable[[Call], AsyncIterator[Event]], call: Call, saw: Callable[[_Count, Event], None]
    ) -> AsyncGenerator[Event]:
        with self._counted(call) as count:
            async with aclosing(cast(Any, stream(count.call))) as events:
                async for event in events:
                    saw(count, event)
                    yield event

    @contextmanager
    def _counted(self, call: Call) -> Iterator[_Count]:
        """Count the call when the block ends, however it does."""
        count = _Count(call.noting_tries())
        try:
            yield count
        except BaseException:
            count.whole = False
            raise
        finally:
            unusable = sum(tried.status == 200 and tried.kind is not None for tried in count.call.tries or [])
            failed = 0 if count.whole else 1  # its own last try is the call itself
            spent = spent_in({"usage": count.usage})
            if spent is not None and not spent.input_tokens + spent.output_tokens:
                spent = None  # every call has some: conversions write 0 where an endpoint told nothing
            self._meter.count(
                self._model.name,
                spent,
                self._model.price,
                answered=count.whole,
                unusable=max(0, unusable - failed),
            )


@dataclass(slots=True)
class _Count:
    """What is known of a call under way."""

    call: Call
    """What to make it with."""
    usage: dict[str, Any] | None = None
    whole: bool = False

    def answered(self, usage: Any) -> None:
        self.whole = True
        if isinstance(usage, dict) and usage:
            self.usage = usage


def _saw_event(count: _Count, event: Event) -> None:
    if event.get("type") in TERMINAL:
        usage = event["response"].get("usage")
        count.answered(usage)
        count.whole = event["type"] != "response.failed"


def _saw_chunk(count: _Count, chunk: Event) -> None:
    if isinstance(chunk.get("usage"), dict):
        count.usage = chunk["usage"]
    if chunk.get("error"):
        count.whole = False
    elif any(choice.get("finish_reason") for choice in chunk.get("choices") or []):
        count.whole = True


def _saw_message_event(count: _Count, event: Event) -> None:
    kind = event.get("type")
    told = event["message"].get("usage") if kind == "message_start" else event.get("usage")
    if isinstance(told, dict):
        # the first event has the input, a later one the output up to there
        count.usage = {**(count.usage or {}), **{name: value for name, value in told.items() if value is not None}}
    if kind == "message_stop":
        count.whole = True
