"""Runs on disk with answers, tools and token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.evaluation.conftest import line
from tests.unit.evaluation.conftest import run as run

ADD = {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object"}, "strict": False}
CHAT_ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}


def said(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **more}


def called(name: str = "add", arguments: str = '{"a": 1}', call: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call, "name": name, "arguments": arguments, **more}


def result(text: str = "2", call: str = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": text}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def ids(prompt: list[int], *sampled: int) -> dict[str, Any]:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": list(sampled),
        "generation_log_probs": [-1.0] * len(sampled),
    }


def answered(task: str, repeat: int, reward: float | None, *output: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A line whose model gave this output."""
    made = line(task, repeat, reward, **more)
    return {**made, "response": {"output": list(output), "status": "completed", **more.get("response", {})}}


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]
