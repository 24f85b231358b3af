"""Small honest parts for runs in memory: a counter as the sandbox, an agent that counts, a model that is not asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.agents import Agent, AgentModel, Tools
from gymbox.environment import Environment
from gymbox.errors import AtCapacity, ErrorKind, RolloutFailure
from gymbox.models import Call, Model
from gymbox_sandbox.responses import Message, Response, ResponsesParams, Usage
from gymbox_sandbox.tasks import Task, Verdict
from gymbox_sandbox.wire import ToolResult
from pydantic import PrivateAttr


@dataclass
class CounterSandbox:
    """Counts from the row's `initial_count`; right is the row's `expected_count`."""

    id: str
    count: int = 0
    unanswered: int = 0
    lead_models: None = None

    def models_unanswered(self) -> int:
        return self.unanswered

    @property
    def tools(self) -> Tools:
        return self

    @property
    def definitions(self) -> list[dict[str, Any]]:
        return [{"type": "function", "name": "increment", "parameters": {}}]

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        self.count += arguments["by"]
        return ToolResult(output=str(self.count))

    async def reset(self, task: dict[str, Any]) -> None:
        self.count = task["initial_count"]

    async def verify(self, task: dict[str, Any], response: Response) -> Verdict:
        return Verdict(reward=float(self.count == task["verifier_metadata"]["expected_count"]))


@dataclass
class MemoryController:
    """Hands out counters, and remembers which; the first `refusals` requests find no room."""

    refusals: int = 0
    made: list[str] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    most: int = 0

    @asynccontextmanager
    async def sandbox(self, environment: Environment, *, id: str | None = None) -> AsyncIterator[CounterSandbox]:
        assert id is not None
        self.made.append(id)
        if self.refusals:
            self.refusals -= 1
            raise AtCapacity("no room")
        self.live.add(id)
        self.most = max(self.most, len(self.live))
        try:
            yield CounterSandbox(id)
        finally:
            self.live.discard(id)


class CountingAgent(Agent):
    """Adds 1. A row's `crash` makes it raise, its `gate` makes it wait for that event."""

    gates: dict[str, Any] = {}

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        extra = task.model_extra or {}
        if "crash" in extra:
            raise RuntimeError(extra["crash"])
        if "gate" in extra:
            reached, gate = self.gates[extra["gate"]]
            reached.set()
            await gate.wait()
        await asyncio.sleep(0)
        await tools.call("increment", {"by": 1})
        done = Message(role="assistant", content="done\u2028\ud83d\ude00")
        return Response(output=[done], usage=Usage(input_tokens=3, output_tokens=2, total_tokens=5))


class FailingAgent(CountingAgent):
    """Takes turns in failing in these ways; None: it counts."""

    kinds: list[ErrorKind | None]
    _turns: int = PrivateAttr(0)

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        kind = self.kinds[self._turns % len(self.kinds)]
        self._turns += 1
        if kind is not None:
            raise RolloutFailure(kind, "no model")
        return await super().run(task, model, tools)


class SilentModel(Model):
    name: str = "silent"

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        raise AssertionError("nobody asks it")


def row(**fields: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": "add 1"},
        "initial_count": 1,
        "verifier_metadata": {"expected_count": 2},
        **fields,
    }


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., Environment]:
    """Make an environment with the given rows."""

    def make(*rows: dict[str, Any], name: str = "counter") -> Environment:
        folder = tmp_path / "environments" / name
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "x"}))
        (folder / "data" / "example.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Environment.load(folder)

    return make
