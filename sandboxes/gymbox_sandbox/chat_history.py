"""Chat history: messages in the shape of the Chat Completions API, as Responses items.

Datasets and callers mix both shapes; whatever reads `input` accepts them.
"""

from __future__ import annotations

from typing import Any

CHAT_PARTS = frozenset({"text", "image_url", "file", "function_call"})
"""Part types that a Responses message never holds."""


def is_chat_shaped(item: Any) -> bool:
    """Whether an input item needs `items_from_message`."""
    if not isinstance(item, dict) or "role" not in item or item.get("type") not in (None, "message"):
        return False
    content = item.get("content")
    return (
        item["role"] in ("tool", "function")
        or content is None
        or any(name in item for name in ("tool_calls", "reasoning_content", "reasoning"))
        or (
            isinstance(content, list)
            and any(isinstance(part, dict) and part.get("type") in CHAT_PARTS for part in content)
        )
    )


def items_from_message(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The items that a Chat message stands for: reasoning, then text, then calls; or a call's output.

    Raises:
        ValueError: it has no place in the Responses format; the text names the field.
    """
    role = message.get("role")
    if role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            raise ValueError("a message of role 'tool' needs its tool_call_id")
        return [
            {
                "type": "function_call_output",
                "call_id": message["tool_call_id"],
                "output": _content(message.get("content"), "input_text"),
            }
        ]
    if role == "function" or message.get("function_call") is not None:
        raise ValueError("role 'function' and function_call are of an API that has ended; use tools and role 'tool'")
    if role != "assistant":
        if message.get("tool_calls"):
            raise ValueError(f"a message of role {role!r} cannot have tool_calls")
        kept = {name: value for name, value in message.items() if name not in ("type", "content", "tool_calls")}
        return [{"type": "message", **kept, "content": _content(message.get("content"), "input_text")}]
    return _assistant_items(message)


def _assistant_items(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message.get("audio") is not None:
        raise ValueError("an assistant message with audio cannot be carried over")
    items: list[dict[str, Any]] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        if not isinstance(reasoning, str):
            raise ValueError("reasoning must be a string")
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    content, calls = message.get("content"), list(message.get("tool_calls") or [])
    if isinstance(content, list):
        calls = [part for part in content if part.get("type") == "function_call"] + calls
        content = [part for part in content if part.get("type") != "function_call"]
    parts = _content(content, "output_text")
    if message.get("refusal"):
        texts = [{"type": "output_text", "text": parts}] if isinstance(parts, str) and parts else parts or []
        parts = [*texts, {"type": "refusal", "refusal": message["refusal"]}]
    if parts or not (calls or items):
        taken = ("type", "content", "tool_calls", "reasoning_content", "reasoning", "refusal", "audio", "annotations")
        kept = {name: value for name, value in message.items() if name not in (*taken, "function_call")}
        items.append({"type": "message", **kept, "content": parts})
    return items + [_call_item(call) for call in calls]


def _call_item(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type", "function") not in ("function", "function_call"):
        raise ValueError(f"a tool call of type {call['type']!r} cannot be carried over, only 'function'")
    named = call.get("function", call)
    identity = call.get("call_id") or call.get("id")
    if not isinstance(named.get("name"), str) or not isinstance(identity, str):
        raise ValueError("a tool call needs an id and a function name")
    arguments = named.get("arguments")
    return {
        "type": "function_call",
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
    if part.get("type") == "text":
        return {**part, "type": text_type}
    if part.get("type") == "image_url":
        image = part.get("image_url")
        image = {"url": image} if isinstance(image, str) else image or {}
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail", "auto")}
    if part.get("type") == "file":
        return {"type": "input_file", **(part.get("file") or {})}
    return part
