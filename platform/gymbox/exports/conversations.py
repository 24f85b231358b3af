"""Conversations: a rollout as Chat messages with its tools, in the form that chat templates and TRL take.

    content      text alone, `""` where an assistant only calls tools
    arguments    of a tool call: the JSON object itself, as chat templates want it, not its text
    tools        as a Chat request has them: `{type: function, function: {name, description, parameters}}`
    reasoning    kept in `reasoning_content`, put before the text as `<think>…</think>`, or dropped

The system prompt is the row's `instructions`, else the agent's own, as the run's manifest has it. The tools are those
that the model was shown, as the response tells, else the row's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gymbox_sandbox.responses import Item, Response, ResponsesParams
from pydantic import ValidationError

from gymbox.errors import Invalid
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.exports.left_out import Reason, Unfit
from gymbox.models.chat_messages import object_arguments
from gymbox.models.chat_requests import chat_from_params

_FIELDS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
"""Of a message: what chat templates know."""


class Reasoning(StrEnum):
    """What becomes of a model's reasoning."""

    KEEP = "keep"
    """It stands in `reasoning_content`."""
    THINK = "think"
    """It stands before the text, between `<think>` tags."""
    DROP = "drop"

    @property
    def field(self) -> str | None:
        """As `messages_from_items` takes it."""
        return {"keep": "reasoning_content", "think": "think"}.get(self.value)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was asked, what followed, and the tools that the model was shown."""

    prompt: list[dict[str, Any]]
    answer: list[dict[str, Any]]
    tools: list[dict[str, Any]]


def conversation_of(
    rollout: Rollout, *, reasoning: Reasoning = Reasoning.KEEP, instructions: str | None = None
) -> Conversation:
    """
    Args:
        instructions: the agent's system prompt, for rows that bring none.

    Raises:
        Unfit: it has no answer, or is nothing that can be told in text messages.
    """
    if rollout.line.get("skills_ref"):
        raise Unfit(Reason.SKILLS)
    try:
        params = ResponsesParams.model_validate(rollout.line.get("responses_create_params") or {})
        response = Response.model_validate(rollout.line.get("response") or {})
    except ValidationError as error:
        raise Unfit(Reason.NOT_CHAT, str(error)) from error
    for call in response.function_calls:
        if call.arguments.strip() and object_arguments(call.arguments) is not call.arguments:
            raise Unfit(Reason.NOT_CHAT, f"the arguments of a call of {call.name!r} are no JSON object")
    shown = (response.model_extra or {}).get("tools") or params.tools
    system = instructions if params.instructions is None else params.instructions
    field = reasoning.field
    prompt, _ = _chat(params.items, system, shown, field)
    whole, tools = _chat([*params.items, *response.output], system, shown, field)
    answer = whole[len(prompt) :]
    if whole[: len(prompt)] != prompt:
        raise Unfit(Reason.NOT_CHAT, "the answer goes on in the middle of a message of the prompt")
    if not prompt:
        raise Unfit(Reason.NOT_CHAT, "the row asks nothing")
    if not any(message["role"] == "assistant" for message in answer):
        raise Unfit(Reason.NO_ANSWER)
    return Conversation(prompt, answer, tools)


def _chat(
    items: Sequence[Item], system: str | None, tools: list[dict[str, Any]], reasoning_field: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    asked = ResponsesParams(input=list(items), instructions=system, tools=tools)
    try:
        request = chat_from_params(asked, reasoning_field=reasoning_field)
    except Invalid as error:
        raise Unfit(Reason.NOT_CHAT, error.detail) from error
    return [_message(message) for message in request["messages"]], request.get("tools", [])


def _message(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("refusal"):
        raise Unfit(Reason.NOT_TEXT, "the endpoint's refusal stands in place of an answer")
    message = {name: given[name] for name in _FIELDS if name in given}
    message["content"] = _text(given.get("content"))
    if "tool_calls" in given:
        message["tool_calls"] = [_call(call) for call in given["tool_calls"]]
    return message


def _text(content: Any) -> str:
    if isinstance(content, list):
        if strange := next((part for part in content if part.get("type") != "text"), None):
            raise Unfit(Reason.NOT_TEXT, f"a part of type {strange.get('type')!r}")
        return "".join(part["text"] for part in content)
    return content or ""


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.loads(function["arguments"])
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


class AgentInstructions:
    """The system prompts that a run's agents gave rows without one, as its manifest tells them."""

    def __init__(self, run: RunReader) -> None:
        inputs: dict[str, Any] = run.manifest.inputs if run.manifest else {}
        self._default = _instructions(inputs.get("agent"))
        named: dict[str, Any] = inputs.get("agents") or {}
        self._named = {name: _instructions(each.get("agent")) for name, each in named.items()}

    def of(self, rollout: Rollout) -> str | None:
        """What its agent says; None where it says nothing, or nothing tells."""
        return self._named.get(rollout.agent or "", self._default)


def _instructions(agent: Any) -> str | None:
    found = agent.get("instructions") if isinstance(agent, dict) else None
    return found if isinstance(found, str) else None
