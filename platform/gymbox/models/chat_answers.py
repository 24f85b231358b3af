"""Chat answers: what a model answered, from one format to the other.

    chat_from_response  a Response         -> a Chat answer     (a caller speaks Chat to us)
    response_from_chat  a Chat answer      -> a Response        (an endpoint speaks Chat to us)

What the other format has no place for is refused by name (`Invalid`), never dropped, or carried here:

    a Response's own fields (`service_tier`, …)     fields of the Chat answer, without those that echo the request
    unknown fields of a Chat answer                 fields of the Response
    unknown fields of its choice (`stop_reason`, …) the Response's `choice`
    unknown fields of its message                   fields of the output message; without one, of the reasoning item;
                                                    without either, the Response's `choice.message`
    unknown fields of a call or of the usage        fields of the call, of the usage
    `reasoning_details`                             a field of the reasoning item
    a message's citations of URLs                   annotations of its text; see `chat_citations`
    `citations` of a text of Anthropic's            nowhere: they point into documents of the request
    reasoning that only its provider can read       the Chat message's `reasoning_items`: the whole items; sent back by
                                                    the caller as they came, they are the items again
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from gymbox_sandbox.chat_history import REASONING_FIELDS, call_item, reasoning_items
from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import (
    FunctionCall,
    Message,
    Reasoning,
    Response,
)
from pydantic import ValidationError

from gymbox.errors import Invalid, ModelFailure
from gymbox.models.chat_citations import annotations_for_chat, annotations_from_chat
from gymbox.models.chat_messages import (
    OF_REASONING,
    RECORD,
    chat_call,
    object_arguments,
    others,
    parts_of,
    reasoning_text,
    text_of,
)
from gymbox.models.chat_usage import chat_usage, usage_from_chat
from gymbox.models.token_ids import ROUTED_EXPERTS, TOKEN_FIELDS, experts_in, experts_of, sampled_ids, token_ids_of

_INCOMPLETE = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "model_length": "max_output_tokens",
    "content_filter": "content_filter",
}
_FINISHED = frozenset({"stop", "tool_calls", "function_call", "eos", "end_turn", "stop_sequence"})
_ECHOED = frozenset(
    [
        "background",
        "completed_at",
        "conversation",
        "frequency_penalty",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "parallel_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
        "metadata",
        "choice",
    ]
)
"""Of a Response: what only repeats what was asked for."""


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
    reasoning: list[Reasoning] = []
    calls: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": "assistant", "content": None}
    annotations: list[Any] = []
    logprobs: list[Any] = []
    for index, item in enumerate(response.output):
        if isinstance(item, Reasoning):
            reasoning.append(item)
            message |= others(item.model_extra, OF_REASONING)
        elif isinstance(item, FunctionCall):
            calls.append(chat_call(item, item.arguments))
        elif isinstance(item, Message) and item.role == "assistant":
            message |= others(item.model_extra, RECORD)
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
    message |= _chat_reasoning(reasoning)
    if calls:
        message["tool_calls"] = calls
    if annotations:
        message["annotations"] = annotations
    for last in response.output[-1:]:
        message |= token_ids_of(last) | experts_of(last)
    extra = response.model_extra or {}
    beside = extra["choice"] if isinstance(extra.get("choice"), dict) else {}
    if isinstance(beside.get("message"), dict):
        message |= others(beside["message"], message.keys())
    choice = {**beside, "index": 0, "message": message, "finish_reason": _finish_reason(response, calls)}
    if logprobs:
        choice["logprobs"] = {"content": logprobs}
    answer: dict[str, Any] = {
        **others(extra, _ECHOED),
        "id": response.id or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(response.created_at or time.time()),
        "model": response.model,
        "choices": [choice],
    }
    if response.usage is not None:
        answer["usage"] = chat_usage(response.usage)
    return answer


def _chat_reasoning(items: list[Reasoning]) -> dict[str, Any]:
    text = "\n".join(filter(None, map(reasoning_text, items)))
    found: dict[str, Any] = {"reasoning_content": text} if text else {}
    if any((item.model_extra or {}).get("encrypted_content") for item in items):
        found["reasoning_items"] = [item.dump() for item in items]
    return found


def _take_output_part(
    part: dict[str, Any],
    index: int,
    texts: list[str],
    refusals: list[str],
    annotations: list[Any],
    logprobs: list[Any],
) -> None:
    if part.get("type") == "output_text":
        texts.append(text_of(part, "text", f"output[{index}]"))
        annotations += annotations_for_chat(part.get("annotations") or [], sum(map(len, texts[:-1])))
        logprobs += part.get("logprobs") or []
    elif part.get("type") == "refusal":
        refusals.append(text_of(part, "refusal", f"output[{index}]"))
    else:
        raise Invalid(f"output[{index}]: a part of type {part.get('type')!r} has no place in a Chat answer")


def _finish_reason(response: Response, calls: list[dict[str, Any]]) -> str:
    if response.status == "incomplete":
        reason = (response.incomplete_details or {}).get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    return "tool_calls" if calls else "stop"


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
    extra = others(body, _CHAT_ANSWER)
    beside = others(choice, _CHAT_CHOICE)
    text, output = _text_and_reasoning(message)
    calls = _calls(message)
    parts: list[dict[str, Any]] = []
    refusal = text_of(message, "refusal", "choices[0].message")
    more = others(message, _CHAT_MESSAGE)
    if text or not (refusal or calls or output):
        annotations = annotations_from_chat(message.get("annotations"))
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": annotations}
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and logprobs.get("content") and not token_ids:
            part["logprobs"] = logprobs["content"]
        parts.append(part)
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        said = {"type": "message", "role": "assistant", "status": "completed", "content": parts}
        output.append(_with_id("msg", {**more, **said}))
    elif more and output:
        output[0] = {**more, **output[0]}
    elif more:
        beside["message"] = more
    output += calls
    usage = usage_from_chat(body.get("usage"))
    reason = _incomplete_reason(choice, calls, usage, max_output_tokens)
    if reason is not None and "status" in output[-1]:
        output[-1]["status"] = "incomplete"
    output[-1] |= sampled_ids(body, choice, message, usage, wanted=token_ids) | experts_in(message, choice)
    try:
        return Response.model_validate(
            {
                **extra,
                **({"choice": beside} if beside else {}),
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
_CHAT_CHOICE = frozenset({"index", "message", "finish_reason", "logprobs", "token_ids", ROUTED_EXPERTS})
_CHAT_MESSAGE = frozenset(
    {
        "role",
        "content",
        "refusal",
        "tool_calls",
        "annotations",
        "type",
        "id",
        "status",
        *REASONING_FIELDS,
        *TOKEN_FIELDS,
        ROUTED_EXPERTS,
    }
)


def _only_choice(body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else "no"
        raise Invalid(f"a Chat answer has one choice, this one has {count}")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise Invalid("choices[0] has no message")
    for name in ("audio", "images", "function_call"):
        if message.get(name):
            raise Invalid(f"choices[0].message.{name}: there is no place for it in the Responses format")
    return choices[0], message


def _text_and_reasoning(message: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part) for part in content)
    if content is not None and not isinstance(content, str):
        raise Invalid(f"choices[0].message.content is a {type(content).__name__}, not text")
    try:
        found = reasoning_items(message)
    except ValueError as error:
        raise Invalid(f"choices[0].message: {error}") from error
    text = content or ""
    if not found:
        text, thoughts = without_thoughts(text)
        found = reasoning_items({"reasoning": thoughts})
    return text, [_with_id("rs", item) for item in found]


def _part_text(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type", "text") not in ("text", "output_text"):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise Invalid(f"choices[0].message.content: there is no place for a {kind!r} part in the Responses format")
    return text_of(part, "text", "choices[0].message.content")


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
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Invalid(f"choices[0].message.tool_calls is a {type(calls).__name__}, not a list")
    try:
        return [_with_id("fc", {**call_item(_identified(call)), "status": "completed"}) for call in calls]
    except ValueError as error:
        raise Invalid(f"choices[0].message.tool_calls: {error}") from error


def _identified(call: Any) -> Any:
    if not isinstance(call, dict) or call.get("id"):
        return call
    return {**call, "id": f"call_{uuid.uuid4().hex[:24]}"}


def _with_id(prefix: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"{prefix}_{uuid.uuid4().hex}", **item}


def _incomplete_reason(
    choice: dict[str, Any], calls: list[dict[str, Any]], usage: dict[str, Any] | None, limit: int | None
) -> str | None:
    finish = choice.get("finish_reason")
    if not isinstance(finish, str):
        raise Invalid(f"choices[0].finish_reason is {finish!r:.50}: the answer is not finished")
    # some put the filter's own reason behind
    reason = _INCOMPLETE.get(finish.partition(":")[0])
    if reason is not None:
        return reason
    if finish not in _FINISHED:
        raise Invalid(f"choices[0].finish_reason is {finish!r}: the answer is not finished")
    if calls and limit is not None and usage is not None and usage["output_tokens"] >= limit:
        last = calls[-1]["arguments"]
        if object_arguments(last) != last:
            return "max_output_tokens"
    return None


def chat_error(failure: ModelFailure) -> dict[str, Any]:
    """A failure as the error of a Chat answer."""
    kind = failure.rollout_kind.value
    return {"message": failure.detail, "type": "server_error", "code": kind, "param": None, "rollout_kind": kind}
