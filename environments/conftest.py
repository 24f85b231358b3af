"""Fixtures for the tests of one environment: its modules, its rows, and an instance to play with in this process."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gymbox_sandbox import ResourcesServer, Response, Task, ToolError, Verdict


@dataclass
class Play:
    """One task on an instance of the environment's server; `output` is the trajectory so far."""

    instance: Any
    row: dict[str, Any]
    output: list[dict[str, Any]] = field(default_factory=list)

    async def call(self, name: str, **arguments: Any) -> Any:
        """What a tool returns; a ToolError comes back as its text."""
        try:
            result = await self.instance.call_tool(name, arguments)
        except ToolError as error:
            result = str(error)
        self.output.append({"type": "function_call", "call_id": "c", "name": name, "arguments": json.dumps(arguments)})
        self.output.append({"type": "function_call_output", "call_id": "c", "output": str(result)})
        return result

    def say(self, text: str) -> None:
        self.output.append(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        )

    async def gold(self) -> None:
        """Do what the row's gold replies do."""
        for item in [item for turn in self.row["gold_replies"] for item in turn]:
            if item["type"] == "function_call":
                await self.call(item["name"], **json.loads(item["arguments"]))
            else:
                self.output.append(item)

    async def reward(self) -> float:
        return (await self.verdict()).reward

    async def verdict(self) -> Verdict:
        response = Response.model_validate({"output": self.output})
        found = await self.instance.verify(Task.model_validate(self.row), response)
        return found if isinstance(found, Verdict) else Verdict(reward=float(found))


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path:
    """The environment whose tests run."""
    return request.path.parent.parent


@pytest.fixture
def server(folder: Path) -> ModuleType:
    return module_of(folder / "server.py")


@pytest.fixture
def generate(folder: Path) -> ModuleType:
    return module_of(folder / "generate.py")


@pytest.fixture
def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data" / "example.jsonl").read_bytes().splitlines()]


@pytest.fixture
def play(server: ModuleType) -> Callable[[dict[str, Any]], Awaitable[Play]]:
    """Begin a task: an instance that was reset for the given row."""
    [kind] = [
        kind
        for _, kind in inspect.getmembers(server, inspect.isclass)
        if issubclass(kind, ResourcesServer) and kind.__module__ == server.__name__
    ]

    async def begin(row: dict[str, Any]) -> Play:
        instance = kind()
        hidden = ("verifier_metadata", "gold_replies", "expected_count")
        await instance.reset(Task.model_validate({name: value for name, value in row.items() if name not in hidden}))
        return Play(instance, row)

    return begin


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
