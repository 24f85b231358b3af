"""Recorded: a model whose calls are captured, in each dialect as it came."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

from gymbox.models import Call, Model
from gymbox.models.capture import Capture, Recording
from gymbox.models.cassettes import Dialect
from gymbox.models.events import TERMINAL, Event
from gymbox.models.front import FrontModel
from gymbox.models.whole_streams import answer_of_chunks, message_of_events

Saw = Callable[[Recording, dict[str, Any], list[dict[str, Any]]], None]


class RecordedModel(FrontModel):
    """Stands before a model and has each of its calls recorded; it answers exactly as the model does."""

    _capture: Capture = PrivateAttr()

    @classmethod
    def of(cls, model: Model, capture: Capture) -> RecordedModel:
        """`model`, recorded."""
        made = cls.before(model)
        made._capture = capture
        return made

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        if not self._capture.records(call.rollout):
            return await self._model.responses(params, call)
        with await self._recording("responses", params.dump, call) as recording:
            response = await self._model.responses(params, recording.call)
            recording.answered(response.dump)
            return response

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        return await self._answered("chat", self._model.chat_completions, body, call)

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        return await self._answered("messages", self._model.messages, body, call)

    def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        return self._streamed("responses", partial(self._model.stream, params), params.dump, call, _saw_event)

    def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        asked = dict(body)
        return self._streamed("chat", partial(self._model.chat_stream, body), lambda: asked, call, _saw_chunk)

    def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        asked = dict(body)
        stream = partial(self._model.messages_stream, body)
        return self._streamed("messages", stream, lambda: asked, call, _saw_message_event)

    async def _answered(
        self, dialect: Dialect, ask: Callable[[dict[str, Any], Call], Any], body: dict[str, Any], call: Call
    ) -> dict[str, Any]:
        if not self._capture.records(call.rollout):
            return cast(dict[str, Any], await ask(body, call))
        asked = dict(body)
        with await self._recording(dialect, lambda: asked, call) as recording:
            answer: dict[str, Any] = await ask(body, recording.call)
            told = dict(answer)
            recording.answered(lambda: told)
            return answer

    async def _streamed(
        self,
        dialect: Dialect,
        stream: Callable[[Call], AsyncIterator[Event]],
        request: Callable[[], dict[str, Any]],
        call: Call,
        saw: Saw,
    ) -> AsyncGenerator[Event]:
        if not self._capture.records(call.rollout):
            async with _closing(stream(call)) as events:
                async for event in events:
                    yield event
            return
        with await self._recording(dialect, request, call, stream=True) as recording:
            seen: list[dict[str, Any]] = []
            async with _closing(stream(recording.call)) as events:
                async for event in events:
                    saw(recording, event, seen)
                    yield event

    async def _recording(
        self, dialect: Dialect, request: Callable[[], dict[str, Any]], call: Call, *, stream: bool = False
    ) -> Recording:
        return await self._capture.recording(
            dialect, self._model.name, self._model.price, request, call, stream=stream
        )


def recorded(models: Mapping[str, Model], capture: Capture | None) -> dict[str, Model]:
    """The models, recorded where there is a capture."""
    if capture is None:
        return dict(models)
    return {name: RecordedModel.of(model, capture) for name, model in models.items()}


def _closing(events: AsyncIterator[Event]) -> aclosing[Any]:
    return aclosing(cast(Any, events))


def _saw_event(recording: Recording, event: Event, seen: list[Event]) -> None:
    if event["type"] not in TERMINAL:
        recording.saw(event)
        return
    response = event["response"]
    recording.saw({**event, "response": None})
    if event["type"] == "response.failed":
        error = response.get("error") or {}
        recording.failed({"rollout_kind": error.get("code"), "detail": error.get("message")})
    else:
        recording.answered(lambda: response)


def _saw_chunk(recording: Recording, chunk: Event, seen: list[Event]) -> None:
    seen.append(chunk)
    recording.saw(chunk)
    if chunk.get("error"):
        recording.failed({"detail": json.dumps(chunk["error"]), **_kind_of(chunk["error"])})
    elif any(choice.get("finish_reason") for choice in chunk.get("choices") or []):
        recording.answered(lambda: answer_of_chunks(seen))


def _saw_message_event(recording: Recording, event: Event, seen: list[Event]) -> None:
    seen.append(event)
    recording.saw(event)
    if event.get("type") == "error":
        recording.failed({"detail": json.dumps(event.get("error")), **_kind_of(event.get("error"))})
    elif event.get("type") == "message_stop":
        recording.answered(lambda: message_of_events(seen))


def _kind_of(error: Any) -> dict[str, Any]:
    code = error.get("rollout_kind") or error.get("code") if isinstance(error, dict) else None
    return {"rollout_kind": code} if isinstance(code, str) else {}
