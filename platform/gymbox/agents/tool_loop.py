"""Tool loop: ask the model, run the tools it calls, show it the results, until it answers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Item, Message, Response, ResponsesParams, Usage
from gymbox_sandbox.tasks import Task
from pydantic import Field

from gymbox.agents import Agent, AgentModel, Tools
from gymbox.agents.skilled_tools import SkilledTools
from gymbox.errors import nearest
from gymbox.models.strict_json import strict_json

_CUT_SHORT = frozenset({"max_output_tokens", "content_filter", "max_steps", "max_tool_calls", "max_invalid_calls"})
"""Stop reasons with which the response is `incomplete`."""


class ToolLoop(Agent):
    """Lets the model call the environment's tools until it answers.

    The model sees the row's own tool definitions where the row has some, else the sandbox's; callable is only what
    the sandbox has and the model was shown. A call that cannot be run (no such tool, arguments that are no JSON
    object) is answered with a text the model can act on, and so is a tool that fails. Calls of an answer that was cut
    off are not run. Calls of one turn run at once unless the row says `parallel_tool_calls: false`; each is answered
    exactly once, in call order.

    With `skills` the system prompt names them, and the model reads them with a tool of the agent's own, `read_skill`.

    The response is the whole trajectory. `metadata` tells, as strings, why it ended (`stop_reason`: `completed`,
    `no_answer`, `max_steps`, `max_tool_calls`, `max_invalid_calls`, `max_output_tokens` or `content_filter`), and the
    `steps` and `tool_calls` it took. All but the first two make its status `incomplete`.
    """

    takes_skills: ClassVar[bool] = True

    max_steps: int = Field(32, ge=1)
    """Model calls of one task."""
    max_tool_calls: int | None = Field(None, ge=0)
    """Tool calls of one task."""
    max_output_tokens: int | None = Field(None, ge=1)
    """Tokens that the model may write over all its calls, as far as it reports them; the row's own
    `max_output_tokens` bounds each call."""
    max_invalid_calls: int | None = Field(None, ge=1)
    """Calls in a row that could not be run; a tool that fails does not count."""
    instructions: str | None = None
    """System prompt for rows that bring no `instructions` of their own."""

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        params = task.responses_create_params
        shown, told = params.tools or tools.definitions, params.instructions or self.instructions
        if self.skills is not None:
            tools = SkilledTools(tools, self.skills)
            shown, told = [*shown, tools.definition], "\n\n".join(filter(None, (told, tools.instructions)))
        known = {str(tool.get("name")) for tool in tools.definitions}
        toolbox = _Toolbox(tools, frozenset(known & {str(tool.get("name")) for tool in shown}))
        trajectory = _Trajectory()
        stop_reason = "max_steps"
        while trajectory.steps < self.max_steps:
            left = self._tokens_left(params, trajectory)
            if left is not None and left <= 0:
                stop_reason = "max_output_tokens"
                break
            request = _request(params, shown, told, trajectory.output, left)
            response = await model.responses(request)
            trajectory.add(response)
            calls = response.function_calls
            if response.status == "incomplete":
                filtered = (response.incomplete_details or {}).get("reason") == "content_filter"
                stop_reason = "content_filter" if filtered else "max_output_tokens"
                trajectory.answer(calls, ["error: not run, since the answer was cut off"] * len(calls))
                break
            if not calls:
                stop_reason = "completed" if _has_answer(response) else "no_answer"
                break
            allowed = len(calls) if self.max_tool_calls is None else self.max_tool_calls - trajectory.tool_calls
            answers = await toolbox.call(calls[:allowed], at_once=params.parallel_tool_calls is not False)
            trajectory.tool_calls += len(answers)
            over = [f"error: not run, since the limit of {self.max_tool_calls} tool calls is reached"]
            trajectory.answer(calls, answers + over * (len(calls) - len(answers)))
            if len(answers) < len(calls):
                stop_reason = "max_tool_calls"
                break
            if self.max_invalid_calls is not None and toolbox.invalid_calls >= self.max_invalid_calls:
                stop_reason = "max_invalid_calls"
                break
        return trajectory.response(model.name, params, shown, stop_reason)

    def _tokens_left(self, params: ResponsesParams, trajectory: _Trajectory) -> int | None:
        """What the next call may write: what remains of the task's budget, within the row's own limit."""
        if self.max_output_tokens is None:
            return params.max_output_tokens
        left = self.max_output_tokens - trajectory.usage.output_tokens
        return left if params.max_output_tokens is None else min(left, params.max_output_tokens)


def _request(
    params: ResponsesParams, shown: list[dict[str, Any]], told: str | None, output: Sequence[Item], left: int | None
) -> ResponsesParams:
    update: dict[str, Any] = {"input": [*params.items, *output]}
    if shown:
        update["tools"] = shown
    if left is not None:
        update["max_output_tokens"] = left
    if told is not None:
        update["instructions"] = told
    return params.model_copy(update=update)


@dataclass(slots=True)
class _Toolbox:
    """The tools that may be called, and how many calls in a row could not be run."""

    tools: Tools
    callable: frozenset[str]
    invalid_calls: int = 0

    async def call(self, calls: Sequence[FunctionCall], *, at_once: bool) -> list[str]:
        """What each call gave, in call order."""
        if at_once and len(calls) > 1:
            return await _gather([self._answer(call) for call in calls])
        return [await self._answer(call) for call in calls]

    async def _answer(self, call: FunctionCall) -> str:
        fault, arguments = self._checked(call)
        if fault is not None:
            self.invalid_calls += 1
            return f"error: {fault}"
        self.invalid_calls = 0
        result = await self.tools.call(call.name, arguments)
        # the Responses API has no field for it, so the text has to say it
        marked = result.is_error and not result.output.lower().startswith("error")
        return f"error: {result.output}" if marked else result.output

    def _checked(self, call: FunctionCall) -> tuple[str | None, dict[str, Any]]:
        """Why the call cannot be run, or None and its arguments."""
        if call.name not in self.callable:
            return f"there is no tool {call.name!r}; {nearest(call.name, sorted(self.callable))}", {}
        try:
            arguments = strict_json(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return f"the arguments of {call.name!r} are not valid JSON ({error}); send one JSON object", {}
        if not isinstance(arguments, dict):
            return f"the arguments of {call.name!r} must be a JSON object, not {type(arguments).__name__}", {}
        return None, arguments


async def _gather(coroutines: Sequence[Coroutine[Any, Any, str]]) -> list[str]:
    """Their results in order; the first failure cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _has_answer(response: Response) -> bool:
    return any(
        isinstance(item, Message) and (item.text or item.content) and item.role == "assistant"
        for item in response.output
    )


@dataclass(slots=True)
class _Trajectory:
    """What has happened so far."""

    output: list[Item] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(input_tokens=0, output_tokens=0, total_tokens=0))
    steps: int = 0
    tool_calls: int = 0

    def add(self, response: Response) -> None:
        """One answer of the model, its reasoning with what follows it."""
        self.steps += 1
        self.output += response.output
        if response.usage is not None:
            self.usage += response.usage

    def answer(self, calls: Sequence[FunctionCall], answers: Sequence[str]) -> None:
        self.output += [
            FunctionCallOutput(call_id=call.call_id, output=text, status="completed")
            for call, text in zip(calls, answers, strict=True)
        ]

    def response(self, model: str, params: ResponsesParams, shown: list[dict[str, Any]], stop_reason: str) -> Response:
        cut_short = stop_reason in _CUT_SHORT
        told = {"stop_reason": stop_reason, "steps": str(self.steps), "tool_calls": str(self.tool_calls)}
        return Response.model_validate(
            {
                "id": f"resp_{uuid.uuid4().hex}",
                "object": "response",
                "created_at": time.time(),
                "model": model,
                "status": "incomplete" if cut_short else "completed",
                "incomplete_details": {"reason": stop_reason} if cut_short else None,
                "output": self.output,
                "usage": self.usage,
                "parallel_tool_calls": params.parallel_tool_calls is not False,
                "tool_choice": params.tool_choice or "auto",
                "tools": shown,
                "metadata": {**(params.metadata or {}), **told},
            }
        )
