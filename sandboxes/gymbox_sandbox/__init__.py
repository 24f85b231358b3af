"""gymbox_sandbox: what runs inside a sandbox, and what an environment author imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymbox_sandbox.judge import JudgeFailed, quoted
    from gymbox_sandbox.problems import ToolError
    from gymbox_sandbox.resources import ResourcesServer, tool
    from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Message, Response, ResponsesParams
    from gymbox_sandbox.tasks import Task, Verdict
    from gymbox_sandbox.wire import ExecResult

__version__ = "0.1.0"

_HOMES = {
    "ExecResult": "wire",
    "FunctionCall": "responses",
    "FunctionCallOutput": "responses",
    "JudgeFailed": "judge",
    "Message": "responses",
    "ResourcesServer": "resources",
    "Response": "responses",
    "ResponsesParams": "responses",
    "Task": "tasks",
    "ToolError": "problems",
    "Verdict": "tasks",
    "quoted": "judge",
    "tool": "resources",
}

__all__ = [
    "ExecResult",
    "FunctionCall",
    "FunctionCallOutput",
    "JudgeFailed",
    "Message",
    "ResourcesServer",
    "Response",
    "ResponsesParams",
    "Task",
    "ToolError",
    "Verdict",
    "quoted",
    "tool",
]


def __getattr__(name: str) -> Any:
    # lazy: the supervisor inside each sandbox imports this package and must stay small
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
