"""Streams: a finished answer as the server-sent events of both APIs.

gymbox waits for the whole answer and then replays it, so a stream here saves no time; it exists so that callers which
only know how to stream work unchanged. Each sequence is complete, in the order of the real API, and ends with exactly
one terminal event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "reasoning": {"summary": []},
}
"""What an item has when it begins."""
_TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete"}


def responses_events(response: dict[str, Any]) -> Iterator[bytes]:
    """The events of `POST /v1/responses` with `stream: true` that tell of this whole response."""
    for number, event in enumerate(_responses_events(response)):
        yield _sse(json.dumps({**event, "sequence_number": number}), event=event["type"])


def chat_events(answer: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """The events of `POST /v1/chat/completions` with `stream: true` that tell of this whole answer."""
    shared = {"id": answer["id"], "object": "chat.completion.chunk", "created": answer["created"]}
    shared["model"] = answer["model"]
    choice = answer["choices"][0]
    for delta in _chat_deltas(choice["message"]):
        yield _sse(json.dumps({**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    if choice.get("logprobs"):
        last["logprobs"] = choice["logprobs"]
    yield _sse(json.dumps({**shared, "choices": [last]}))
    if include_usage:
        yield _sse(json.dumps({**shared, "choices": [], "usage": answer.get("usage")}))
    yield _sse("[DONE]")


def _sse(data: str, *, event: str | None = None) -> bytes:
    named = f"event: {event}\n" if event is not None else ""
    return f"{named}data: {data}\n\n".encode()


def _chat_deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if message.get("content") is not None else None}
    if message.get("reasoning_content"):
        yield {"reasoning_content": message["reasoning_content"]}
    for name in ("content", "refusal"):
        if message.get(name):
            yield {name: message[name]}
    for index, call in enumerate(message.get("tool_calls", [])):
        yield {"tool_calls": [{"index": index, **call}]}
    rest = ("role", "content", "refusal", "reasoning_content", "tool_calls")
    extra = {name: value for name, value in message.items() if name not in rest}
    if extra:
        yield extra


def _responses_events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        yield from _item_events(index, item)
    yield {"type": _TERMINAL.get(response["status"], "response.failed"), "response": response}


def _item_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    kind = item["type"]
    begun = {**item, **_EMPTY.get(kind, {})}
    if "status" in item:
        begun["status"] = "in_progress"
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    if kind == "message":
        for number, part in enumerate(item["content"]):
            yield from _part_events({**place, "content_index": number}, part)
    elif kind == "function_call":
        arguments = item["arguments"]
        if arguments:
            yield {"type": "response.function_call_arguments.delta", **place, "delta": arguments}
        yield {
            "type": "response.function_call_arguments.done",
            **place,
            "name": item["name"],
            "arguments": arguments,
        }
    elif kind == "reasoning":
        for number, part in enumerate(item["summary"]):
            yield from _summary_events({**place, "summary_index": number}, part)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    field, name = ("refusal", "refusal") if part["type"] == "refusal" else ("text", "output_text")
    text = part.get(field) or ""
    more: dict[str, Any] = {"logprobs": []} if field == "text" else {}
    yield {"type": "response.content_part.added", **place, "part": {**part, field: ""}}
    if text:
        yield {"type": f"response.{name}.delta", **place, **more, "delta": text}
    yield {"type": f"response.{name}.done", **place, **more, field: text}
    yield {"type": "response.content_part.done", **place, "part": part}


def _summary_events(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part.get("text") or ""
    yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
    if text:
        yield {"type": "response.reasoning_summary_text.delta", **place, "delta": text}
    yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
