"""Chat answers: what a model answered, from one format to the other.

    chat_from_response  a Response         -> a Chat answer     (a caller speaks Chat to us)
    response_from_chat  a Chat answer      -> a Response        (an endpoint speaks Chat to us)

What a Chat answer has no place for is refused by name (`Invalid`), never dropped.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from gymbox_sandbox.chat_history import items_from_message
from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import (
    FunctionCall,
    Message,
    Reasoning,
    Response,
    Usage,
)
from pydantic import ValidationError

from gymbox.errors import Invalid
from gymbox.models.chat_requests import chat_call, object_arguments, parts_of, reasoning_text
from gymbox.models.token_ids import sampled_ids, token_ids_of

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FINISHED = frozenset({"stop", "tool_calls", "function_call", "eos", "end_turn", "stop_sequence"})


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
            calls.append(chat_call(item.call_id, item.name, item.arguments))
        elif isinstance(item, Message) and item.role == "assistant":
            for part in parts_of(item):
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
    output[-1] |= sampled_ids(body, choice, message, usage, wanted=token_ids)
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
