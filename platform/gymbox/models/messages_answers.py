"""Messages answers: what a model answered, between Anthropic's Messages API and the Responses API.

    messages_from_response  a Response        -> a Messages answer  (a caller speaks Messages to us)
    response_from_messages  a Messages answer -> a Response         (an endpoint speaks Messages to us)

    | Messages                                       | Responses                                                      |
    |------------------------------------------------|----------------------------------------------------------------|
    | `end_turn`, `tool_use`                         | `completed`                                                    |
    | `stop_sequence` and which one                  | `completed`; `stop_sequence`, or the `stop_reason` in `choice` |
    | `max_tokens`                                   | `incomplete`, `max_output_tokens`                              |
    | `pause_turn`, `model_context_window_exceeded`  | `incomplete`, the same reason                                  |
    | `refusal`, `stop_details`                      | a `refusal` part, its text the explanation                     |
    | `refusal` and `incomplete_details`             | `incomplete`, `content_filter`                                 |
    | `max_tokens` and `incomplete_details`          | `incomplete`, any other reason                                 |
    | `usage.input_tokens`, without the cached ones  | `input_tokens`, all of them                                    |
    | `cache_read_input_tokens`                      | `input_tokens_details.cached_tokens`                           |
    | `cache_creation_input_tokens`                  | `input_tokens_details.cache_write_tokens`                      |
    | `output_tokens_details.thinking_tokens`        | `output_tokens_details.reasoning_tokens`                       |
    | a text block's `citations`                     | the part's `citations`                                         |
    | token ids, log-probs and marks for training    | fields of the last output item; of the answer                  |

Unknown fields of an endpoint's answer, its blocks and its usage are kept where they stand. Annotations and log-probs
of a text have no place in a Messages answer, nor have fields of a Response that only echo what was asked for. What is
left is refused by name (`Invalid`).
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import FunctionCall, Message, Reasoning, Response, Usage
from pydantic import ValidationError

from gymbox.errors import Invalid
from gymbox.models.chat_messages import others, parts_of
from gymbox.models.messages_blocks import (
    RECORD,
    block_from_call,
    block_from_reasoning,
    is_provider_block,
    text_field,
)
from gymbox.models.messages_history import items_from_blocks
from gymbox.models.token_ids import TRAINING_FIELDS

REFUSED = "The model refused to answer."
"""Of a refusal that gives no explanation."""
_FINISHED = frozenset({"end_turn", "stop_sequence", "tool_use", "refusal"})
_INCOMPLETE = {
    "max_tokens": "max_output_tokens",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "model_context_window_exceeded",
}
_STOPPED = {reason: stop for stop, reason in _INCOMPLETE.items()} | {"content_filter": "refusal"}
_OF_ANSWER = (
    "id",
    "type",
    "role",
    "model",
    "content",
    "stop_reason",
    "stop_details",
    "usage",
    "incomplete_details",
    *TRAINING_FIELDS,
)
_OF_USAGE = (
    *("input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details"),
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
)
_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_KEPT_OF_RESPONSE = ("container", "diagnostics", "provider", "system_fingerprint")
"""Fields of a Response beside those that echo the request, which a Messages answer never does."""


# --- a Messages answer to a Response


def response_from_messages(answer: Any) -> Response:
    """The Response that says the same.

    Raises:
        Invalid: it is no whole Messages answer; the text names what is wrong.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
        raise Invalid(f"a Messages answer has a list of content blocks, this is {answer!r:.200}")
    stop = answer.get("stop_reason")
    if not isinstance(stop, str) or (stop not in _FINISHED and stop not in _INCOMPLETE):
        raise Invalid(f"stop_reason is {stop!r:.60}: the answer is not finished")
    try:
        output = items_from_blocks(answer["content"])
    except Invalid as error:
        raise Invalid(f"content: {error.detail}") from error
    details = answer.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else _INCOMPLETE.get(stop)
    told = answer.get("stop_details")
    if isinstance(told, dict) or (stop == "refusal" and reason is None):
        _said(output).append(_refusal(told))
    elif not output:
        _said(output).append({"type": "output_text", "text": ""})
    output = [_whole(item) for item in output]
    if reason is not None and "status" in output[-1]:
        output[-1]["status"] = "incomplete"
    output[-1] |= {name: answer[name] for name in TRAINING_FIELDS if answer.get(name) is not None}
    beside = others(answer, _OF_ANSWER)
    try:
        return Response.model_validate(
            {
                **beside,
                "id": str(answer.get("id") or f"resp_{uuid.uuid4().hex}"),
                "object": "response",
                "created_at": time.time(),
                "model": answer.get("model") or "",
                "status": "completed" if reason is None else "incomplete",
                "incomplete_details": None if reason is None else {"reason": reason},
                "output": output,
                "usage": usage_from_messages(answer.get("usage")),
            }
        )
    except ValidationError as error:
        raise Invalid(f"it is no Messages answer: {faults(error)}") from error


def _said(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of the message that ends the output; made where there is none."""
    if not output or output[-1]["type"] != "message":
        output.append({"type": "message", "role": "assistant", "content": []})
    found: list[dict[str, Any]] = output[-1]["content"]
    return found


def _refusal(details: Any) -> dict[str, Any]:
    details = details if isinstance(details, dict) else {}
    more = others(details, ("type", "explanation"))
    return {"type": "refusal", "refusal": str(details.get("explanation") or REFUSED), **more}


def _whole(item: dict[str, Any]) -> dict[str, Any]:
    prefix = _PREFIXES.get(item["type"])
    if prefix is None:
        return item
    whole = {"id": f"{prefix}_{uuid.uuid4().hex}", **item}
    if prefix == "rs":
        return whole
    if prefix == "msg":
        whole["content"] = [
            {"annotations": [], **part} if part["type"] == "output_text" else part for part in item["content"]
        ]
    return {**whole, "status": "completed"}


def usage_from_messages(usage: Any) -> dict[str, Any] | None:
    """Counts as the Responses API names them, the cached tokens among the input's.

    Raises:
        Invalid: a count is none.
    """
    if not isinstance(usage, dict):
        return None
    read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    prompt, completion = _count(usage, "input_tokens") + read + written, _count(usage, "output_tokens")
    details = usage.get("output_tokens_details")
    details = details if isinstance(details, dict) else {}
    thought = {"reasoning_tokens": _count(details, "thinking_tokens"), **others(details, ("thinking_tokens",))}
    return {
        **others(usage, _OF_USAGE),
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens_details": thought,
    }


def _count(usage: dict[str, Any], name: str) -> int:
    count = usage.get(name)
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise Invalid(f"usage.{name} is {count!r:.50}, not a count")
    return count


# --- a Response to a Messages answer


def messages_from_response(response: Response) -> dict[str, Any]:
    """The Messages answer that says the same.

    Raises:
        Invalid: it failed, or holds an item with no place in a Messages answer (a tool's output, a call of another
            provider's hosted tool).
    """
    if response.status in ("failed", "cancelled"):
        raise Invalid(f"a response that {response.status} is no Messages answer: {response.error}")
    content: list[dict[str, Any]] = []
    for index, item in enumerate(response.output):
        if isinstance(item, Message) and item.role == "assistant":
            content += _text_blocks(item)
        elif isinstance(item, FunctionCall):
            content.append(block_from_call(item, item.call_id))
        elif isinstance(item, Reasoning):
            block = block_from_reasoning(item, foreign=True)
            content += [block] if block else []
        elif is_provider_block(item.type):
            content.append(item.dump())
        else:
            kind = f"message of role {item.role!r}" if isinstance(item, Message) else item.type
            raise Invalid(f"output[{index}]: a {kind} has no place in a Messages answer")
    last = response.output[-1].model_extra if response.output else None
    return {
        **{name: value for name, value in (last or {}).items() if name in TRAINING_FIELDS and value is not None},
        **kept_fields(response.model_extra or {}),
        "id": response.id or f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": content,
        **stop_fields(response),
        "usage": messages_usage(response.usage),
    }


def kept_fields(extra: dict[str, Any]) -> dict[str, Any]:
    """Fields of a Response that its Messages answer has, too."""
    return {name: extra[name] for name in _KEPT_OF_RESPONSE if extra.get(name) is not None}


def _text_blocks(item: Message) -> list[dict[str, Any]]:
    blocks = [
        {"citations": None, **others(part, ("type", "text", "annotations", "logprobs")), "type": "text", "text": text}
        for part in parts_of(item)
        if part.get("type") != "refusal" and (text := output_text(part))
    ]
    if blocks:
        blocks[-1] |= others(item.model_extra, RECORD)
    return blocks


def output_text(part: dict[str, Any]) -> str:
    """The text of a part of the model's message.

    Raises:
        Invalid: it is another kind of part.
    """
    if part.get("type") != "output_text":
        raise Invalid(f"a part of type {part.get('type')!r:.60} has no place in a Messages answer")
    return text_field(part, "text")


def stop_fields(response: Response) -> dict[str, Any]:
    """`stop_reason` and what stands beside it."""
    extra = response.model_extra or {}
    refusal = _refusal_details(response)
    fields: dict[str, Any] = {"stop_reason": "end_turn", "stop_sequence": None, "stop_details": refusal}
    if response.status == "incomplete":
        details = response.incomplete_details or {}
        stop = _STOPPED.get(str(details.get("reason")), "max_tokens")
        told = {} if stop in _INCOMPLETE and _INCOMPLETE[stop] == details.get("reason") else details
        return {**fields, "stop_reason": stop, **({"incomplete_details": told} if told else {})}
    if refusal:
        return {**fields, "stop_reason": "refusal"}
    # Chat endpoints tell the sequence as the choice's stop_reason
    choice = extra.get("choice")
    sequence = extra.get("stop_sequence") or (choice.get("stop_reason") if isinstance(choice, dict) else None)
    if response.function_calls:
        fields["stop_reason"] = "tool_use"
    elif isinstance(sequence, str):
        fields |= {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return fields


def _refusal_details(response: Response) -> dict[str, Any] | None:
    for item in response.output:
        for part in parts_of(item) if isinstance(item, Message) else []:
            if part.get("type") == "refusal":
                more = others(part, ("type", "refusal"))
                return {"type": "refusal", "category": None, "explanation": text_field(part, "refusal"), **more}
    return None


def messages_usage(usage: Usage | None) -> dict[str, Any]:
    """Counts as the Messages API names them; zeros where the back end told none, for the API always has them."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    extra = usage.model_extra or {}
    details, spent = extra.get("input_tokens_details") or {}, extra.get("output_tokens_details") or {}
    read, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
    thought = {"thinking_tokens": spent.get("reasoning_tokens") or 0, **others(spent, ("reasoning_tokens",))}
    return {
        **others(extra, _OF_USAGE),
        "input_tokens": max(0, usage.input_tokens - read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": thought,
    }
