"""Chat streams: answers as they come, between Chat chunks and the events of the Responses API.

    events_from_chat    Chat chunks        -> Responses events     (an endpoint streams Chat to us)
    chat_from_events    Responses events   -> Chat chunks          (a caller wants Chat streamed)

The last event's response is what `chat_answers` makes of the whole answer, so it is the same as if the answer had not
been streamed. The pieces are told as they come: where a model closes a `<think>` that its template opened, the text
before it was told as text, and only the last event knows better.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, cast

from gymbox_sandbox.chat_history import REASONING_FIELDS
from gymbox_sandbox.responses import Response

from gymbox.errors import ErrorKind, ModelFailure
from gymbox.models import events as told
from gymbox.models.chat_answers import chat_error, chat_from_response, response_from_chat
from gymbox.models.events import TERMINAL, Event, Gathered
from gymbox.models.exchange import error_of, kind_of_code
from gymbox.models.thoughts import Thoughts
from gymbox.models.token_ids import TRAINING_FIELDS
from gymbox.models.whole_streams import GrowingAnswer

USAGE_GRACE = 5.0
"""Seconds that an endpoint gets, after the answer's end, to tell its usage or close the line."""


# --- chunks of an endpoint


async def whole_chunks(
    chunks: AsyncIterator[dict[str, Any]], model: str, count: int = 1
) -> AsyncIterator[dict[str, Any]]:
    """The chunks of one finished answer; ends with it, whatever the endpoint does after its usage, or without one.

    Args:
        count: of the choices that were asked for.

    Raises:
        ModelFailure: the stream tells of an error, or ends or breaks off before the answer's end.
    """
    finished = False
    ended: set[Any] = set()
    async with aclosing(cast(Any, chunks)) as source:
        while True:
            try:
                async with asyncio.timeout(USAGE_GRACE if finished else None):
                    chunk = await anext(source, None)
            except (TimeoutError, ModelFailure):
                if finished:
                    return
                raise
            if chunk is None:
                break
            if chunk.get("error"):
                code, text = error_of(chunk)
                raise ModelFailure(kind_of_code(code), f"model {model!r} failed in mid-answer: {text}")
            ended |= {choice.get("index") for choice in chunk.get("choices") or [] if choice.get("finish_reason")}
            finished = len(ended) >= count
            yield chunk
            if finished and chunk.get("usage"):
                return
    if not finished:
        raise ModelFailure(ErrorKind.MODEL_UNAVAILABLE, f"model {model!r} ended its stream before its answer")


def chunk_of_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """A whole Chat answer as one chunk, from an endpoint that does not stream."""
    choices = []
    for choice in answer.get("choices") or []:
        delta = dict(choice.get("message") or {})
        if isinstance(delta.get("tool_calls"), list):
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
        choices.append({**{name: value for name, value in choice.items() if name != "message"}, "delta": delta})
    return {**answer, "object": "chat.completion.chunk", "choices": choices}


async def events_from_chat(
    chunks: AsyncIterator[dict[str, Any]],
    read: Callable[[dict[str, Any]], Response] = response_from_chat,
    *,
    log_probs: bool = True,
) -> AsyncIterator[Event]:
    """The Responses events that tell the same. Ends with a terminal event, or raises.

    Args:
        chunks: of a finished answer; see `whole_chunks`.
        read: makes the Response of the whole Chat answer.
        log_probs: tell them with the text.

    Raises:
        Invalid: the answer is none that `read` takes.
    """
    teller = _Teller(log_probs)
    async with aclosing(cast(Any, chunks)) as source:
        async for chunk in source:
            for event in teller.add(chunk):
                yield event
    for event in teller.end(read):
        yield event


class _Item:
    """An output item that is being told."""

    def __init__(self, index: int, item: dict[str, Any]) -> None:
        self.index = index
        self.item = item
        self.place = {"output_index": index, "item_id": item["id"]}
        self.parts: list[dict[str, Any]] = []
        """Parts of a message that have begun."""


class _Teller:
    def __init__(self, log_probs: bool) -> None:
        self._answer = GrowingAnswer()
        self._log_probs = log_probs
        self._begun: dict[str, Any] | None = None
        self._count = 0
        self._reasoning: _Item | None = None
        self._message: _Item | None = None
        self._calls: dict[int, _Item] = {}
        self._thoughts = Thoughts()

    def add(self, chunk: dict[str, Any]) -> Iterator[Event]:
        if self._begun is None:
            self._begun = {
                "id": str(chunk.get("id") or f"resp_{uuid.uuid4().hex}"),
                "object": "response",
                "created_at": chunk.get("created") or time.time(),
                "model": chunk.get("model") or "",
            }
            yield from told.opening(told.whole(self._begun))
        pieces = self._answer.add(chunk)
        for choice in (chunk.get("choices") or [])[:1]:
            yield from self._told(choice)
        for number, piece in pieces:
            yield from self._call(number, piece)

    def _told(self, choice: dict[str, Any]) -> Iterator[Event]:
        delta = choice.get("delta") or {}
        for name in REASONING_FIELDS:
            if isinstance(delta.get(name), str) and delta[name]:
                self._thoughts.are_apart()
                yield from self._reason(delta[name])
                break
        content = delta.get("content")
        if isinstance(content, str) and content:
            logprobs = choice.get("logprobs")
            entries = (logprobs.get("content") or []) if self._log_probs and isinstance(logprobs, dict) else []
            for thought, text in self._thoughts.split(content):
                if thought:
                    yield from self._reason(text)
                else:
                    yield from self._say({"type": "output_text", "text": "", "annotations": []}, text, entries)
                    entries = []
        if isinstance(delta.get("refusal"), str) and delta["refusal"]:
            yield from self._rest()
            yield from self._say({"type": "refusal", "refusal": ""}, delta["refusal"], [])

    def _rest(self) -> Iterator[Event]:
        """What was kept back for it might belong to a tag, told before what comes behind it."""
        for thought, text in self._thoughts.rest():
            if thought:
                yield from self._reason(text)
            else:
                yield from self._say({"type": "output_text", "text": "", "annotations": []}, text, [])

    def _next(self, item: dict[str, Any]) -> _Item:
        begun = _Item(self._count, told.whole_item(item))
        self._count += 1
        return begun

    def _reason(self, text: str) -> Iterator[Event]:
        part = {"type": "summary_text", "text": ""}
        if self._reasoning is None:
            self._reasoning = self._next({"type": "reasoning", "summary": []})
            yield told.item_added(self._reasoning.index, self._reasoning.item)
            place = {**self._reasoning.place, "summary_index": 0}
            yield {"type": "response.reasoning_summary_part.added", **place, "part": part}
        place = {**self._reasoning.place, "summary_index": 0}
        yield {"type": "response.reasoning_summary_text.delta", **place, "delta": text}

    def _say(self, part: dict[str, Any], text: str, entries: list[Any]) -> Iterator[Event]:
        if self._message is None:
            self._message = self._next({"type": "message", "role": "assistant", "content": []})
            yield told.item_added(self._message.index, self._message.item)
        kinds = [each["type"] for each in self._message.parts]
        if part["type"] not in kinds:
            kinds.append(part["type"])
            self._message.parts.append(part)
            yield told.part_added({**self._message.place, "content_index": len(kinds) - 1}, part)
        place = {**self._message.place, "content_index": kinds.index(part["type"])}
        delta = told.part_delta(place, part, text)
        yield {**delta, "logprobs": entries} if entries else delta

    def _call(self, number: int, piece: dict[str, Any]) -> Iterator[Event]:
        given = piece.get("function")
        function: dict[str, Any] = given if isinstance(given, dict) else {}
        call = self._calls.get(number)
        if call is None:
            yield from self._rest()
            identity = self._answer.identify(number, f"call_{uuid.uuid4().hex[:24]}")
            item = {"type": "function_call", "call_id": identity, "name": function.get("name") or "", "arguments": ""}
            call = self._calls[number] = self._next(item)
            yield told.item_added(call.index, call.item)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            yield {"type": "response.function_call_arguments.delta", **call.place, "delta": arguments}

    def end(self, read: Callable[[dict[str, Any]], Response]) -> Iterator[Event]:
        yield from self._rest()
        response = read(self._answer.whole() or {}).dump()
        response["id"], response["created_at"] = (
            (self._begun or response)["id"],
            (self._begun or response)["created_at"],
        )
        output: list[tuple[int, dict[str, Any]]] = []
        calls = iter([self._calls[number] for number in sorted(self._calls)])
        for item in response["output"]:
            item = told.whole_item(item)
            begun = self._take(item["type"], calls)
            if begun is None:
                begun = self._next(item)
                yield from told.item_events(begun.index, item)
            else:
                item = {**item, "id": begun.item["id"]}
                yield from self._ended(begun, item)
            output.append((begun.index, item))
        if self._message is not None:
            # all that it told was the end of a thought whose beginning was in the prompt: the answer is without it
            empty = {**self._message.item, "status": "completed", "content": [*self._message.parts]}
            yield from self._ended(self._message, empty)
        response["output"] = _in_order(output)
        yield told.terminal(told.whole(response))

    def _take(self, kind: str, calls: Iterator[_Item]) -> _Item | None:
        begun: _Item | None = None
        if kind == "function_call":
            begun = next(calls, None)
        elif kind == "message":
            begun, self._message = self._message, None
        elif kind == "reasoning":
            begun, self._reasoning = self._reasoning, None
        return begun

    def _ended(self, begun: _Item, item: dict[str, Any]) -> Iterator[Event]:
        if item["type"] == "function_call":
            yield told.arguments_done(begun.place, item)
        elif item["type"] == "reasoning":
            for part in item["summary"][:1]:
                yield from told.summary_done({**begun.place, "summary_index": 0}, part)
        else:
            kinds = [part["type"] for part in begun.parts]
            places = {kind: {**begun.place, "content_index": index} for index, kind in enumerate(kinds)}
            for part in item["content"]:
                if part["type"] in places:
                    yield from told.part_done(places[part["type"]], part)
            # as they were told: a refusal may have come before a text
            item["content"].sort(key=lambda part: kinds.index(part["type"]) if part["type"] in kinds else len(kinds))
        yield told.item_done(begun.index, item)


def _in_order(output: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The items as they began, what belongs on the last one moved there."""
    items = [item for _, item in sorted(output, key=lambda pair: pair[0])]
    last = output[-1][1] if output else None
    if last is not None and items[-1] is not last:
        for name in TRAINING_FIELDS:
            if name in last:
                items[-1][name] = last.pop(name)
    return items


# --- events to chunks


async def chat_from_events(events: AsyncIterator[Event]) -> AsyncIterator[dict[str, Any]]:
    """The Chat chunks that tell the same: deltas, one with the finish reason, one with the usage and no choices. Where
    the answer fails, the last chunk has an `error` instead.

    Raises:
        Invalid: an item that has no place in a Chat answer.
    """
    writer = _Writer()
    async with aclosing(cast(Any, events)) as source:
        async for event in source:
            for chunk in writer.add(event):
                yield chunk
            if event["type"] in TERMINAL:
                return


class _Writer:
    def __init__(self) -> None:
        self._shared: dict[str, Any] = {}
        self._gathered = Gathered()
        self._calls: dict[int, int] = {}
        self._sent: dict[str, int] = {}
        """Characters of each text that are told."""
        self._arguments: dict[int, int] = {}

    def add(self, event: Event) -> Iterator[dict[str, Any]]:
        kind = event["type"]
        self._gathered.add(event)
        if kind in TERMINAL:
            yield from self._end(event)
            return
        if not self._shared:
            yield from self._begin(event.get("response") or {})
        if kind == "response.output_text.delta":
            yield self._text("content", event["delta"], event.get("logprobs"))
        elif kind == "response.refusal.delta":
            yield self._text("refusal", event["delta"])
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            yield self._text("reasoning_content", event["delta"])
        elif kind == "response.output_item.added" and event["item"].get("type") == "function_call":
            item = event["item"]
            yield self._call(event["output_index"], item)
        elif kind == "response.function_call_arguments.delta" and event["output_index"] in self._calls:
            yield self._more(event["output_index"], event["delta"])

    def _begin(self, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._shared = {
            "id": response.get("id") or f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": int(response.get("created_at") or time.time()),
            "model": response.get("model") or "",
        }
        yield self._chunk({"role": "assistant", "content": None})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {**more, "index": 0, "delta": delta, "finish_reason": finish}
        return {**self._shared, "choices": [choice]}

    def _text(self, name: str, text: str, entries: Any = None) -> dict[str, Any]:
        self._sent[name] = self._sent.get(name, 0) + len(text)
        more: dict[str, Any] = {"logprobs": {"content": entries}} if entries else {}
        return self._chunk({name: text}, **more)

    def _call(self, place: int, item: dict[str, Any]) -> dict[str, Any]:
        index = self._calls[place] = len(self._calls)
        self._arguments[index] = 0
        function = {"name": item["name"], "arguments": ""}
        call = {"index": index, "id": item["call_id"], "type": "function", "function": function}
        return self._chunk({"tool_calls": [call]})

    def _more(self, place: int, text: str) -> dict[str, Any]:
        index = self._calls[place]
        self._arguments[index] += len(text)
        return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def _end(self, event: Event) -> Iterator[dict[str, Any]]:
        if event["type"] == "response.failed":
            if not self._shared:
                yield from self._begin(event["response"])
            yield {**self._shared, "choices": [], "error": chat_error(self._failure())}
            return
        answer = chat_from_response(self._gathered.response())
        if not self._shared:
            yield from self._begin(event["response"])
        choice = answer["choices"][0]
        message = choice.pop("message")
        for name in ("reasoning_content", "content", "refusal"):
            rest = (message.get(name) or "")[self._sent.get(name, 0) :]
            if rest or (message.get(name) == "" and name not in self._sent):
                yield self._text(name, rest)
        for index, call in enumerate(message.get("tool_calls") or []):
            if index >= len(self._calls):
                yield self._chunk({"tool_calls": [{"index": index, **call}]})
            elif rest := call["function"]["arguments"][self._arguments[index] :]:
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": rest}}]})
        told_already = ("role", "content", "refusal", "reasoning_content", "tool_calls")
        extra = {name: value for name, value in message.items() if name not in told_already}
        if extra:
            yield self._chunk(extra)
        choice.pop("logprobs", None)
        finish = choice.pop("finish_reason")
        choice.pop("index")
        yield self._chunk({}, finish, **choice)
        beside = {name: value for name, value in answer.items() if name not in ("choices", "usage", "object")}
        yield {**beside, **self._shared, "choices": [], "usage": answer.get("usage")}

    def _failure(self) -> ModelFailure:
        try:
            self._gathered.response()
        except ModelFailure as failure:
            return failure
        raise AssertionError("unreachable")
