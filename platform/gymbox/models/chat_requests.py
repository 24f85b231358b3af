"""Chat requests: what is asked of a model, from one format to the other.

    params_from_chat    a Chat request     -> ResponsesParams   (a caller speaks Chat to us)
    chat_from_params    ResponsesParams    -> a Chat request    (we speak Chat to an endpoint)

What the other format has no place for is refused by name (`Invalid`), never dropped. Fields that neither side names
(`seed`, `top_k`, `stop`, …) pass through both ways as they are. One turn of the model is one assistant message: its
reasoning, its text and all of its calls; and all results of a turn follow it directly, in call order.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from gymbox_sandbox.chat_history import items_from_message
from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    ResponsesParams,
)
from pydantic import ValidationError

from gymbox.errors import Invalid

LOGPROBS = "message.output_text.logprobs"

_CHAT_ONLY = ("audio", "function_call", "functions", "prediction", "web_search_options")
_RESPONSES_ONLY = ("background", "context_management", "conversation", "previous_response_id", "prompt")
_NO_EFFECT_ON_CHAT = ("include", "max_tool_calls", "stream", "stream_options", "truncation")
"""Say how an answer is delivered, or bound tools that run at the provider: a Chat endpoint has neither."""


# --- a Chat request to params


def params_from_chat(body: dict[str, Any]) -> ResponsesParams:
    """The Responses params that ask for the same.

    Raises:
        Invalid: a field or message that cannot be expressed, by name.
    """
    body = {name: value for name, value in body.items() if value is not None}
    _refuse(body, _CHAT_ONLY, "the Responses format")
    if body.pop("n", 1) != 1:
        raise Invalid("n: only one choice can be asked for")
    if body.pop("modalities", ["text"]) != ["text"]:
        raise Invalid("modalities: only text can be asked for")
    messages = body.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise Invalid("messages: a Chat request needs a list of messages")
    items: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        try:
            items += items_from_message(message)
        except (ValueError, AttributeError) as error:
            raise Invalid(f"messages[{index}]: {error}") from error
    limits = [body.pop(name) for name in ("max_completion_tokens", "max_tokens") if name in body]
    if limits:
        body["max_output_tokens"] = limits[0]
    if "reasoning_effort" in body:
        body["reasoning"] = {"effort": body.pop("reasoning_effort")}
    text: dict[str, Any] = {}
    if "response_format" in body:
        text["format"] = _format_from_chat(body.pop("response_format"))
    if "verbosity" in body:
        text["verbosity"] = body.pop("verbosity")
    if text:
        body["text"] = text
    if body.pop("logprobs", False):
        body["include"] = [LOGPROBS]
    if "tools" in body:
        body["tools"] = [_tool_from_chat(tool) for tool in body["tools"]]
    if isinstance(body.get("tool_choice"), dict):
        body["tool_choice"] = _choice_from_chat(body["tool_choice"])
    body.pop("stream_options", None)
    try:
        return ResponsesParams.model_validate({**body, "input": items})
    except ValidationError as error:
        raise Invalid(faults(error)) from error


def _refuse(body: dict[str, Any], names: Sequence[str], where: str) -> None:
    for name in names:
        if body.pop(name, None):
            raise Invalid(f"{name}: there is no place for it in {where}")


def _tool_from_chat(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise Invalid(f"tools: only function tools can be carried over, not {kind!r}")
    return {"type": "function", **tool["function"]}


def _choice_from_chat(choice: dict[str, Any]) -> dict[str, Any]:
    if choice.get("type") != "function" or not isinstance(choice.get("function"), dict):
        raise Invalid(f"tool_choice: only a function can be chosen, not {choice.get('type')!r}")
    return {"type": "function", "name": choice["function"].get("name")}


def _format_from_chat(wanted: Any) -> dict[str, Any]:
    if isinstance(wanted, dict) and wanted.get("type") in ("text", "json_object"):
        return {"type": wanted["type"]}
    if (
        isinstance(wanted, dict)
        and wanted.get("type") == "json_schema"
        and isinstance(wanted.get("json_schema"), dict)
    ):
        return {"type": "json_schema", **wanted["json_schema"]}
    raise Invalid(f"response_format: cannot be carried over: {wanted!r:.100}")


# --- params to a Chat request


def chat_from_params(params: ResponsesParams, *, reasoning_field: str | None = "reasoning_content") -> dict[str, Any]:
    """The Chat request that asks for the same.

    Roles are those that every endpoint knows: `developer` and `instructions` become `system`.

    Args:
        reasoning_field: where an assistant message carries its earlier reasoning: the name of a field, `think` for
            `<think>` tags before its text, or None to leave it out.

    Raises:
        Invalid: a field or item that cannot be expressed, by name.
    """
    given = {name: value for name, value in params.dump().items() if value is not None}
    _refuse(given, _RESPONSES_ONLY, "the Chat format")
    if given.get("truncation", "disabled") != "disabled":
        raise Invalid("truncation: a Chat endpoint cannot be told to truncate")
    unknown = [name for name in given.get("include", []) if name not in (LOGPROBS, "reasoning.encrypted_content")]
    if unknown:
        raise Invalid(f"include: a Chat endpoint cannot include {unknown[0]!r}")
    messages = messages_from_items(params.items, reasoning_field)
    if params.instructions:
        messages.insert(0, {"role": "system", "content": params.instructions})
    body: dict[str, Any] = {"messages": messages}
    if LOGPROBS in given.get("include", []):
        body["logprobs"] = True
    if "max_output_tokens" in given:
        body["max_tokens"] = given.pop("max_output_tokens")
    reasoning = given.pop("reasoning", {})
    if reasoning.get("effort") is not None:
        body["reasoning_effort"] = reasoning["effort"]
    text = given.pop("text", {})
    if text.get("verbosity") is not None:
        body["verbosity"] = text["verbosity"]
    wanted = text.get("format") or {"type": "text"}
    if wanted.get("type") != "text":
        body["response_format"] = _chat_format(wanted)
    # an empty list of tools is refused by many endpoints, and so is a choice among none
    tools = given.pop("tools", [])
    choice = given.pop("tool_choice", None)
    parallel = given.pop("parallel_tool_calls", None)
    if tools:
        body["tools"] = [_chat_tool(tool) for tool in tools]
        if choice is not None:
            body["tool_choice"] = _chat_choice(choice)
        if parallel is not None:
            body["parallel_tool_calls"] = parallel
    taken = ("input", "instructions", *_NO_EFFECT_ON_CHAT)
    return body | {name: value for name, value in given.items() if name not in taken}


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Invalid(f"tools: a Chat endpoint knows only function tools, not {tool.get('type')!r}")
    return {
        "type": "function",
        "function": {name: tool[name] for name in tool if name != "type" and tool[name] is not None},
    }


def _chat_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        return choice
    if choice.get("type") != "function":
        raise Invalid(f"tool_choice: a Chat endpoint cannot be told to choose {choice.get('type')!r}")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _chat_format(wanted: dict[str, Any]) -> dict[str, Any]:
    if wanted.get("type") == "json_object":
        return {"type": "json_object"}
    if wanted.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {name: wanted[name] for name in wanted if name != "type"}}
    raise Invalid(f"text.format: a Chat endpoint does not know {wanted.get('type')!r}")


def messages_from_items(
    items: Sequence[Item], reasoning_field: str | None = "reasoning_content"
) -> list[dict[str, Any]]:
    """The Chat messages of a history, legal for every endpoint: see the module's text.

    Raises:
        Invalid: an item or part with no place in a Chat message, a call without output or an output without call.
    """
    # by call id and in order, since some endpoints give the same ids in every turn
    outputs: dict[str, deque[tuple[int, FunctionCallOutput]]] = defaultdict(deque)
    for index, item in enumerate(items):
        if isinstance(item, FunctionCallOutput):
            outputs[item.call_id].append((index, item))
    messages: list[dict[str, Any]] = []
    turn: _Turn | None = None
    for index, item in enumerate(items):
        if isinstance(item, FunctionCallOutput):
            continue
        if isinstance(item, Reasoning | FunctionCall) or (isinstance(item, Message) and item.role == "assistant"):
            if turn is not None and turn.ends_before(item, index, outputs):
                messages += turn.messages(reasoning_field, outputs)
                turn = None
            turn = turn or _Turn()
            turn.add(index, item)
            continue
        if turn is not None:
            messages += turn.messages(reasoning_field, outputs)
            turn = None
        if not isinstance(item, Message):
            raise Invalid(f"input[{index}]: an item of type {item.type!r} has no place in a Chat request")
        messages.append(_plain_message(index, item))
    if turn is not None:
        messages += turn.messages(reasoning_field, outputs)
    for call_id, left in outputs.items():
        if left:
            raise Invalid(f"input[{left[0][0]}]: an output for {call_id!r}, which no earlier call has")
    return messages


class _Turn:
    """What the model said in one turn, gathered from its items."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.said: list[tuple[int, Message]] = []
        self.calls: list[tuple[int, FunctionCall]] = []

    def add(self, index: int, item: Item) -> None:
        if isinstance(item, Reasoning):
            self.reasoning += [text] if (text := reasoning_text(item)) else []
        elif isinstance(item, Message):
            self.said.append((index, item))
        elif isinstance(item, FunctionCall):
            self.calls.append((index, item))

    def ends_before(self, item: Item, index: int, outputs: dict[str, deque[tuple[int, FunctionCallOutput]]]) -> bool:
        """Whether `item` opens the next turn: something was answered in between, or it says another thing."""
        if self.calls:
            answered = [outputs[call.call_id][0][0] for _, call in self.calls if outputs[call.call_id]]
            return any(position < index for position in answered)
        return bool(self.said) and isinstance(item, Message | Reasoning)

    def messages(
        self, reasoning_field: str | None, outputs: dict[str, deque[tuple[int, FunctionCallOutput]]]
    ) -> list[dict[str, Any]]:
        """The assistant message, then the results of its calls in call order, then the images among the results."""
        texts: list[str] = []
        refusals: list[str] = []
        for index, said in self.said:
            for part in parts_of(said):
                if part.get("type") in ("output_text", "input_text"):
                    texts.append(str(part.get("text") or ""))
                elif part.get("type") == "refusal":
                    refusals.append(str(part.get("refusal") or ""))
                else:
                    raise Invalid(f"input[{index}]: an assistant message cannot carry a {part.get('type')!r} part")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
        if self.reasoning and reasoning_field == "think":
            thoughts = "\n".join(self.reasoning)
            message["content"] = f"<think>\n{thoughts}\n</think>\n\n{message['content']}"
        elif self.reasoning and reasoning_field is not None:
            message[reasoning_field] = "\n".join(self.reasoning)
        if refusals:
            message["refusal"] = "".join(refusals)
        if self.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                chat_call(call.call_id, call.name, object_arguments(call.arguments)) for _, call in self.calls
            ]
        results: list[dict[str, Any]] = []
        images: list[dict[str, Any]] = []
        for index, call in self.calls:
            if not outputs[call.call_id]:
                raise Invalid(f"input[{index}]: the call {call.call_id!r} of {call.name!r} has no output")
            position, output = outputs[call.call_id].popleft()
            text, shown = _result_content(position, output)
            results.append({"role": "tool", "tool_call_id": call.call_id, "content": text})
            if shown:
                images += [{"type": "text", "text": f"Shown by {call.name} ({call.call_id}):"}, *shown]
        # the Chat format allows no image in a tool's message: the user shows it after all results of the turn
        return [message, *results, *([{"role": "user", "content": images}] if images else [])]


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
        if all(part["type"] == "text" for part in content) and (len(content) < 2 or role == "system"):
            content = "".join(part["text"] for part in content)
    return {"role": role, **(item.model_extra or {}), "content": content}


def _chat_part(index: int, part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": str(part.get("text") or "")}
    if kind == "input_image" and part.get("image_url"):
        image = {"url": part["image_url"]}
        if part.get("detail") not in (None, "auto"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind == "input_file" and part.get("file_url") is None:
        return {"type": "file", "file": {name: part[name] for name in part if name != "type"}}
    if kind == "input_audio" and part.get("input_audio"):
        return {"type": "input_audio", "input_audio": part["input_audio"]}
    raise Invalid(f"input[{index}]: a {kind!r} part has no place in a Chat message")


def chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


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


def reasoning_text(item: Reasoning) -> str:
    """The text of a reasoning item: its content where given, else its summary; `""` where a provider keeps it secret
    (`encrypted_content`, which nobody else can read)."""
    content = (item.model_extra or {}).get("content")
    parts = content if isinstance(content, list) and content else item.summary
    return "\n".join(str(part.get("text") or "") for part in parts)


def parts_of(item: Message) -> list[dict[str, Any]]:
    return [{"type": "output_text", "text": item.content}] if isinstance(item.content, str) else item.content
