"""Chat history: messages in the shape of the Chat Completions API, as Responses items.

Datasets and callers mix both shapes; whatever reads `input` accepts them. Fields that neither API names stay with what
they stand beside (a message's with the message, a call's with the call, a part's with the part), so that what a
provider wants back (`reasoning_details`, `extra_content`, `cache_control`, …) survives. An earlier answer's
`annotations` and `audio: null` are let go: neither API reads them in a history.
"""

from __future__ import annotations

from typing import Any

CHAT_PARTS = ("text", "image_url", "file", "function_call")
"""Part types that a Responses message never holds."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "reasoning_items")
"""Where an assistant message carries reasoning: as text (under two names), as a provider's own details, or as whole
items of the Responses format, with what only their provider can read."""

_TAKEN = frozenset(
    {"type", "content", "tool_calls", "refusal", "audio", "annotations", "function_call", *REASONING_FIELDS}
)


def is_chat_shaped(item: Any) -> bool:
    """Whether an input item needs `items_from_message`."""
    if not isinstance(item, dict) or "role" not in item or item.get("type") not in (None, "message"):
        return False
    content = item.get("content")
    if content is None or item["role"] in ("tool", "function"):
        return True
    if "tool_calls" in item or "refusal" in item or any(name in item for name in REASONING_FIELDS):
        return True
    return isinstance(content, list) and any(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") in CHAT_PARTS) for part in content
    )


def items_from_message(message: Any) -> list[dict[str, Any]]:
    """The items that a Chat message stands for: reasoning, then text, then calls; or a call's output.

    Raises:
        ValueError: it has no place in the Responses format; the text names the field.
    """
    if not isinstance(message, dict):
        raise ValueError(f"a message must be an object, not {type(message).__name__}")
    role = message.get("role")
    if role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            raise ValueError("a message of role 'tool' needs its tool_call_id")
        kept = {name: message[name] for name in message if name not in ("role", "type", "tool_call_id", "content")}
        output = _content(message.get("content"), "input_text")
        return [{"type": "function_call_output", **kept, "call_id": message["tool_call_id"], "output": output}]
    if role == "function" or message.get("function_call") is not None:
        raise ValueError("role 'function' and function_call are of an API that has ended; use tools and role 'tool'")
    if role == "assistant":
        return _assistant_items(message)
    if message.get("tool_calls"):
        raise ValueError(f"a message of role {role!r} cannot have tool_calls")
    kept = {name: message[name] for name in message if name not in ("type", "content", "tool_calls")}
    return [{"type": "message", **kept, "content": _content(message.get("content"), "input_text")}]


def _assistant_items(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message.get("audio") is not None:
        raise ValueError("an assistant message with audio cannot be carried over")
    items = reasoning_items(message)
    content, calls = message.get("content"), message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls must be a list, not {type(calls).__name__}")
    if isinstance(content, list):
        calls = [part for part in content if _is_call(part)] + calls
        content = [part for part in content if not _is_call(part)]
    parts = _content(content, "output_text")
    if message.get("refusal"):
        texts = [{"type": "output_text", "text": parts}] if isinstance(parts, str) and parts else parts or []
        parts = [*texts, {"type": "refusal", "refusal": message["refusal"]}]
    kept = {name: value for name, value in message.items() if name not in _TAKEN}
    if parts or len(kept) > 1 or not (calls or items):
        items.append({"type": "message", **kept, "content": parts})
    return items + [call_item(call) for call in calls]


def _is_call(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "function_call"


def reasoning_items(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The reasoning that an assistant message carries.

    Raises:
        ValueError: it is not text, or its items are none.
    """
    whole = message.get("reasoning_items")
    if whole:
        if not isinstance(whole, list) or not all(_is_reasoning(item) for item in whole):
            raise ValueError("reasoning_items must be a list of reasoning items")
        return list(whole)
    text = message.get("reasoning_content") or message.get("reasoning") or ""
    details = message.get("reasoning_details")
    if not isinstance(text, str):
        raise ValueError(f"reasoning is a {type(text).__name__}; it must be a string")
    if not text and not details:
        return []
    summary = [{"type": "summary_text", "text": text}] if text else []
    return [{"type": "reasoning", "summary": summary, **({"reasoning_details": details} if details else {})}]


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def call_item(call: Any) -> dict[str, Any]:
    """The item of a call in either shape, or in one without `type`.

    Raises:
        ValueError: it is no function's call, or lacks its id or name.
    """
    if not isinstance(call, dict):
        raise ValueError(f"a tool call must be an object, not {type(call).__name__}")
    if call.get("type") not in (None, "function", "function_call"):
        raise ValueError(f"a tool call of type {call['type']!r} cannot be carried over, only 'function'")
    named = call.get("function", call)
    identity = call.get("call_id") or call.get("id")
    if not isinstance(named, dict) or not isinstance(named.get("name"), str) or not isinstance(identity, str):
        raise ValueError("a tool call needs an id and a function name")
    arguments = named.get("arguments")
    taken = ("type", "id", "call_id", "index", "function", "name", "arguments")
    return {
        "type": "function_call",
        **{name: value for name, value in call.items() if name not in taken and value is not None},
        "call_id": identity,
        "name": named["name"],
        "arguments": arguments if isinstance(arguments, str) else _dumps(arguments),
    }


def _dumps(arguments: Any) -> str:
    import json

    return json.dumps({} if arguments is None else arguments)


def _content(content: Any, text_type: str) -> Any:
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    return [_part(part, text_type) for part in content]


def _part(part: Any, text_type: str) -> Any:
    if isinstance(part, str):
        return {"type": text_type, "text": part}
    if not isinstance(part, dict):
        raise ValueError(f"a content part must be an object or a string, not {type(part).__name__}")
    kind = part.get("type")
    if kind == "text":
        return {**part, "type": text_type}
    if kind not in ("image_url", "file"):
        return part
    within = part.get(kind)
    beside = {name: value for name, value in part.items() if name not in ("type", kind)}
    if kind == "image_url" and isinstance(within, str):
        within = {"url": within}
    if not isinstance(within, dict):
        raise ValueError(f"a part of type {kind!r} needs its {kind}")
    if kind == "file":
        return {"type": "input_file", **beside, **within}
    if not isinstance(within.get("url"), str):
        raise ValueError("a part of type 'image_url' needs a url")
    more = {name: value for name, value in within.items() if name != "url"}
    return {"type": "input_image", "detail": "auto", **beside, **more, "image_url": within["url"]}
