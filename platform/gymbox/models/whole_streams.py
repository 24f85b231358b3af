"""Whole streams: the answer that the pieces of a stream make together, in the dialect that they came in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_ADDED_UP = frozenset({"content", "reasoning_content", "reasoning", "refusal"})


def answer_of_chunks(chunks: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The Chat answer that a stream's chunks make; None where they are not one. Fields that are not known are kept,
    the last value of each."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for given in chunk.get("choices") or []:
            _add_choice(choices.setdefault(given.get("index") or 0, _new_choice(given)), given)
        answer |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
    if not choices:
        return None
    answer["object"] = "chat.completion"
    answer["choices"] = [_ended(choices[index]) for index in sorted(choices)]
    return answer


def _new_choice(given: dict[str, Any]) -> dict[str, Any]:
    return {"index": given.get("index") or 0, "message": {"role": "assistant", "content": None}, "_calls": {}}


def _add_choice(choice: dict[str, Any], given: dict[str, Any]) -> None:
    message = choice["message"]
    for name, value in (given.get("delta") or {}).items():
        if value is None:
            continue
        if name == "tool_calls":
            for piece in value:
                _add_call(choice["_calls"], piece)
        elif name in _ADDED_UP and isinstance(value, str):
            message[name] = (message.get(name) or "") + value
        else:
            message[name] = value
    for name, value in given.items():
        if name in ("delta", "index") or value is None:
            continue
        if name == "logprobs":
            kept = choice.setdefault("logprobs", {"content": []})
            kept["content"] += value.get("content") or []
        elif name == "token_ids":
            choice.setdefault("token_ids", []).extend(value)
        else:
            choice[name] = value


def _add_call(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    index = piece.get("index")
    call = calls.setdefault(
        len(calls) if index is None else index,
        {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
    )
    call["id"] = call["id"] or piece.get("id")
    function = piece.get("function") or {}
    call["function"]["name"] = call["function"]["name"] or function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def _ended(choice: dict[str, Any]) -> dict[str, Any]:
    calls = choice.pop("_calls")
    if calls:
        choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
    return choice


def message_of_events(events: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The Messages answer that a stream's events make; None where they are not one."""
    message: dict[str, Any] | None = None
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            message = {**event["message"]}
        elif kind == "content_block_start":
            blocks[event["index"]] = {**event["content_block"]}
        elif kind == "content_block_delta" and event["index"] in blocks:
            _add_delta(blocks[event["index"]], event["delta"])
        elif kind == "message_delta" and message is not None:
            message |= event.get("delta") or {}
            message["usage"] = {**(message.get("usage") or {}), **(event.get("usage") or {})}
    if message is None:
        return None
    return {**message, "content": [_ended_block(blocks[index]) for index in sorted(blocks)]}


_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    name = _DELTAS.get(delta.get("type", ""))
    if name is not None:
        block[name] = (block.get(name) or "") + (delta.get(name) or "")
    elif delta.get("type") == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta.get("citation")]


def _ended_block(block: dict[str, Any]) -> dict[str, Any]:
    import json

    text = block.pop("partial_json", None)
    if text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            block["input"] = {"partial_json": text}
    return block
