"""Front: a model that stands before another and answers as it does, while something is noted of each call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import Any, Self, cast

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.accounts import Entry
from gymbox.models.events import Event


class FrontModel(Model):
    """Has the name, price, store and life of the model behind it. How calls get there each front says itself, for
    every dialect: one that it left out would be converted, and the model asked in another than the caller's."""

    _model: Model = PrivateAttr()

    @classmethod
    def before(cls, model: Model) -> Self:
        """One that stands before `model`."""
        made = cls(name=model.name, price=model.price)
        made._model = model
        return made

    @property
    def has_store(self) -> bool:
        return self._model.has_store

    def check(self) -> None:
        self._model.check()

    async def open(self) -> None:
        await self._model.open()

    async def ready(self, http: HttpClient, timeout: float) -> None:
        await self._model.ready(http, timeout)

    async def close(self) -> None:
        await self._model.close()

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """It samples nothing and costs nothing, so there is nothing to note."""
        return await self._model.count_tokens(body, call)


class CountingModel(FrontModel):
    """A front with an entry for each call that samples, which is told what comes of it, in the dialect as it came."""

    @abstractmethod
    def _entered(self, call: Call) -> AbstractContextManager[tuple[Call, Entry]]:
        """The call as the model gets it, and its entry, for as long as the block lasts."""

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        with self._entered(call) as (call, entry):
            response = await self._model.responses(params, call)
            entry.answered(response.usage and response.usage.dump())
            return response

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        return await self._answered(self._model.chat_completions, body, call)

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        return await self._answered(self._model.messages, body, call)

    def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        return self._streamed(partial(self._model.stream, params), Entry.saw_event, call)

    def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        return self._streamed(partial(self._model.chat_stream, body), Entry.saw_chunk, call)

    def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        return self._streamed(partial(self._model.messages_stream, body), Entry.saw_message_event, call)

    async def _answered(
        self, ask: Callable[[dict[str, Any], Call], Awaitable[dict[str, Any]]], body: dict[str, Any], call: Call
    ) -> dict[str, Any]:
        with self._entered(call) as (call, entry):
            answer = await ask(body, call)
            entry.answered(answer.get("usage"))
            return answer

    async def _streamed(
        self, stream: Callable[[Call], AsyncIterator[Event]], saw: Callable[[Entry, Event], None], call: Call
    ) -> AsyncGenerator[Event]:
        with self._entered(call) as (call, entry):
            async with aclosing(cast(Any, stream(call))) as events:
                async for event in events:
                    saw(entry, event)
                    yield event
