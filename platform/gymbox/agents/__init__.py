"""Agents: the harness that turns a task, a model and tools into a trajectory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self

from gymbox_sandbox.responses import Response, ResponsesParams
from gymbox_sandbox.tasks import Task
from gymbox_sandbox.wire import ToolResult
from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, PlainSerializer, model_validator

from gymbox.agents.skills import Skills
from gymbox.errors import ConfigError

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


def _read(value: Any) -> Any:
    """A folder's skills, where a folder is given."""
    try:
        return Skills.load(Path(value)) if isinstance(value, str | Path) else value
    except ConfigError as error:
        raise ValueError(str(error)) from error


class Agent(BaseModel, ABC):
    """An agent is its own configuration: a frozen pydantic class named by `_target_`, with the behaviour.

    One that hands skills to its model sets `takes_skills` and does so in `run`: by `SkilledTools`, or as files, with
    `self.skills.write_to(folder)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    takes_skills: ClassVar[bool] = False

    skills: Annotated[
        InstanceOf[Skills] | None, BeforeValidator(_read), PlainSerializer(lambda skills: skills and skills.ref)
    ] = None
    """Folder of skills (each a folder with a `SKILL.md`), for agents that take them."""

    @model_validator(mode="after")
    def _takes_them(self) -> Self:
        if self.skills is not None and not self.takes_skills:
            raise ValueError(
                f"{type(self).__name__} takes no skills; leave `skills` out, or choose an agent that does, such as "
                "tool_loop"
            )
        return self

    @abstractmethod
    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        """Do the task; the Response's `output` is the whole trajectory in order, `usage` the sum over all calls.

        `task` has no `verifier_metadata` and none of the hidden fields.

        Raises:
            ModelFailure: the model gave no usable answer.
            Problem: the sandbox has ended.
        """
