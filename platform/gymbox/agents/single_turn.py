"""Single turn: the smallest agent, and the pattern for your own.

An agent is a frozen pydantic class with `run`. Its fields are its configuration (`agent=mine agent.field=…`); a YAML
in `conf/agent/` names the class as `_target_`. It gets the task without anything hidden, a model bound to this rollout
and the sandbox's tools, and returns the trajectory as one Response. It keeps no state between runs: many run at once.
"""

from __future__ import annotations

from typing import Any

from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Task

from gymbox.agents import Agent, AgentModel, Tools


class SingleTurn(Agent):
    """Asks the model once and runs no tool: for tasks whose verdict is on the answer, or on the calls themselves."""

    instructions: str | None = None
    """System prompt for rows that bring no `instructions` of their own."""

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        params = task.responses_create_params
        update: dict[str, Any] = {"input": params.items}
        if not params.tools and tools.definitions:
            update["tools"] = tools.definitions
        if self.instructions is not None and params.instructions is None:
            update["instructions"] = self.instructions
        return await model.responses(params.model_copy(update=update))
