"""Fixtures for the tests of one environment: its server, its generator, its rows, and a task to play."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.supervisor import agent_environment, attach, start_engine
from gymbox_sandbox.trial import Trial


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path:
    """The environment whose tests run."""
    return request.path.parent.parent


@pytest.fixture
def generate(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{folder.name}_generate", folder / "generate.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data" / "example.jsonl").read_bytes().splitlines()]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """What `exec` goes to: real processes in a workspace of their own, as this user."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with start_engine() as engine:
        yield Commands(attach(engine), str(workspace), agent_environment(str(workspace)))


@pytest.fixture
def play(folder: Path, commands: Commands) -> Callable[[dict[str, Any]], Awaitable[Trial]]:
    """Begin a task in this process: a server that was reset for the given row."""
    hidden = yaml.safe_load((folder / "environment.yaml").read_text()).get("hidden_fields", [])

    async def begin(row: dict[str, Any]) -> Trial:
        return await Trial.begin(folder / "server.py", row, hidden=hidden, commands=commands)

    return begin
