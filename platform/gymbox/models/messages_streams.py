"""Messages streams: answers as they come, between Anthropic's events and those of the Responses API.

    events_from_messages    Anthropic's events -> Responses events     (an endpoint streams Messages to us)
    messages_from_events    Responses events   -> Anthropic's events   (a caller wants Messages streamed)

What the pieces add up to is what `messages_answers` makes of the whole answer, with one difference: a call's arguments
stay as the model wrote them, while a whole Messages answer has only what they mean.

`message_start` tells the input's tokens where the back end told them with its first event; else they stand, like all
counts, in `message_delta`, which has the totals. Fields beside the answer's content (token ids, `incomplete_details`,
…) stand in the `delta` of `message_delta`. A failure is an `error` event, the last one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.models.chat_messages import others
from gymbox.models.messages_answers import response_from_messages, usage_from_messages
from gymbox.models.messages_blocks import call_from_block, object_input, part_from_block, reasoning_from_block
from gymbox.models.messages_writer import MessagesWriter

KINDS = {
    "authentication_error": ErrorKind.MODEL_UNAUTHORIZED,
    "permission_error": ErrorKind.MODEL_UNAUTHORIZED,
    "billing_error": ErrorKind.MODEL_UNAUTHORIZED,
    "rate_limit_error": ErrorKind.MODEL_RATE_LIMITED,
    "timeout_error": ErrorKind.MODEL_TIMED_OUT,
    "invalid_request_error": ErrorKind.MODEL_REFUSED_REQUEST,
    "not_found_error": ErrorKind.MODEL_REFUSED_REQUEST,
    "request_too_large": ErrorKind.MODEL_REFUSED_REQUEST,
}
"""What the types of Anthropic's errors are here; any other means that the endpoint cannot answer now."""


async def events_from_messages(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """The Responses events that tell the same. Ends with a terminal event, or without one where `events` end in
    mid-answer. What comes after the reason why the model stopped may be missing: the answer is whole.

    Raises:
        Invalid: an event that makes no sense, or an answer that is none.
        ModelFailure: as `events`, in mid-answer.
    """
    reader = _Reader()
    try:
        async for event in events:
            for made in reader.add(event):
                yield made
            if reader.ended:
                return
    except ModelFailure:
        if reader.answer.get("stop_reason") is None:
            raise
    for made in reader.end():
        yield made


async def messages_from_events(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Anthropic's events that tell the same: one `message_stop`, or one `error`, is the last.

    Raises:
        Invalid: an item that has no place in a Messages answer.
    """
    writer = MessagesWriter()
    async for event in events:
        for made in writer.add(event):
            yield made
        if writer.ended:
            return


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise Invalid(f"a {event['type']} needs its index, not {index!r:.60}")
    return index


class _Block:
    """A content block that is being told."""

    def __init__(self, start: dict[str, Any], output_index: int, item: dict[str, Any], content_index: int = 0) -> None:
        self.kind = str(start.get("type"))
        self.block = dict(start)
        self.place = {"output_index": output_index, "item_id": item.get("id", "")}
        self.item = item
        self.content_index = content_index
        self.raw = ""
        """The arguments as they are written."""

    def whole(self) -> dict[str, Any]:
        if self.kind in ("tool_use", "server_tool_use") and self.raw:
            self.block["input"] = object_input(self.raw)
        return self.block


class _Reader:
    def __init__(self) -> None:
        self.ended = False
        self.answer: dict[str, Any] = {"content": [], "usage": {}}
        self.begun: dict[str, Any] | None = None
        self.open: dict[int, _Block] = {}
        self.all: list[_Block] = []
        self.items: list[dict[str, Any]] = []
        self.message: int | None = None
        """Place of the message that the next text belongs to."""

    def add(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not isinstance(event, dict):
            raise Invalid(f"an event must be an object, not {event!r:.100}")
        kind = event.get("type")
        if kind == "error":
            yield self._failed(event.get("error"))
        elif kind == "message_start":
            yield from self._start(event.get("message"))
        elif kind == "content_block_start":
            yield from self._open(_index(event), event.get("content_block"))
        elif kind == "content_block_delta":
            yield from self._delta(_index(event), event.get("delta"))
        elif kind == "content_block_stop":
            block = self.open.pop(_index(event), None)
            if block is not None:
                yield from self._stop(block)
        elif kind == "message_delta":
            delta = event.get("delta")
            self.answer |= others(delta if isinstance(delta, dict) else {}, ())
            self._count(event.get("usage"))
        elif kind == "message_stop":
            yield from self.end()
        # ping, and what is not known yet, says nothing

    def _start(self, message: Any) -> Iterator[dict[str, Any]]:
        if not isinstance(message, dict):
            raise Invalid(f"message_start has no message but {message!r:.100}")
        self.answer |= others(message, ("content", "usage", "stop_reason"))
        self._count(message.get("usage"))
        response = response_from_messages({**self.answer, "stop_reason": "end_turn"}).dump()
        self.begun = {**response, "status": "in_progress", "output": [], "usage": usage_from_messages(self.usage)}
        self.answer["id"] = response["id"]
        yield {"type": "response.created", "response": self.begun}
        yield {"type": "response.in_progress", "response": self.begun}

    @property
    def usage(self) -> dict[str, Any]:
        found: dict[str, Any] = self.answer["usage"]
        return found

    def _count(self, usage: Any) -> None:
        # counts are totals so far; what is left out holds
        self.answer["usage"] = self.usage | others(usage if isinstance(usage, dict) else {}, ())

    def _open(self, index: int, start: Any) -> Iterator[dict[str, Any]]:
        if self.begun is None:
            yield from self._start({})
        if not isinstance(start, dict):
            raise Invalid(f"content_block_start has no block but {start!r:.100}")
        if start.get("type") == "text":
            yield from self._open_text(index, start)
            return
        yield from self._end_message()
        item = self._item(start)
        block = _Block(start, len(self.items), item)
        self.items.append(item)
        self._keep(index, block)
        yield {"type": "response.output_item.added", "output_index": block.place["output_index"], "item": item}
        if block.kind == "thinking" and start.get("thinking"):
            block.block["thinking"] = ""
            yield from self._delta(index, {"type": "thinking_delta", "thinking": start["thinking"]})

    def _item(self, start: dict[str, Any]) -> dict[str, Any]:
        whole = response_from_messages({"content": [start], "stop_reason": "end_turn"}).output[0].dump()
        if whole["type"] == "reasoning":
            return {**whole, "summary": []}
        if whole["type"] == "function_call":
            return {**whole, "arguments": "", "status": "in_progress"}
        return whole

    def _open_text(self, index: int, start: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self.message is None:
            made = response_from_messages({"content": [], "stop_reason": "end_turn"}).output[0].dump()
            item = {**made, "status": "in_progress", "content": []}
            self.message = len(self.items)
            self.items.append(item)
            yield {"type": "response.output_item.added", "output_index": self.message, "item": item}
        item = self.items[self.message]
        number = sum(block.item is item for block in self.all)
        block = _Block({**start, "text": ""}, self.message, item, number)
        self._keep(index, block)
        part = {"type": "output_text", "text": "", "annotations": []}
        yield {"type": "response.content_part.added", **block.place, "content_index": number, "part": part}
        if start.get("text"):
            yield from self._delta(index, {"type": "text_delta", "text": start["text"]})

    def _keep(self, index: int, block: _Block) -> None:
        if index in self.open:
            raise Invalid(f"two content blocks have the index {index!r:.20} at once")
        self.open[index] = block
        self.all.append(block)

    def _delta(self, index: int, delta: Any) -> Iterator[dict[str, Any]]:
        block = self.open.get(index)
        if block is None or not isinstance(delta, dict):
            raise Invalid(f"a piece of a content block {index!r:.20} that has not begun: {delta!r:.100}")
        kind = delta.get("type")
        place = block.place
        if kind == "text_delta" and block.kind == "text":
            text = self._grown(block, "text", delta)
            where = {**place, "content_index": block.content_index, "logprobs": []}
            yield {"type": "response.output_text.delta", **where, "delta": text}
        elif kind == "thinking_delta" and block.kind == "thinking":
            where = {**place, "summary_index": 0}
            if not block.block.get("thinking"):
                part = {"type": "summary_text", "text": ""}
                yield {"type": "response.reasoning_summary_part.added", **where, "part": part}
            text = self._grown(block, "thinking", delta)
            yield {"type": "response.reasoning_summary_text.delta", **where, "delta": text}
        elif kind == "signature_delta":
            self._grown(block, "signature", delta)
        elif kind == "citations_delta":
            block.block["citations"] = [*(block.block.get("citations") or []), delta.get("citation")]
        elif kind == "input_json_delta":
            json_text = delta.get("partial_json")
            if not isinstance(json_text, str):
                raise Invalid(f"an input_json_delta without its partial_json: {delta!r:.100}")
            block.raw += json_text
            if json_text and block.kind == "tool_use":
                yield {"type": "response.function_call_arguments.delta", **place, "delta": json_text}
        else:
            raise Invalid(f"a {kind!r:.60} in a content block of type {block.kind!r:.60}")

    def _grown(self, block: _Block, name: str, delta: dict[str, Any]) -> str:
        text = delta.get(name)
        if not isinstance(text, str):
            raise Invalid(f"a {delta.get('type')} without its {name}: {delta!r:.100}")
        block.block[name] = (block.block.get(name) or "") + text
        return text

    def _stop(self, block: _Block) -> Iterator[dict[str, Any]]:
        whole, place, item = block.whole(), block.place, block.item
        if block.kind == "text":
            part = {"annotations": [], **part_from_block(whole, "output_text")}
            item["content"] = [*item["content"], part]
            where = {**place, "content_index": block.content_index}
            yield {"type": "response.output_text.done", **where, "logprobs": [], "text": part["text"]}
            yield {"type": "response.content_part.done", **where, "part": part}
            return
        if block.kind == "tool_use":
            call = call_from_block(whole)
            call["arguments"] = block.raw or call["arguments"]
            item |= {**call, "status": "completed"}
            told = {"name": call["name"], "arguments": call["arguments"]}
            if not block.raw:
                yield {"type": "response.function_call_arguments.delta", **place, "delta": call["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **told}
        elif block.kind in ("thinking", "redacted_thinking"):
            found = reasoning_from_block({"thinking": "", **whole})
            item |= {**found, "id": item["id"]}
            if whole.get("thinking"):
                where = {**place, "summary_index": 0}
                part = {"type": "summary_text", "text": whole["thinking"]}
                yield {"type": "response.reasoning_summary_text.done", **where, "text": part["text"]}
                yield {"type": "response.reasoning_summary_part.done", **where, "part": part}
        else:
            item |= whole
        yield {"type": "response.output_item.done", "output_index": place["output_index"], "item": item}

    def _end_message(self, **last: Any) -> Iterator[dict[str, Any]]:
        if self.message is None:
            return
        index, self.message = self.message, None
        item = self.items[index]
        for number, block in list(self.open.items()):
            if block.item is item:
                yield from self._stop(self.open.pop(number))
        item |= {"status": "completed", **last}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}

    def end(self) -> Iterator[dict[str, Any]]:
        """What is still to be said once nothing more comes: nothing, unless the model said why it stopped."""
        if self.ended or self.begun is None or self.answer.get("stop_reason") is None:
            return
        for number, block in list(self.open.items()):
            if block.kind != "text":
                yield from self._stop(self.open.pop(number))
        for number in list(self.open):
            yield from self._stop(self.open.pop(number))
        self.answer["content"] = [block.whole() for block in self.all]
        response = response_from_messages(self.answer).dump()
        response["created_at"] = self.begun["created_at"]
        for index, item in enumerate(response["output"]):
            if index >= len(self.items):
                yield from self._added(index, item)
                continue
            told = self.items[index]
            item |= {name: told[name] for name in ("id", "arguments") if name in told}
            if index == self.message:
                yield from self._refusals(index, item)
                yield from self._end_message(content=item["content"], status=item["status"])
        self.ended = True
        yield {"type": f"response.{response['status']}", "response": response}

    def _added(self, index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        begun = {**item, "status": "in_progress", "content": []}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        self.items.append(begun)
        place = {"output_index": index, "item_id": item["id"]}
        for number, part in enumerate(item["content"]):
            if part["type"] == "output_text":
                where = {**place, "content_index": number}
                yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
                yield {"type": "response.output_text.done", **where, "logprobs": [], "text": part["text"]}
                yield {"type": "response.content_part.done", **where, "part": part}
        yield from self._refusals(index, item)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}

    def _refusals(self, index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number, part in enumerate(item["content"]):
            if part["type"] == "refusal":
                place = {"output_index": index, "item_id": item["id"], "content_index": number}
                yield {"type": "response.content_part.added", **place, "part": {**part, "refusal": ""}}
                yield {"type": "response.refusal.delta", **place, "delta": part["refusal"]}
                yield {"type": "response.refusal.done", **place, "refusal": part["refusal"]}
                yield {"type": "response.content_part.done", **place, "part": part}

    def _failed(self, error: Any) -> dict[str, Any]:
        self.ended = True
        error = error if isinstance(error, dict) else {"message": str(error)}
        kind = KINDS.get(str(error.get("type")), ErrorKind.MODEL_UNAVAILABLE)
        message = str(error.get("message") or error.get("type") or "no reason given")
        told = {"code": kind.value, "message": message}
        begun = self.begun or {"id": "", "object": "response", "created_at": 0, "model": "", "output": []}
        return {"type": "response.failed", "response": {**begun, "status": "failed", "error": told}}
