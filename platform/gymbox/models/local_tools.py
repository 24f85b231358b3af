"""Local tools: how a small model whose template knows no tools is told of them, and held to one call by a grammar."""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple

from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Message, Response, ResponsesParams

from gymbox.errors import Invalid
from gymbox.models.token_ids import token_ids_of

ANSWER = "final_answer"
"""Stands among the tools for: no more calls."""


class CallResult(NamedTuple):
    """What one call gave."""

    tool: str
    arguments: str
    """As JSON."""
    output: str
    """As JSON."""


def offered_tools(params: ResponsesParams) -> list[dict[str, Any]]:
    """The tools that this turn may call.

    Raises:
        Invalid: one is no function tool.
    """
    choice = params.tool_choice
    if choice == "none":
        return []
    for tool in params.tools:
        if tool.get("type") != "function":
            raise Invalid(f"tools: the local model knows only function tools, not {tool.get('type')!r}")
    if isinstance(choice, dict):
        return [tool for tool in params.tools if tool.get("name") == choice.get("name")]
    return params.tools


def results_in_a_row(params: ResponsesParams) -> list[CallResult]:
    """The results of calls since another party spoke last."""
    found: list[CallResult] = []
    calls: dict[str, FunctionCall] = {}
    for item in params.items:
        if isinstance(item, FunctionCall):
            calls[item.call_id] = item
        elif isinstance(item, FunctionCallOutput) and item.call_id in calls:
            call = calls[item.call_id]
            found.append(CallResult(call.name, call.arguments, json.dumps(item.output)))
        elif isinstance(item, Message) and item.role != "assistant":
            found.clear()
    return found


def is_repeated(decision: dict[str, Any], results: list[CallResult]) -> bool:
    """Whether a decision is the last call once more."""
    if not results:
        return False
    last = results[-1]
    return bool(decision["tool"] == last.tool and json.dumps(decision["arguments"]) == last.arguments)


def told_as_notes(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with calls and their results written out below the user's message that they serve.

    A small model that sees its own calls as its last words repeats them; it does better with notes.
    """
    told: list[dict[str, Any]] = []
    calls: dict[str, str] = {}
    noting = False
    for message in messages:
        if message["role"] == "tool":
            add_note(told, f"{calls[message['tool_call_id']]} -> {message['content']}")
        elif message.get("tool_calls"):
            functions = {call["id"]: call["function"] for call in message["tool_calls"]}
            calls |= {id: f"{function['name']} {function['arguments']}" for id, function in functions.items()}
            for line in ([] if noting else ["\nResults:"]) + [message["content"]]:
                if line:
                    add_note(told, line)
        else:
            told.append(message)
        noting = message["role"] == "tool" or "tool_calls" in message
    return told


def add_note(told: list[dict[str, Any]], line: str) -> None:
    """Put a line below the user's last message, or begin one where another party spoke last."""
    if not told or told[-1]["role"] != "user":
        told.append({"role": "user", "content": ""})
    content = told[-1]["content"]
    noted = f"{content}\n{line}" if isinstance(content, str) else [*content, {"type": "text", "text": line}]
    told[-1] = {**told[-1], "content": noted}


def held_to_choice(body: dict[str, Any], tools: list[dict[str, Any]], *, may_answer: bool) -> dict[str, Any]:
    """The request for one call (or the choice of `ANSWER`), held to it by a grammar."""
    lines = [f"{_signature(tool)}  {tool.get('description') or ''}".strip() for tool in tools]
    if may_answer:
        lines.append(f"{ANSWER}()  No more calls are needed: answer the user.")
    guide = "\n".join(
        ['Use the tools to do what the user asks. Reply with JSON only: {"tool": …, "arguments": …}', "Tools:", *lines]
    )
    choices: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for index, tool in enumerate(tools):
        schema = _hoisted(tool.get("parameters") or {"type": "object", "properties": {}}, f"t{index}_", definitions)
        choices.append(_object(tool=tool["name"], arguments=schema))
    if may_answer:
        choices.append(_object(tool=ANSWER))
    held = {"name": "call", "schema": {"anyOf": choices, "$defs": definitions}}
    return body | {
        "messages": [{"role": "system", "content": guide}, *body["messages"]],
        "response_format": {"type": "json_schema", "json_schema": held},
    }


def _signature(tool: dict[str, Any]) -> str:
    properties = (tool.get("parameters") or {}).get("properties", {})
    names = [f"{name}: {schema['type']}" if "type" in schema else name for name, schema in properties.items()]
    return f"{tool['name']}({', '.join(names)})"


def _object(*, tool: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"tool": {"const": tool}, **properties},
        "required": ["tool", *properties],
        "additionalProperties": False,
    }


def _hoisted(schema: Any, prefix: str, definitions: dict[str, Any]) -> Any:
    """`schema` for use inside another: its `$defs` go into `definitions`, where its references then point."""
    if isinstance(schema, list):
        return [_hoisted(part, prefix, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    for name, part in schema.get("$defs", {}).items():
        definitions[f"{prefix}{name}"] = _hoisted(part, prefix, definitions)
    rest = {name: _hoisted(part, prefix, definitions) for name, part in schema.items() if name != "$defs"}
    if isinstance(rest.get("$ref"), str):
        rest["$ref"] = rest["$ref"].replace("#/$defs/", f"#/$defs/{prefix}")
    return rest


def with_call(response: Response, name: str, arguments: str) -> Response:
    """The response with this call as its only item, which keeps the sampled ids of what chose it."""
    made = uuid.uuid4().hex
    call = FunctionCall(id=f"fc_{made}", call_id=f"call_{made}", name=name, arguments=arguments, status="completed")
    call = call.model_copy(update=token_ids_of(response.output[-1]))
    return response.model_copy(update={"output": [call]})
