"""Chat format: Responses params and answers to Chat Completions and back.

    params_from_chat    a Chat request     -> ResponsesParams   (a caller speaks Chat to us)
    chat_from_response  a Response         -> a Chat answer
    chat_from_params    ResponsesParams    -> a Chat request    (we speak Chat to an endpoint)
    response_from_chat  a Chat answer      -> a Response

What the other format has no place for is refused by name (`Invalid`), never dropped. Fields that neither side names
(`seed`, `top_k`, `stop`, …) pass through both ways as they are. One turn of the model is one assistant message: its
reasoning, its text and all of its calls; and all results of a turn follow it directly, in call order.
"""

from __future__ import annotations

import json
import time
import uuid
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
    Response,
    ResponsesParams,
    Usage,
)
from pydantic import ValidationError

from gymbox.errors import Invalid

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""Kept for training on the last output item of an answer: all three, or none."""
LOGPROBS = "message.output_text.logprobs"

_CHAT_ONLY = ("audio", "function_call", "functions", "prediction", "web_search_options")
_RESPONSES_ONLY = ("background", "context_management", "conversation", "previous_response_id", "prompt")
_NO_EFFECT_ON_CHAT = ("include", "max_tool_calls", "stream", "stream_options", "truncation")
"""Say how an answer is delivered, or bound tools that run at the provider: a Chat endpoint has neither."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FINISHED = frozenset({"stop", "tool_calls", "function_call", "eos", "end_turn", "stop_sequence"})


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


# --- a Response to a Chat answer


def chat_from_response(response: Response) -> dict[str, Any]:
    """The Chat answer that says the same, in one choice.

    Raises:
        Invalid: it holds an item with no place in a Chat answer (a tool's output, a hosted tool's call), or it failed.
    """
    if response.status in ("failed", "cancelled"):
        raise Invalid(f"a response that {response.status} is no Chat answer: {response.error}")
    texts: list[str] = []
    refusals: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": "assistant", "content": None}
    annotations: list[Any] = []
    logprobs: list[Any] = []
    for index, item in enumerate(response.output):
        if isinstance(item, Reasoning):
            reasoning += [text] if (text := reasoning_text(item)) else []
        elif isinstance(item, FunctionCall):
            calls.append(_chat_call(item.call_id, item.name, item.arguments))
        elif isinstance(item, Message) and item.role == "assistant":
            for part in _parts(item):
                _take_output_part(part, index, texts, refusals, annotations, logprobs)
        else:
            kind = f"message of role {item.role!r}" if isinstance(item, Message) else item.type
            raise Invalid(f"output[{index}]: a {kind} has no place in a Chat answer")
    if texts:
        message["content"] = "".join(texts)
    elif not calls and not refusals:
        message["content"] = ""
    if refusals:
        message["refusal"] = "".join(refusals)
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    if annotations:
        message["annotations"] = annotations
    message |= token_ids_of(response.output[-1]) if response.output else {}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": _finish_reason(response, calls)}
    if logprobs:
        choice["logprobs"] = {"content": logprobs}
    answer: dict[str, Any] = {
        "id": response.id or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(response.created_at or time.time()),
        "model": response.model,
        "choices": [choice],
    }
    if response.usage is not None:
        answer["usage"] = _chat_usage(response.usage)
    return answer


def _take_output_part(
    part: dict[str, Any],
    index: int,
    texts: list[str],
    refusals: list[str],
    annotations: list[Any],
    logprobs: list[Any],
) -> None:
    if part.get("type") == "output_text":
        texts.append(str(part.get("text") or ""))
        annotations += part.get("annotations") or []
        logprobs += part.get("logprobs") or []
    elif part.get("type") == "refusal":
        refusals.append(str(part.get("refusal") or ""))
    else:
        raise Invalid(f"output[{index}]: a part of type {part.get('type')!r} has no place in a Chat answer")


def _finish_reason(response: Response, calls: list[dict[str, Any]]) -> str:
    if response.status == "incomplete":
        reason = (response.incomplete_details or {}).get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    return "tool_calls" if calls else "stop"


def _chat_usage(usage: Usage) -> dict[str, Any]:
    extra = usage.model_extra or {}
    found: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    if extra.get("input_tokens_details"):
        found["prompt_tokens_details"] = extra["input_tokens_details"]
    if extra.get("output_tokens_details"):
        found["completion_tokens_details"] = extra["output_tokens_details"]
    return found


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
            for part in _parts(said):
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
                _chat_call(call.call_id, call.name, object_arguments(call.arguments)) for _, call in self.calls
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


def _chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
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


def _parts(item: Message) -> list[dict[str, Any]]:
    return [{"type": "output_text", "text": item.content}] if isinstance(item.content, str) else item.content


# --- a Chat answer to a Response


def response_from_chat(body: Any, *, max_output_tokens: int | None = None, token_ids: bool = False) -> Response:
    """The Response that says the same.

    Args:
        max_output_tokens: what was asked for; a last call that ends there in mid-JSON was cut off, whatever the
            answer's finish_reason says.
        token_ids: the token ids for training were asked for, so an answer without them is refused.

    Raises:
        Invalid: it is no whole Chat answer; the text names what is wrong.
    """
    choice, message = _only_choice(body)
    extra = {name: value for name, value in body.items() if name not in _CHAT_ANSWER and value is not None}
    output: list[dict[str, Any]] = []
    text, reasoning = _text_and_reasoning(message)
    if reasoning:
        output.append(_with_id("rs", {"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]}))
    parts: list[dict[str, Any]] = []
    calls = _calls(message)
    if text or not (message.get("refusal") or calls or reasoning):
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": message.get("annotations") or []}
        if (choice.get("logprobs") or {}).get("content") and not token_ids:
            part["logprobs"] = choice["logprobs"]["content"]
        parts.append(part)
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    if parts:
        output.append(
            _with_id("msg", {"type": "message", "role": "assistant", "status": "completed", "content": parts})
        )
    output += calls
    usage = _usage(body.get("usage"))
    reason = _incomplete_reason(choice, calls, usage, max_output_tokens)
    if reason is not None and "status" in output[-1]:
        output[-1]["status"] = "incomplete"
    output[-1] |= _token_ids(body, choice, message, usage, wanted=token_ids)
    try:
        return Response.model_validate(
            {
                **extra,
                "id": str(body.get("id") or f"resp_{uuid.uuid4().hex}"),
                "object": "response",
                "created_at": body.get("created") or time.time(),
                "model": body.get("model") or "",
                "status": "completed" if reason is None else "incomplete",
                "incomplete_details": None if reason is None else {"reason": reason},
                "output": output,
                "usage": usage,
            }
        )
    except ValidationError as error:
        raise Invalid(faults(error)) from error


_CHAT_ANSWER = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "prompt_token_ids", "prompt_logprobs"}
)


def _only_choice(body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else "no"
        raise Invalid(f"a Chat answer has one choice, this one has {count}")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise Invalid("choices[0] has no message")
    for name in ("audio", "images"):
        if message.get(name):
            raise Invalid(f"choices[0].message.{name}: there is no place for it in the Responses format")
    return choices[0], message


def _text_and_reasoning(message: dict[str, Any]) -> tuple[str, str]:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if content is not None and not isinstance(content, str):
        raise Invalid(f"choices[0].message.content is a {type(content).__name__}, not text")
    content = content or ""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise Invalid(f"choices[0].message.reasoning is a {type(reasoning).__name__}, not text")
        return content, reasoning
    return without_thoughts(content)


def without_thoughts(content: str) -> tuple[str, str]:
    """Text and reasoning of an answer that thinks aloud in `<think>` tags.

    A template may have opened the tag in the prompt, so the answer may hold only its end; and an answer that was cut
    off may hold only its beginning: then all of it is reasoning.
    """
    opened = content.lstrip().startswith("<think>")
    before, ended, after = content.partition("</think>")
    if not opened and (not ended or "<think>" in before):
        return content, ""
    return after.lstrip("\n"), before.replace("<think>", "", 1).strip()


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        items = items_from_message(
            {"role": "assistant", "tool_calls": [_identified(call) for call in message.get("tool_calls") or []]}
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"choices[0].message.tool_calls: {error}") from error
    return [_with_id("fc", {**item, "status": "completed"}) for item in items if item["type"] == "function_call"]


def _identified(call: dict[str, Any]) -> dict[str, Any]:
    return call if call.get("id") else {**call, "id": f"call_{uuid.uuid4().hex[:24]}"}


def _with_id(prefix: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"{prefix}_{uuid.uuid4().hex}", **item}


def _usage(usage: Any) -> dict[str, Any] | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": usage.get("total_tokens") or prompt + completion,
        "input_tokens_details": {"cached_tokens": 0, **_counts(usage.get("prompt_tokens_details"))},
        "output_tokens_details": {"reasoning_tokens": 0, **_counts(usage.get("completion_tokens_details"))},
    }


def _counts(details: Any) -> dict[str, Any]:
    return {name: count for name, count in (details or {}).items() if count is not None}


def _incomplete_reason(
    choice: dict[str, Any], calls: list[dict[str, Any]], usage: dict[str, Any] | None, limit: int | None
) -> str | None:
    finish = choice.get("finish_reason")
    if finish in _INCOMPLETE:
        return _INCOMPLETE[finish]
    if finish not in _FINISHED:
        raise Invalid(f"choices[0].finish_reason is {finish!r}: the answer is not finished")
    if calls and limit is not None and usage is not None and usage["output_tokens"] >= limit:
        last = calls[-1]["arguments"]
        if object_arguments(last) != last:
            return "max_output_tokens"
    return None


# --- token ids for training


def token_ids_of(item: Item) -> dict[str, Any]:
    """The three training fields of an output item; empty where it has none."""
    extra = item.model_extra or {}
    return {name: extra[name] for name in TOKEN_FIELDS if extra.get(name) is not None}


def _token_ids(
    body: dict[str, Any],
    choice: dict[str, Any],
    message: dict[str, Any],
    usage: dict[str, Any] | None,
    *,
    wanted: bool,
) -> dict[str, Any]:
    """All three fields, from wherever the endpoint puts them, or none. The ids are the sampled ones, never made by
    tokenising text again, which can give others."""
    entries = [entry for entry in (choice.get("logprobs") or {}).get("content") or [] if isinstance(entry, dict)]
    ids = (
        message.get("generation_token_ids")
        or choice.get("token_ids")
        or [
            int(entry["token"].removeprefix("token_id:"))
            for entry in entries
            if str(entry.get("token", "")).startswith("token_id:")
        ]
    )
    found = {
        "prompt_token_ids": message.get("prompt_token_ids") or body.get("prompt_token_ids"),
        "generation_token_ids": ids or None,
        "generation_log_probs": message.get("generation_log_probs")
        or [entry.get("logprob") for entry in entries]
        or None,
    }
    missing = [name for name in TOKEN_FIELDS if not found[name]]
    if missing and not wanted:
        return {}
    if missing:
        raise Invalid(f"token ids were asked for, and the answer has no {', '.join(missing)}")
    counted = usage["output_tokens"] if usage is not None else len(ids)
    if not len(ids) == len(found["generation_log_probs"] or []) == counted:
        raise Invalid(
            f"token ids conflict: {len(ids)} ids, {len(found['generation_log_probs'] or [])} log-probs, "
            f"{counted} tokens in the usage"
        )
    return found


def prefix_is_kept(items: Sequence[Item], prompt_token_ids: list[int]) -> bool:
    """Whether a prompt begins with all that was sampled before, token by token, as training on several turns needs."""
    for item in reversed(items):
        earlier = token_ids_of(item)
        if earlier:
            seen = [*earlier["prompt_token_ids"], *earlier["generation_token_ids"]]
            return prompt_token_ids[: len(seen)] == seen
    return True
