"""Chat messages: a history of Responses items as the messages of a Chat request, legal for every endpoint.

One turn of the model is one assistant message: its reasoning, its text and all of its calls; and all results of a turn
follow it directly, in call order. A tool's message holds only text, so the images and files among the results are
shown by the user, after all of them.

Where things go that the Chat format has no name for:

    the record's own fields (token ids, marks, `status`, `id`, `phase`)     nowhere: they say how an answer came about
    `encrypted_content` of reasoning                                        nowhere: only its provider can read it
    annotations and log-probs of earlier answers                            nowhere: no model reads them
    any other field of an item or a part                                    beside what it stood beside

What is left is refused by name (`Invalid`).
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Item, Message, Reasoning

from gymbox.errors import Invalid
from gymbox.models.call_outputs import Outputs, outputs_of_calls
from gymbox.models.token_ids import TRAINING_FIELDS

RECORD = frozenset({*TRAINING_FIELDS, "phase"})
"""Fields of an output item that tell how it came about, or where it stood; a Chat message has no place for them."""
OF_REASONING = frozenset({*RECORD, "content", "encrypted_content", "status"})
_OF_PARTS = frozenset({"type", "text", "annotations", "logprobs"})


def messages_from_items(
    items: Sequence[Item], reasoning_field: str | None = "reasoning_content"
) -> list[dict[str, Any]]:
    """The Chat messages of a history.

    Raises:
        Invalid: an item or part with no place in a Chat message, a call without output or an output without call.
    """
    outputs = outputs_of_calls(items)
    messages: list[dict[str, Any]] = []
    turn: _Turn | None = None
    for index, item in enumerate(items):
        if isinstance(item, FunctionCallOutput):
            continue
        if isinstance(item, Reasoning | FunctionCall) or (isinstance(item, Message) and item.role == "assistant"):
            if turn is not None and turn.ends_before(item, index):
                messages += turn.messages(reasoning_field)
                turn = None
            turn = turn or _Turn(outputs)
            turn.add(index, item)
            continue
        if turn is not None:
            messages += turn.messages(reasoning_field)
            turn = None
        if not isinstance(item, Message):
            raise Invalid(f"input[{index}]: an item of type {item.type!r} has no place in a Chat request")
        messages.append(_plain_message(index, item))
    if turn is not None:
        messages += turn.messages(reasoning_field)
    return messages


class _Turn:
    """What the model said in one turn, gathered from its items."""

    def __init__(self, outputs: Outputs) -> None:
        self.outputs = outputs
        self.reasoning: list[Reasoning] = []
        self.said: list[tuple[int, Message]] = []
        self.calls: list[tuple[int, FunctionCall]] = []
        self.answered_at: int | None = None
        """Where the first result of its calls stands."""

    def add(self, index: int, item: Item) -> None:
        if isinstance(item, Reasoning):
            self.reasoning.append(item)
        elif isinstance(item, Message):
            self.said.append((index, item))
        elif isinstance(item, FunctionCall):
            self.calls.append((index, item))
            position, _ = self.outputs[index]
            self.answered_at = position if self.answered_at is None else min(position, self.answered_at)

    def ends_before(self, item: Item, index: int) -> bool:
        """Whether `item` opens the next turn: something was answered in between, or it says another thing."""
        if self.calls:
            return self.answered_at is not None and self.answered_at < index
        return bool(self.said) and isinstance(item, Message | Reasoning)

    def messages(self, reasoning_field: str | None) -> list[dict[str, Any]]:
        """The assistant message, then the results of its calls in call order, then what is shown among the results."""
        message = self._said()
        if reasoning_field is not None:
            self._reason(message, reasoning_field)
        if self.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [chat_call(call, object_arguments(call.arguments)) for _, call in self.calls]
        results: list[dict[str, Any]] = []
        images: list[dict[str, Any]] = []
        for index, call in self.calls:
            position, output = self.outputs[index]
            text, shown = _result_content(position, output)
            more = others(output.model_extra, RECORD)
            results.append({"role": "tool", **more, "tool_call_id": call.call_id, "content": text})
            if shown:
                images += [{"type": "text", "text": f"Shown by {call.name} ({call.call_id}):"}, *shown]
        return [message, *results, *([{"role": "user", "content": images}] if images else [])]

    def _said(self) -> dict[str, Any]:
        texts: list[str] = []
        refusals: list[str] = []
        more: dict[str, Any] = {}
        for index, said in self.said:
            more |= others(said.model_extra, RECORD)
            for part in parts_of(said):
                kind = part.get("type")
                if kind in ("output_text", "input_text"):
                    texts.append(text_of(part, "text", f"input[{index}]"))
                elif kind == "refusal":
                    refusals.append(text_of(part, "refusal", f"input[{index}]"))
                else:
                    raise Invalid(f"input[{index}]: an assistant message cannot carry a {kind!r} part")
        message = {"role": "assistant", **more, "content": "".join(texts)}
        return message | ({"refusal": "".join(refusals)} if refusals else {})

    def _reason(self, message: dict[str, Any], field: str) -> None:
        for item in self.reasoning:
            message |= others(item.model_extra, OF_REASONING)
        thoughts = "\n".join(filter(None, map(reasoning_text, self.reasoning)))
        if thoughts and field == "think":
            message["content"] = f"<think>\n{thoughts}\n</think>\n\n{message['content']}"
        elif thoughts:
            message[field] = thoughts


def _result_content(index: int, output: FunctionCallOutput) -> tuple[str, list[dict[str, Any]]]:
    if isinstance(output.output, str):
        return output.output, []
    parts = [_chat_part(index, part) for part in output.output]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    images = [part for part in parts if part["type"] != "text"]
    return "".join(texts) or ("(see below)" if images else ""), images


def _plain_message(index: int, item: Message) -> dict[str, Any]:
    role = "system" if item.role == "developer" else item.role
    content: Any = item.content
    if isinstance(content, list):
        content = [_chat_part(index, part) for part in content]
        # a list of text alone is more than many templates know
        bare = all(len(part) == 2 and part["type"] == "text" for part in content)
        if bare and (len(content) < 2 or role == "system"):
            content = "".join(part["text"] for part in content)
    return {"role": role, **others(item.model_extra, RECORD), "content": content}


def _chat_part(index: int, part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_of(part, "text", f"input[{index}]"), **others(part, _OF_PARTS)}
    if kind == "input_image" and part.get("image_url"):
        image = {"url": part["image_url"]}
        if part.get("detail") not in (None, "auto"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image, **others(part, ("type", "image_url", "detail"))}
    if kind == "input_file":
        if part.get("file_url"):
            raise Invalid(f"input[{index}]: file_url has no place in a Chat message; send the file's data")
        named = ("filename", "file_data", "file_id")
        within = {name: part[name] for name in named if part.get(name) is not None}
        return {"type": "file", "file": within, **others(part, ("type", *named))}
    if kind == "input_audio" and part.get("input_audio"):
        return {"type": "input_audio", **others(part, ("type",))}
    if kind == "input_image" and part.get("file_id"):
        raise Invalid(f"input[{index}]: an input_image by file_id has no place in a Chat message; send its image_url")
    raise Invalid(f"input[{index}]: a {kind!r} part has no place in a Chat message")


def others(fields: Mapping[str, Any] | None, taken: Container[str]) -> dict[str, Any]:
    """The fields that are given and not `taken`."""
    return {name: value for name, value in (fields or {}).items() if value is not None and name not in taken}


def text_of(part: dict[str, Any], field: str, where: str) -> str:
    """The text of a part; `""` for none.

    Raises:
        Invalid: it is something else.
    """
    text = part.get(field)
    if text is None or isinstance(text, str):
        return text or ""
    raise Invalid(f"{where}: the {field} of a part is a {type(text).__name__}, not a string")


def chat_call(call: FunctionCall, arguments: str) -> dict[str, Any]:
    """The call as a Chat message has it, with what its provider put beside it."""
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function, **others(call.model_extra, RECORD)}


def object_arguments(arguments: str) -> str:
    """`arguments` as they may be sent back to an endpoint: the text of a JSON object.

    Many chat templates parse the arguments of earlier calls, so that one malformed call would make every later
    request fail. What is no object is wrapped, so the model still sees what it wrote; the record keeps the original.
    """
    try:
        if isinstance(json.loads(arguments), dict):
            return arguments
    except (ValueError, RecursionError):
        pass
    return json.dumps({"invalid_arguments": arguments}) if arguments.strip() else "{}"


def as_endpoints_take(messages: list[Any]) -> list[Any]:
    """A Chat caller's own messages with what would make an endpoint refuse them, and so every later request, mended:
    an empty list of calls is left out, and arguments of earlier calls are the text of an object."""
    return [_mended(each) if isinstance(each, dict) and "tool_calls" in each else each for each in messages]


def _mended(message: dict[str, Any]) -> dict[str, Any]:
    calls = message["tool_calls"]
    if isinstance(calls, list) and calls:
        return {**message, "tool_calls": [_with_object(call) for call in calls]}
    if calls:
        return message  # which is nonsense, and the endpoint's to refuse
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    said = any(value is not None for name, value in rest.items() if name not in ("role", "name"))
    return rest if said else {**rest, "content": ""}


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments)
    if not isinstance(arguments, str) or (sent := object_arguments(arguments)) == function["arguments"]:
        return call
    return {**call, "function": {**function, "arguments": sent}}


def reasoning_text(item: Reasoning) -> str:
    """The text of a reasoning item: its content where given, else its summary; `""` where a provider keeps it secret
    (`encrypted_content`, which nobody else can read).

    Raises:
        Invalid: a part of it is no text.
    """
    content = (item.model_extra or {}).get("content")
    parts = content if isinstance(content, list) and content else item.summary
    if not all(isinstance(part, dict) for part in parts):
        raise Invalid("reasoning: its content must be a list of parts")
    return "\n".join(text_of(part, "text", "reasoning") for part in parts)


def parts_of(item: Message) -> list[dict[str, Any]]:
    """The content as parts."""
    return [{"type": "output_text", "text": item.content}] if isinstance(item.content, str) else item.content
