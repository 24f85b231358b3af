"""Messages history: a history of Responses items as the messages of Anthropic's API, and back, legal on both sides.

One turn of the model is one assistant message: its thinking, text and calls in the order they came. All results of a
turn come first in the user message that follows it, in call order, and what the user says then comes behind them.
Blank text has no block, and a message without blocks is left out. System and developer messages that open the history
are the request's `system`; later ones are messages of role `system`. A history that ends with the model's own words
ends without white space, for the API refuses any there.

Ids of calls are made legal (letters, digits, `_`, `-`) and unique, in a call and its result alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Item, Message, OtherItem, Reasoning

from gymbox.errors import Invalid
from gymbox.models.call_outputs import outputs_of_calls
from gymbox.models.chat_messages import others, parts_of
from gymbox.models.messages_blocks import (
    RECORD,
    block_from_call,
    block_from_part,
    block_from_reasoning,
    call_from_block,
    is_provider_block,
    part_from_block,
    reasoning_from_block,
    text_field,
)
from gymbox.models.request_fields import items_of_each

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_OF_RESULT = ("type", "tool_use_id", "content", "is_error")


# --- messages to items


def items_from_messages(messages: Any) -> list[dict[str, Any]]:
    """The items of a history.

    Raises:
        Invalid: a message that cannot be expressed, by its number.
    """
    return items_of_each(messages, _items_from_message, "Messages")


def _items_from_message(message: Any) -> list[dict[str, Any]]:
    if not isinstance(message, dict):
        raise Invalid(f"a message must be an object, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    beside = others(message, ("role", "content"))
    if role not in ("user", "assistant", "system"):
        raise Invalid(f"role must be user, assistant or system, not {role!r:.60}")
    if isinstance(content, str):
        return [{"type": "message", "role": role, **beside, "content": content}]
    if not isinstance(content, list):
        raise Invalid(f"content must be a string or a list of blocks, not {type(content).__name__}")
    if role == "assistant":
        return items_from_blocks(content, beside)
    items: list[dict[str, Any]] = []
    for block in content:
        if role == "user" and isinstance(block, dict) and block.get("type") == "tool_result":
            items.append(_output(block))
            continue
        part = part_from_block(block)
        if not items or items[-1]["type"] != "message":
            items.append({"type": "message", "role": role, **beside, "content": []})
        items[-1]["content"].append(part)
    return items


def items_from_blocks(blocks: list[Any], beside: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The items that an assistant's blocks are; neighbouring texts are one message.

    Raises:
        Invalid: a block that has no place in a model's turn.
    """
    items: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("thinking", "redacted_thinking"):
            items.append(reasoning_from_block(block))
        elif kind == "tool_use":
            items.append(call_from_block(block))
        elif is_provider_block(kind):
            items.append({name: value for name, value in block.items() if value is not None})
        elif kind == "text":
            if not items or items[-1]["type"] != "message":
                items.append({"type": "message", "role": "assistant", **(beside or {}), "content": []})
            items[-1]["content"].append(part_from_block(block, "output_text"))
        else:
            raise Invalid(f"a block of type {kind!r:.60} has no place in an assistant's turn")
    return items


def _output(block: dict[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        content = [part_from_block(part) for part in content]
    elif not isinstance(content, str | None):
        raise Invalid(f"a tool_result's content must be a string or blocks, not {type(content).__name__}")
    failed = {"status": "incomplete"} if block.get("is_error") else {}
    return {
        "type": "function_call_output",
        **others(block, _OF_RESULT),
        **failed,
        "call_id": text_field(block, "tool_use_id"),
        "output": "" if content is None else content,
    }


# --- items to messages


def messages_from_items(
    items: Sequence[Item], *, foreign: bool = False
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The blocks of `system`, and the messages.

    Args:
        foreign: send back reasoning that Anthropic did not sign, too.

    Raises:
        Invalid: an item or part with no place there, a call without output, an output without call, or nothing is
            said at all.
    """
    history = _History(items, foreign)
    for index, item in enumerate(items):
        history.close_before(index, item)
        try:
            history.add(index, item)
        except Invalid as error:
            raise Invalid(f"input[{index}]: {error.detail}") from error
    history.end()
    return history.system, history.messages


class _History:
    def __init__(self, items: Sequence[Item], foreign: bool) -> None:
        self.foreign = foreign
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.outputs = outputs_of_calls(items)
        self.taken: set[str] = set()
        self.turn: list[dict[str, Any]] | None = None
        self.calls: list[tuple[int, str]] = []
        self.answered_at: int | None = None
        """Where the first result of the turn's calls stands."""
        self.answering = False
        """Whether the last message holds results and takes what the user says next."""

    def close_before(self, index: int, item: Item) -> None:
        """End the model's turn where this item is no more part of it."""
        if isinstance(item, FunctionCallOutput):
            return
        answered = self.answered_at is not None and self.answered_at < index
        if answered or (isinstance(item, Message) and item.role != "assistant"):
            self._close()

    def add(self, index: int, item: Item) -> None:
        if isinstance(item, FunctionCallOutput):
            return
        if isinstance(item, Message) and item.role != "assistant":
            self._add_message(item)
            return
        self.turn = self.turn or []
        if isinstance(item, Message):
            self.turn += self._blocks(item)
        elif isinstance(item, Reasoning):
            block = block_from_reasoning(item, foreign=self.foreign)
            self.turn += [block] if block else []
        elif isinstance(item, FunctionCall):
            identity = self._identity(item.call_id)
            self.turn.append(block_from_call(item, identity))
            self.calls.append((index, identity))
            position, _ = self.outputs[index]
            self.answered_at = position if self.answered_at is None else min(position, self.answered_at)
        elif isinstance(item, OtherItem) and is_provider_block(item.type):
            self.turn.append(item.dump())
        else:
            raise Invalid(f"an item of type {item.type!r:.60} has no place in a Messages request")

    def end(self) -> None:
        self._close()
        last = self.messages[-1] if self.messages else None
        if last is None:
            raise Invalid("input: it says nothing, and a Messages request needs a message")
        if last["role"] == "assistant" and last["content"][-1]["type"] == "text":
            block = last["content"][-1]
            last["content"][-1] = {**block, "text": block["text"].rstrip()}

    def _add_message(self, item: Message) -> None:
        role = "user" if item.role == "user" else "system"
        blocks = self._blocks(item)
        if not blocks:
            return
        if role == "system" and not self.messages:
            self.system += blocks
        elif role == "user" and self.answering:
            self.messages[-1]["content"] += blocks
        else:
            # a string stays one
            said = item.content if isinstance(item.content, str) else blocks
            self.messages.append({"role": role, **others(item.model_extra, RECORD), "content": said})
        self.answering = self.answering and role == "user"

    def _close(self) -> None:
        if self.turn is None:
            return
        if self.turn:
            self._say(self.turn)
        results = [self._result(index, identity) for index, identity in self.calls]
        if results:
            self.messages.append({"role": "user", "content": results})
            self.answering = True
        self.turn, self.calls, self.answered_at = None, [], None

    def _say(self, blocks: list[dict[str, Any]]) -> None:
        self.messages.append({"role": "assistant", "content": blocks})
        self.answering = False

    def _blocks(self, item: Message) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for part in parts_of(item):
            if part.get("type") == "refusal" and item.role == "assistant":
                # in a history it is what the model said
                part = {**part, "type": "output_text", "text": text_field(part, "refusal")}
                del part["refusal"]
            block = block_from_part(part)
            found += [block] if block else []
        if item.role != "user" and any(block["type"] != "text" for block in found):
            raise Invalid(f"a message of role {item.role!r} can only hold text in a Messages request")
        return found

    def _identity(self, call_id: str) -> str:
        wanted = _ILLEGAL.sub("_", call_id) or "call"
        identity, number = wanted, 1
        while identity in self.taken:
            number += 1
            identity = f"{wanted}_{number}"
        self.taken.add(identity)
        return identity

    def _result(self, index: int, identity: str) -> dict[str, Any]:
        position, output = self.outputs[index]
        result = {"type": "tool_result", "tool_use_id": identity, **others(output.model_extra, RECORD)}
        if output.status == "incomplete":
            result["is_error"] = True
        content: Any = output.output
        if isinstance(content, list):
            try:
                content = [block for part in content if (block := block_from_part(part))]
            except Invalid as error:
                raise Invalid(f"input[{position}]: {error.detail}") from error
        return {**result, "content": content} if content else result
