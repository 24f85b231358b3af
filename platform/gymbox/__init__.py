"""gymbox: evaluate and improve LLM agents with environments in which every task gets a container of its own.

`run` and `run_sync` start a run from Python: docs/python-api.md; `Sandbox` and `SyncSandbox` are sandboxes without a
run: docs/sandboxes.md. What they need is imported when it is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymbox.agents import Agent as Agent
    from gymbox.agents.single_turn import SingleTurn as SingleTurn
    from gymbox.agents.tool_loop import ToolLoop as ToolLoop
    from gymbox.budget import Budget as Budget
    from gymbox.environment import Environment as Environment
    from gymbox.errors import ConfigError as ConfigError
    from gymbox.errors import ErrorKind as ErrorKind
    from gymbox.errors import RolloutError as RolloutError
    from gymbox.models import Model as Model
    from gymbox.models.anthropic import AnthropicModel as AnthropicModel
    from gymbox.models.chat import ChatModel as ChatModel
    from gymbox.models.openai import OpenAIModel as OpenAIModel
    from gymbox.models.scripted import ScriptedModel as ScriptedModel
    from gymbox.providers.docker import DockerProvider as DockerProvider
    from gymbox.providers.process import ProcessProvider as ProcessProvider
    from gymbox.runner import Summary as Summary
    from gymbox.runs.async_run import Run as Run
    from gymbox.runs.delivery import Result as Result
    from gymbox.runs.entry import run as run
    from gymbox.runs.entry import run_sync as run_sync
    from gymbox.runs.sync_run import SyncRun as SyncRun
    from gymbox.sdk.sandbox import Sandbox as Sandbox
    from gymbox.sdk.sync_sandbox import SyncSandbox as SyncSandbox

__version__ = "0.1.0"

_PLACES = {
    "Agent": "agents",
    "AnthropicModel": "models.anthropic",
    "Budget": "budget",
    "ChatModel": "models.chat",
    "ConfigError": "errors",
    "DockerProvider": "providers.docker",
    "Environment": "environment",
    "ErrorKind": "errors",
    "Model": "models",
    "OpenAIModel": "models.openai",
    "ProcessProvider": "providers.process",
    "Result": "runs.delivery",
    "RolloutError": "errors",
    "Run": "runs.async_run",
    "Sandbox": "sdk.sandbox",
    "ScriptedModel": "models.scripted",
    "SingleTurn": "agents.single_turn",
    "Summary": "runner",
    "SyncRun": "runs.sync_run",
    "SyncSandbox": "sdk.sync_sandbox",
    "ToolLoop": "agents.tool_loop",
    "run": "runs.entry",
    "run_sync": "runs.entry",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'gymbox' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"gymbox.{_PLACES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
