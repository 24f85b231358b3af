"""What an answer says, in whatever dialect it came, so that answers can be compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Told:
    """An answer, in whatever dialect it came."""

    text: str
    calls: tuple[tuple[str, str], ...]
    ending: str
    tokens: tuple[int, int]
    thought: str = ""


def of_response(body: dict[str, Any]) -> Told:
    items = body["output"]
    text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    cut = body["status"] == "incomplete" and body["incomplete_details"]["reason"] == "max_output_tokens"
    assert cut or body["status"] == "completed"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    ending = "limit" if cut else "calls" if calls else "end"
    thoughts = [item.get("content") or item["summary"] for item in items if item["type"] == "reasoning"]
    thought = "".join(part["text"] for parts in thoughts for part in parts)
    return Told(text, tuple(calls), ending, (usage["input_tokens"], usage["output_tokens"]), thought)


def of_chat(body: dict[str, Any]) -> Told:
    [choice] = body["choices"]
    message, usage = choice["message"], body["usage"]
    functions = [call["function"] for call in message.get("tool_calls") or []]
    ending = {"length": "limit", "tool_calls": "calls", "stop": "end"}[choice["finish_reason"]]
    calls = tuple((function["name"], function["arguments"]) for function in functions)
    tokens = usage["prompt_tokens"], usage["completion_tokens"]
    return Told(message.get("content") or "", calls, ending, tokens, message.get("reasoning_content") or "")


def of_message(body: dict[str, Any]) -> Told:
    blocks, usage = body["content"], body["usage"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [(block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
    ending = {"max_tokens": "limit", "tool_use": "calls", "end_turn": "end"}[body["stop_reason"]]
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    return Told(text, tuple(calls), ending, (usage["input_tokens"], usage["output_tokens"]), thought)


TOLD_OF = {"responses": of_response, "chat": of_chat, "messages": of_message}
