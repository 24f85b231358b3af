"""Events: an answer of a model as it comes, told in the stream events of the Responses API.

An event is a JSON-ready dict without `sequence_number`; whoever sends it on numbers it. Each stream ends with exactly
one of `TERMINAL`, whose `response` is the whole answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, cast

from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import Response
from pydantic import ValidationError

from gymbox.errors import ErrorKind, Invalid, ModelFailure, Problem

Event = dict[str, Any]
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_ENDS = {"completed": "response.completed", "incomplete": "response.incomplete"}
_EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "reasoning": {"summary": []},
}
"""What an item has when it begins."""
_MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "message": ("msg", {"status": "completed"}),
    "function_call": ("fc", {"status": "completed"}),
    "function_call_output": ("fco", {"status": "completed"}),
    "reasoning": ("rs", {"summary": []}),
}
"""Prefix of the id, and the fields, that an item is given where it has none."""
_KINDS = {kind.value: kind for kind in ErrorKind}


# --- whole answers


def whole(response: dict[str, Any]) -> dict[str, Any]:
    """A dumped response with what official clients expect of each, whatever the model left out."""
    given = {name: value for name, value in response.items() if value not in (None, "")}
    id = given.get("id") or f"resp_{uuid.uuid4().hex}"
    made = {"id": id, "object": "response", "created_at": time.time(), "status": "completed"}
    found = {**made, "error": None, "incomplete_details": None, **given}
    found["output"] = [whole_item(item) for item in response.get("output") or []]
    usage = found.get("usage")
    if usage is not None:
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        found["usage"] = {**usage, **{name: usage.get(name) or value for name, value in details.items()}}
    return found


def whole_item(item: dict[str, Any]) -> dict[str, Any]:
    """An output item with an id and all that its type has."""
    # a bare message may leave its type out
    kind = item.get("type") or "message"
    prefix, defaults = _MADE.get(kind, ("item", {}))
    given = {name: value for name, value in item.items() if value is not None}
    id = given.get("id") or f"{prefix}_{uuid.uuid4().hex}"
    found: dict[str, Any] = {"id": id, "type": kind, **defaults, **given}
    if kind == "message" and found.get("role") == "assistant":
        content = found.get("content", "")
        parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else content
        found["content"] = [
            {"annotations": [], **part} if part.get("type") == "output_text" else part for part in parts
        ]
    return found


# --- answers as events


def replayed(response: dict[str, Any]) -> Iterator[Event]:
    """A finished answer as events, in the order of the real API."""
    response = whole(response)
    yield from opening(response)
    for index, item in enumerate(response["output"]):
        yield from item_events(index, item)
    yield terminal(response)


async def one_by_one(events: Iterable[Event]) -> AsyncIterator[Event]:
    """Events that are there already, as a stream has them."""
    for event in events:
        yield event


def opening(response: dict[str, Any]) -> Iterator[Event]:
    """The first two events of an answer."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}


def terminal(response: dict[str, Any]) -> Event:
    """The last event of an answer."""
    return {"type": _ENDS.get(response["status"], "response.failed"), "response": response}


def failed(failure: ModelFailure, begun: dict[str, Any] | None, model: str) -> Event:
    """The last event of an answer that failed on its way.

    Args:
        begun: what was told of the response so far.
    """
    error = {"code": failure.rollout_kind.value, "message": failure.detail}
    if failure.retry_after is not None:
        error["retry_after"] = failure.retry_after  # type: ignore[assignment]
    response = whole({"model": model, **(begun or {}), "status": "failed"})
    return {"type": "response.failed", "response": {**response, "error": error}}


def failure_in(response: dict[str, Any], model: str) -> ModelFailure:
    """The failure that a `response.failed` event tells of."""
    error = response.get("error")
    error = error if isinstance(error, dict) else {"message": error or "no reason given"}
    code, text = str(error.get("code") or ""), str(error.get("message") or "no reason given")
    if code in _KINDS:
        return ModelFailure(_KINDS[code], text, retry_after=error.get("retry_after"))
    from gymbox.models.exchange import kind_of_code

    return ModelFailure(kind_of_code(code), f"model {model!r} failed in mid-answer: {text}")


def item_events(index: int, item: dict[str, Any]) -> Iterator[Event]:
    """All events of one whole item."""
    place = {"output_index": index, "item_id": item["id"]}
    yield item_added(index, item)
    if item["type"] == "message" and isinstance(item["content"], list):
        for number, part in enumerate(item["content"]):
            yield from _part_events({**place, "content_index": number}, part)
    elif item["type"] == "function_call":
        if item["arguments"]:
            yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
        yield arguments_done(place, item)
    elif item["type"] == "reasoning":
        for number, part in enumerate(item["summary"]):
            yield from _summary_events({**place, "summary_index": number}, part)
    yield item_done(index, item)


def item_added(index: int, item: dict[str, Any]) -> Event:
    """The event with which an item begins."""
    begun = {**item, **_EMPTY.get(item["type"], {})}
    if "status" in item:
        begun["status"] = "in_progress"
    return {"type": "response.output_item.added", "output_index": index, "item": begun}


def item_done(index: int, item: dict[str, Any]) -> Event:
    """The event with which an item ends."""
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def arguments_done(place: dict[str, Any], item: dict[str, Any]) -> Event:
    """The event that tells of a call's whole arguments."""
    kind = "response.function_call_arguments.done"
    return {"type": kind, **place, "name": item["name"], "arguments": item["arguments"]}


def part_added(place: dict[str, Any], part: dict[str, Any]) -> Event:
    """The event with which a part of a message begins."""
    return {"type": "response.content_part.added", **place, "part": {**part, _field(part): ""}}


def part_delta(place: dict[str, Any], part: dict[str, Any], text: str) -> Event:
    """The event that tells of further text."""
    more: dict[str, Any] = {"logprobs": []} if _field(part) == "text" else {}
    return {"type": f"response.{_name(part)}.delta", **place, **more, "delta": text}


def part_done(place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    """The events with which a part of a message ends."""
    field = _field(part)
    more: dict[str, Any] = {"logprobs": part.get("logprobs") or []} if field == "text" else {}
    yield {"type": f"response.{_name(part)}.done", **place, **more, field: part.get(field) or ""}
    yield {"type": "response.content_part.done", **place, "part": part}


def _field(part: dict[str, Any]) -> str:
    return "refusal" if part["type"] == "refusal" else "text"


def _name(part: dict[str, Any]) -> str:
    return "refusal" if part["type"] == "refusal" else "output_text"


def _part_events(place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    text = part.get(_field(part)) or ""
    yield part_added(place, part)
    if text:
        delta = part_delta(place, part, text)
        yield delta | ({"logprobs": part["logprobs"]} if part.get("logprobs") else {})
    yield from part_done(place, part)


def _summary_events(place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    text = part.get("text") or ""
    yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
    if text:
        yield {"type": "response.reasoning_summary_text.delta", **place, "delta": text}
    yield from summary_done(place, part)


def summary_done(place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    """The events with which a part of a reasoning's summary ends."""
    yield {"type": "response.reasoning_summary_text.done", **place, "text": part.get("text") or ""}
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


# --- events to the answer


class Gathered:
    """The answer that events tell of."""

    def __init__(self, model: str = "") -> None:
        self._model = model
        self._items: dict[int, dict[str, Any]] = {}
        self._last: Event | None = None

    def add(self, event: Event) -> None:
        """Take the next event."""
        kind = event.get("type")
        if kind in TERMINAL:
            self._last = event
        elif kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = event.get("item") or {}

    def whole(self, event: Event) -> Any:
        """The response of a terminal event; some servers tell of its items only on their way."""
        told = event.get("response")
        if isinstance(told, dict) and told.get("output") == [] and self._items:
            return {**told, "output": [self._items[index] for index in sorted(self._items)]}
        return told

    def response(self) -> Response:
        """The Response.

        Raises:
            ModelFailure: the events tell of a failure.
            Invalid: it is not finished, or none.
        """
        if self._last is None:
            raise Invalid("the stream ended before the answer did")
        if self._last["type"] == "response.failed":
            raise failure_in(self._last["response"], self._model)
        try:
            return Response.model_validate(self.whole(self._last))
        except ValidationError as error:
            raise Invalid(f"it is no Response: {faults(error)}") from error


async def one_terminal(
    events: AsyncIterator[Event],
    model: str,
    *,
    redacted: Callable[[str], str] | None = None,
    of_request: bool = False,
) -> AsyncIterator[Event]:
    """The events up to the first terminal one, whatever the source still does. Where it breaks off, fails or ends
    without one, the last is `response.failed`, whose `response.error` has an `ErrorKind` as `code` and a `message`.

    Args:
        redacted: takes out of a failure's text what an endpoint may have repeated.
        of_request: another problem than a ModelFailure before the first event is about the request, and passes.

    Raises:
        ModelFailure: before the first event.
    """
    begun: dict[str, Any] | None = None
    started = False
    try:
        async with aclosing(cast(Any, events)) as source:
            async for event in source:
                started = True
                kind = event.get("type")
                if kind == "response.created" and isinstance(event.get("response"), dict):
                    begun = event["response"]
                yield event
                if kind in TERMINAL:
                    return
        failure = ModelFailure(ErrorKind.MODEL_UNAVAILABLE, f"model {model!r} ended its stream before its answer")
    except ModelFailure as error:
        failure = error
    except Problem as error:
        if of_request and not started:
            raise
        text = f"model {model!r} streamed an unusable answer: {error.detail}"
        failure = ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, text)
    if redacted is not None:
        failure = ModelFailure(failure.rollout_kind, redacted(failure.detail), retry_after=failure.retry_after)
    if not started:
        raise failure
    yield failed(failure, begun, model)
