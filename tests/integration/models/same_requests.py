"""The same requests in each dialect, written by hand: no converter has touched them."""

from __future__ import annotations

import json
from typing import Any, Literal

Dialect = Literal["responses", "chat", "messages"]
LIMITS: dict[Dialect, str] = {"responses": "max_output_tokens", "chat": "max_tokens", "messages": "max_tokens"}


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def in_each(turns: list[dict[str, Any]], /, *, limit: int, **more: dict[str, Any]) -> dict[Dialect, dict[str, Any]]:
    asked: dict[Dialect, dict[str, Any]] = {
        "responses": {"input": turns},
        "chat": {"messages": turns},
        "messages": {"messages": turns},
    }
    return {
        dialect: {**body, **more.get(dialect, {}), LIMITS[dialect]: limit, "model": "m", "temperature": 0}
        for dialect, body in asked.items()
    }


SYSTEM = "You answer with one word."
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells the weather."}
CALLS = {"a": "Paris", "b": "Rome"}
RESULTS = {"a": "12", "b": "15"}
BEFORE, NOW = "Weather in Paris and Rome?", "Weather in Cairo and Oslo?"


def arguments(city: str) -> str:
    return json.dumps({"city": city})


TOOLS: dict[str, dict[str, Any]] = {
    "responses": {
        "tools": [{"type": "function", **WEATHER, "parameters": CITY}],
        "input": [
            {"role": "user", "content": BEFORE},
            *(
                {"type": "function_call", "call_id": id, "name": "weather", "arguments": arguments(city)}
                for id, city in CALLS.items()
            ),
            *({"type": "function_call_output", "call_id": id, "output": result} for id, result in RESULTS.items()),
            {"role": "user", "content": NOW},
        ],
    },
    "chat": {
        "tools": [{"type": "function", "function": {**WEATHER, "parameters": CITY}}],
        "messages": [
            {"role": "user", "content": BEFORE},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments(city)}}
                    for id, city in CALLS.items()
                ],
            },
            *({"role": "tool", "tool_call_id": id, "content": result} for id, result in RESULTS.items()),
            {"role": "user", "content": NOW},
        ],
    },
    "messages": {
        "tools": [{**WEATHER, "input_schema": CITY}],
        "messages": [
            {"role": "user", "content": BEFORE},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": id, "name": "weather", "input": {"city": city}}
                    for id, city in CALLS.items()
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": result} for id, result in RESULTS.items()
                ],
            },
            {"role": "user", "content": NOW},
        ],
    },
}
TURNS = said("I am Ann, I am 7.", "Hi Ann!", "Grüße 🌍! How old am I?")
WHOLE = {
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": TURNS[1]["content"], "annotations": []}],
}
"""An earlier answer as llama.cpp's Responses API wants it."""
CASES: dict[str, dict[Dialect, dict[str, Any]]] = {
    "text": in_each(said("Say hello to Bob."), limit=40),
    "cut by the limit": in_each(said("Name three colours."), limit=5),
    "system prompt": in_each(
        said("Name a colour."),
        limit=16,
        responses={"instructions": SYSTEM},
        chat={"messages": [{"role": "system", "content": SYSTEM}, *said("Name a colour.")]},
        messages={"system": SYSTEM},
    ),
    "several turns": in_each(TURNS, limit=12, responses={"input": [TURNS[0], WHOLE, TURNS[2]]}),
    "parallel tool calls": in_each([], limit=64, **TOOLS),
    "structured": in_each(
        said("Say hello to Bob."),
        limit=40,
        responses={"text": {"format": {"type": "json_schema", "name": "colour", "schema": SCHEMA}}},
        chat={"response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA}}},
        messages={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
}
THOUGHT = "Ann is a child."
THOUGHTS: dict[str, dict[Dialect, dict[str, Any]]] = {
    "cut in a thought": in_each(said("Say hello to Bob."), limit=12),
    "an earlier thought": in_each(
        TURNS,
        limit=12,
        responses={
            "input": [
                TURNS[0],
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": THOUGHT}]},
                WHOLE,
                TURNS[2],
            ]
        },
        chat={"messages": [TURNS[0], {**TURNS[1], "reasoning_content": THOUGHT}, TURNS[2]]},
        messages={
            "messages": [
                TURNS[0],
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": THOUGHT, "signature": ""},
                        {"type": "text", "text": TURNS[1]["content"]},
                    ],
                },
                TURNS[2],
            ]
        },
    ),
}
LOCAL_CASES = CASES | {
    "one tool call": in_each(
        said("Weather in Rome?"), limit=40, **{dialect: {"tools": body["tools"]} for dialect, body in TOOLS.items()}
    )
}
