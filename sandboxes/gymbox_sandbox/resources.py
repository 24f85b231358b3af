"""ResourcesServer: what an environment author writes. One sandbox, one task, one instance: `self` is the session."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gymbox_sandbox.problems import ToolError
from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Task, Verdict
from gymbox_sandbox.tools import Tool
from gymbox_sandbox.wire import ExecRequest, ExecResult

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from fastapi import FastAPI

    from gymbox_sandbox.judge import Judge

_MARK = "__gymbox_tool__"


def tool[F: Callable[..., Any]](method: F) -> F:
    """Offer a method to the model.

    Its name, signature and docstring become the tool's name, schema and description (a Google-style ``Args:`` section
    describes the arguments). It may be sync or async; a sync one runs in a thread, one at a time. A string goes to the
    model as it is, anything else as JSON. Raise `ToolError` to tell the model what went wrong.
    """
    setattr(method, _MARK, True)
    return method


class Runs(Protocol):
    """What runs commands as the agent's user."""

    async def run(self, request: ExecRequest) -> ExecResult: ...


class ResourcesServer:
    """One task's state, its tools and its score. Subclass it; override `verify`, and what else you need.

    The server calls `reset` once, then tools in any order (async ones may overlap), then `verify` once. `workspace`
    and `exec` are there from `reset` on, not yet in `__init__`.
    """

    workspace: Path = Path("/workspace")
    """The agent's working directory; sandboxes with `sessions` > 1 share it among their tasks."""
    _runs: Runs | None = None
    _opens_judge: Callable[[], Judge] | None = None
    _tools: ClassVar[Mapping[str, Tool]] = {}

    async def reset(self, task: Task) -> None:
        """Prepare for `task`, which comes without what is hidden from the agent."""

    async def verify(self, task: Task, response: Response) -> float | bool | Verdict:
        """Score the task. `task` is whole now, `response` the agent's trajectory.

        By now no tool or route of yours runs or can be called any more (a sync one was waited for, within the time
        that verify may take) and all processes of the agent are dead. What raises here, or is no
        finite number, becomes an error of the rollout, never a reward.

        Raises:
            NotImplementedError: the environment's class has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no verify")

    async def snapshot(self) -> Any:
        """What this instance knows of its task, as JSON's own types; override it together with `restore`.

        It is asked for when the sandbox is saved after `reset`, and is kept beside its files. No tool runs then, and
        the processes of the agent stand still. Processes are not saved: `restore` starts again what must run. An
        environment without these two can be saved before `reset`, or without what its instance knows.

        Raises:
            NotImplementedError: the environment's class has none, which the server finds out before it asks.
        """
        raise NotImplementedError(f"{type(self).__name__} has no snapshot")

    async def restore(self, task: Task, state: Any) -> None:
        """Be again what `snapshot` told; called in another sandbox instead of `reset`, when the files are in place.

        Raises:
            NotImplementedError: the environment's class has none, which the server finds out before it asks.
        """
        raise NotImplementedError(f"{type(self).__name__} has no restore")

    def tool_definitions(self) -> list[dict[str, Any]]:
        """What the model is offered, asked for after `reset`; override it where that depends on the task."""
        return [found.definition for found in tools_of(type(self)).values()]

    async def call_tool(self, name: str, arguments: Any) -> Any:
        """Run one tool; override it to answer names that are no methods.

        Raises:
            ToolError: there is no such tool, the arguments are wrong, or the tool says so.
        """
        known = tools_of(type(self))
        if name not in known:
            raise ToolError(f"There is no tool {name!r}. Tools: {', '.join(known) or 'none'}.")
        return await self._finish(known[name].function, self, **known[name].validate(arguments))

    async def exec(
        self,
        command: str | list[str] | ExecRequest,
        *,
        stdin: bytes | str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        output_limit: int = 1_000_000,
    ) -> ExecResult:
        """Run a command as the agent's user and return how it ended and what it printed; it never raises for that.

        Args:
            command: a list is run as it is; a string by the shell; an ExecRequest says everything itself.
            cwd: default is the workspace.
            timeout: seconds; then the whole process tree is killed and the result says `timed_out`.
            output_limit: bytes kept of each of stdout and stderr.

        Raises:
            RuntimeError: this sandbox serves several tasks (`sessions` > 1), so there is no user for each one's
                commands; or it is called before `reset`.
        """
        if self._runs is None:
            raise RuntimeError("exec needs a sandbox of its own (sessions: 1), and works from reset on")
        if isinstance(command, ExecRequest):
            return await self._runs.run(command)
        from base64 import b64encode

        data = stdin.encode() if isinstance(stdin, str) else stdin
        return await self._runs.run(
            ExecRequest(
                command=command,
                stdin=None if data is None else b64encode(data).decode(),
                cwd=cwd,
                env=dict(env or {}),
                timeout=timeout,
                output_limit=output_limit,
            )
        )

    @cached_property
    def judge(self) -> Judge:
        """A model for an async `verify` to ask, where environment.yaml says `judge: true`; see `gymbox_sandbox.judge`.

        Raises:
            RuntimeError: verify has not begun: a judge is for scoring alone, and no tool can reach it.
        """
        if self._opens_judge is None:
            raise RuntimeError("the judge is for verify alone, and only while it runs")
        return self._opens_judge()

    def setup_webserver(self) -> FastAPI:
        """The FastAPI app for routes of your own, beside the server's; override it and add them.

        As tools they are the agent's to call, and refused once verify begins. Only with `sessions: 1`. FastAPI is
        imported only for servers that override this.
        """
        from fastapi import FastAPI

        return FastAPI(title=type(self).__name__, docs_url=None, redoc_url=None, openapi_url=None)

    async def _finish(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The result of a function; a sync one runs in this instance's one thread, so two never overlap."""
        if iscoroutinefunction(function):
            return await function(*args, **kwargs)
        return await get_running_loop().run_in_executor(self._thread, partial(function, *args, **kwargs))

    async def _no_thread_works(self) -> None:
        """Return when no sync function runs any more: one whose caller was cancelled still does."""
        if "_thread" in vars(self):
            await get_running_loop().run_in_executor(self._thread, int)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="environment")


def can_be_restored(server: type[ResourcesServer]) -> bool:
    """Whether its author has written both `snapshot` and `restore`, and neither as a tool."""
    return all(
        getattr(server, name) is not getattr(ResourcesServer, name)
        and not getattr(getattr(server, name), _MARK, False)
        for name in ("snapshot", "restore")
    )


def tools_of(server: type[ResourcesServer]) -> Mapping[str, Tool]:
    """The tools of a class by name, inherited ones included; what overrides one must be marked too.

    Raises:
        TypeError: a tool's signature cannot be described.
    """
    if "_tools" not in vars(server):
        methods: dict[str, Any] = {}
        for base in reversed(server.__mro__):
            methods.update(vars(base))
        server._tools = {name: Tool(name, method) for name, method in methods.items() if getattr(method, _MARK, False)}
    return server._tools
