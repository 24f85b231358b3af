"""Agents: the harness that turns a task, a model and tools into a trajectory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from gymbox_sandbox.responses import Response, ResponsesParams
from gymbox_sandbox.tasks import Task
from gymbox_sandbox.wire import ToolResult
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from gymbox.models.rollout_endpoints import RolloutEndpoint


class AgentModel(Protocol):
    """What an agent needs of a model."""

    @property
    def name(self) -> str: ...

    async def responses(self, params: ResponsesParams) -> Response: ...

    async def endpoint(self) -> RolloutEndpoint:
        """Where clients of SDKs and frameworks reach the model, as long as the rollout runs."""


class Tools(Protocol):
    """The tools of one sandbox; nothing else of it is in an agent's reach."""

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """Function-tool definitions of the Responses API."""

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a tool; what fails inside it comes back as a result with `is_error`.

        Raises:
            Problem: the sandbox could not be reached, or has ended.
        """


class Agent(BaseModel, ABC):
    """An agent is its own configuration: a frozen pydantic class named by `_target_`, with the behaviour."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @abstractmethod
    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        """Do the task; the Response's `output` is the whole trajectory in order, `usage` the sum over all calls.

        `task` has no `verifier_metadata` and none of the hidden fields.

        Raises:
            ModelFailure: the model gave no usable answer.
            Problem: the sandbox has ended.
        """
