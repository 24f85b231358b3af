"""Messages writer: Anthropic's events out of Responses events; see `messages_streams`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import FunctionCall, Reasoning, Response, Usage
from pydantic import ValidationError

from gymbox.errors import ErrorKind, Invalid
from gymbox.models.chat_messages import others
from gymbox.models.messages_answers import (
    kept_fields,
    messages_from_response,
    messages_usage,
    output_text,
    stop_fields,
)
from gymbox.models.messages_blocks import RECORD, block_from_call, block_from_reasoning, is_provider_block

ERROR_TYPES = {
    ErrorKind.MODEL_REFUSED_REQUEST: "invalid_request_error",
    ErrorKind.MODEL_RATE_LIMITED: "rate_limit_error",
    ErrorKind.MODEL_UNAVAILABLE: "overloaded_error",
    ErrorKind.MODEL_TIMED_OUT: "timeout_error",
}
"""How a model's failure is called in Anthropic's words; any other kind is an `api_error`."""
_KINDS = frozenset(kind.value for kind in ErrorKind)
_THOUGHTS = {
    "response.reasoning_summary_text.delta": "summary_index",
    "response.reasoning_text.delta": "content_index",
}


class _Open:
    """A block that is being told: of a text part, a call or a reasoning item."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.told = ""
        self.part = 0


class MessagesWriter:
    """Takes Responses events, one at a time, and gives Anthropic's.

    Each block has an index of its own, in the order in which they begin. Text and thoughts end where the next block
    begins, whatever the back end says of their end; what only then comes of the thoughts (what seals them) is a block
    of its own.
    """

    def __init__(self) -> None:
        self.ended = False
        self._started = False
        self._blocks = 0
        self._open: dict[tuple[int, Any], _Open] = {}
        self._texts: dict[tuple[int, Any], str] = {}
        """What was told of each part of text, also of those whose block has ended."""
        self._arguments: dict[int, str] = {}
        """Arguments so far, told or held back."""
        self._thoughts: dict[int, str] = {}
        """Which events tell an item's reasoning."""
        self._done: set[int] = set()

    def add(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What is to be told after this event.

        Raises:
            Invalid: it tells of an item that has no place in a Messages answer.
        """
        kind = event["type"]
        if kind == "error":
            yield self._error(event)
            return
        if kind == "response.failed":
            yield self._error(event["response"].get("error") or {})
            return
        if not self._started:
            yield self._start(event.get("response") or {})
        if kind == "response.output_text.delta":
            yield from self._text(event["output_index"], event.get("content_index", 0), event["delta"])
        elif kind == "response.content_part.done":
            yield from self._end_part(event["output_index"], event.get("content_index", 0), event["part"])
        elif kind == "response.function_call_arguments.delta":
            yield from self._argue(event["output_index"], event["delta"])
        elif kind in _THOUGHTS:
            yield from self._think(event)
        elif kind == "response.output_item.added":
            yield from self._begin_item(event["output_index"], event["item"])
        elif kind == "response.output_item.done":
            yield from self._end_item(event["output_index"], event["item"])
        elif kind in ("response.completed", "response.incomplete"):
            yield from self._end(event["response"])

    def _start(self, begun: dict[str, Any]) -> dict[str, Any]:
        self._started = True
        usage = begun.get("usage")
        message: dict[str, Any] = {
            "id": begun.get("id") or f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": begun.get("model") or "",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": messages_usage(Usage.model_validate(usage) if usage else None),
        }
        return {"type": "message_start", "message": message}

    def _begin(self, key: tuple[int, Any], block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for other in [key for key in self._open if key in self._texts or key[1] == "thoughts"]:
            yield from self._stop(other)
        self._open[key] = _Open(self._blocks)
        yield {"type": "content_block_start", "index": self._blocks, "content_block": block}
        self._blocks += 1

    def _delta(self, key: tuple[int, Any], kind: str, **told: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._open[key].index, "delta": {"type": kind, **told}}

    def _stop(self, key: tuple[int, Any]) -> Iterator[dict[str, Any]]:
        opened = self._open.pop(key, None)
        if opened is not None:
            yield {"type": "content_block_stop", "index": opened.index}

    # --- text

    def _text(self, index: int, part: int, text: str, more: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        key = (index, part)
        if not text:
            return
        if key not in self._open:
            yield from self._begin(key, {"type": "text", "text": "", "citations": None, **(more or {})})
        self._texts[key] = self._texts.get(key, "") + text
        yield self._delta(key, "text_delta", text=text)

    def _end_part(self, index: int, number: int, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if part.get("type") == "refusal":
            return
        key = (index, number)
        if key not in self._texts:
            more = others(part, ("type", "text", "annotations", "logprobs", "citations"))
            yield from self._text(index, number, output_text(part), more)
        if key in self._open:
            for citation in part.get("citations") or []:
                yield self._delta(key, "citations_delta", citation=citation)
        yield from self._stop(key)

    # --- calls

    def _begin_item(self, index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if item.get("type") == "function_call":
            call = FunctionCall.model_validate({**item, "arguments": ""})
            self._arguments[index] = ""
            yield from self._begin((index, "call"), {**block_from_call(call, call.call_id), "input": {}})

    def _argue(self, index: int, text: str) -> Iterator[dict[str, Any]]:
        held = self._arguments.get(index, "")
        self._arguments[index] = held + text
        if (index, "call") not in self._open or not self._is_object(index):
            return
        # white space before an object is told with it
        told = text if held.lstrip().startswith("{") else held + text
        if told:
            yield self._delta((index, "call"), "input_json_delta", partial_json=told)

    def _is_object(self, index: int) -> bool:
        """Whether the arguments begin as an object does; nothing else is told before it is wrapped in one."""
        return self._arguments[index].lstrip().startswith("{")

    def _end_call(self, index: int, call: FunctionCall) -> Iterator[dict[str, Any]]:
        key = (index, "call")
        if key not in self._open:
            yield from self._begin(key, {**block_from_call(call, call.call_id), "input": {}})
        told = self._arguments.get(index, "") if index in self._arguments and self._is_object(index) else ""
        if not told:
            given = block_from_call(call, call.call_id)["input"]
            if given:
                yield self._delta(key, "input_json_delta", partial_json=json.dumps(given, ensure_ascii=False))
        elif call.arguments.startswith(told) and call.arguments != told:
            yield self._delta(key, "input_json_delta", partial_json=call.arguments.removeprefix(told))
        yield from self._stop(key)

    # --- reasoning

    def _think(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        index, text = event["output_index"], event["delta"]
        # a summary beside the thoughts themselves would say it twice
        if not text or self._thoughts.setdefault(index, event["type"]) != event["type"]:
            return
        key = (index, "thoughts")
        if key not in self._open:
            yield from self._begin(key, {"type": "thinking", "thinking": "", "signature": ""})
        opened, part = self._open[key], event.get(_THOUGHTS[event["type"]], 0)
        text = f"\n{text}" if part > opened.part and opened.told else text
        opened.part = part
        opened.told += text
        yield self._delta(key, "thinking_delta", thinking=text)

    def _end_reasoning(self, index: int, item: Reasoning) -> Iterator[dict[str, Any]]:
        key = (index, "thoughts")
        if key not in self._open and index in self._thoughts:
            item = Reasoning.model_validate({**item.dump(), "summary": [], "content": None})
        block = block_from_reasoning(item, foreign=True)
        if block is None:
            yield from self._stop(key)
            return
        if key not in self._open:
            if block["type"] == "redacted_thinking":
                yield from self._begin(key, block)
                yield from self._stop(key)
                return
            yield from self._begin(key, {"type": "thinking", "thinking": "", "signature": ""})
        rest = str(block.get("thinking") or "")
        told = self._open[key].told
        if rest.startswith(told) and rest != told:
            yield self._delta(key, "thinking_delta", thinking=rest.removeprefix(told))
        if block.get("signature"):
            yield self._delta(key, "signature_delta", signature=block["signature"])
        yield from self._stop(key)

    # --- ends

    def _end_item(self, index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if index in self._done:
            return
        self._done.add(index)
        kind = item.get("type")
        try:
            if kind == "function_call":
                yield from self._end_call(index, FunctionCall.model_validate(item))
            elif kind == "reasoning":
                yield from self._end_reasoning(index, Reasoning.model_validate(item))
            elif kind == "message" and item.get("role") == "assistant":
                content = item.get("content") or []
                parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else content
                for number, part in enumerate(parts):
                    yield from self._end_part(index, number, part)
            elif is_provider_block(kind):
                yield from self._begin((index, "block"), others(item, RECORD - {"id"}))
                yield from self._stop((index, "block"))
            else:
                raise Invalid(f"output[{index}]: a {kind} has no place in a Messages answer")
        except ValidationError as error:
            raise Invalid(f"output[{index}]: {faults(error)}") from error

    def _end(self, whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
        response = Response.model_validate(whole)
        for index, item in enumerate(response.output):
            # some back ends leave out that an item is done, or tell of it only here
            yield from self._end_item(index, item.dump())
        for key in list(self._open):
            yield from self._stop(key)
        marks = messages_from_response(Response(output=response.output[-1:])) if response.output else {}
        beside = others(marks, ("id", "type", "role", "model", "content", "usage", "stop_reason"))
        delta = {**beside, **kept_fields(response.model_extra or {}), **stop_fields(response)}
        yield {"type": "message_delta", "delta": delta, "usage": messages_usage(response.usage)}
        yield {"type": "message_stop"}
        self.ended = True

    def _error(self, error: dict[str, Any]) -> dict[str, Any]:
        self.ended = True
        return error_event(error.get("code"), error.get("message"))


def error_event(code: Any, message: Any) -> dict[str, Any]:
    """The event that tells of a failure in mid-stream; `code` is the `ErrorKind`'s value."""
    kind = next((name for kind, name in ERROR_TYPES.items() if kind.value == code), "api_error")
    told = {"type": kind, "message": str(message or "no reason given")}
    # of Anthropic's types, several kinds have the same
    return {
        "type": "error",
        "error": told | ({"rollout_kind": code} if isinstance(code, str) and code in _KINDS else {}),
    }
