"""Sessions: one task's instance each, and the order of its life: reset, tools, verify."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gymbox_sandbox.author import deadline, failing_as, task_of
from gymbox_sandbox.bodies import MOST_OF_A_TOOL, limited
from gymbox_sandbox.once import Forgotten
from gymbox_sandbox.options import Options
from gymbox_sandbox.problems import AtCapacity, Conflict, Gone, ToolError
from gymbox_sandbox.resources import ResourcesServer, Runs
from gymbox_sandbox.scoring import Scoring
from gymbox_sandbox.tasks import Verdict
from gymbox_sandbox.tools import result_text
from gymbox_sandbox.wire import ResetAnswer, ToolResult, VerifyRequest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)


LATE = 300.0
"""Seconds for which a request of a session that has ended may still be on its way."""


class AgentCommands(Runs, Protocol):
    """What a session needs of the agent's commands."""

    async def kill_all(self) -> None: ...

    async def archive(self, arguments: Sequence[str], file: int, *, timeout: float) -> bytes: ...


class Sessions:
    """The sessions of one sandbox, by name; a session begins with its `reset`."""

    def __init__(self, server: type[ResourcesServer], options: Options, commands: AgentCommands) -> None:
        self._server = server
        self._options = options
        self._commands = commands
        self._sessions: dict[str, Session] = {}
        self._closed = Forgotten()
        self._ended: dict[str, float] = {}
        """When those were closed whose names may be used again."""

    def names(self) -> list[str]:
        """Of the sessions alive, sorted."""
        return sorted(self._sessions)

    def resets(self) -> dict[str, float]:
        """Seconds since its reset, of each session that has had it."""
        now = time.monotonic()
        return {name: now - one.reset_at for name, one in self._sessions.items() if one.reset_at is not None}

    def tool_definitions(self, name: str) -> list[dict[str, Any]]:
        """The tools of session `name`; before its reset, those that do not depend on the task."""
        session = self._sessions.get(name)
        return (session.instance if session else self._server()).tool_definitions()

    def open(self, name: str) -> Session:
        """The session `name`, made if it is new.

        Raises:
            Gone: it was closed; a reset that comes too late does not bring it back.
            AtCapacity: the sandbox has as many as it may have.
        """
        if name not in self._sessions:
            if name in self._closed or time.monotonic() - self._ended.get(name, -LATE) < LATE:
                raise Gone("this session has ended")
            if len(self._sessions) >= self._options.max_sessions:
                raise AtCapacity(f"this sandbox serves at most {self._options.max_sessions} session(s)", retry_after=1)
            self._sessions[name] = Session(self._server(), self._options, self._commands)
        return self._sessions[name]

    def __getitem__(self, name: str) -> Session:
        """
        Raises:
            Conflict: it was never reset.
        """
        if name not in self._sessions:
            raise Conflict("there was no reset yet: POST /reset comes first")
        return self._sessions[name]

    def get(self, name: str) -> Session | None:
        """The session `name`, if there is one."""
        return self._sessions.get(name)

    def close(self, name: str, *, by_itself: bool = False) -> None:
        """Forget the session and its instance; what is no session is fine. A reset that is on its way does not bring
        it back.

        Args:
            by_itself: who may call for it alone asked for that, so that there is never another of its name; else, by
                then, a new sandbox may have it.
        """
        now = time.monotonic()
        if by_itself:
            self._closed.add(name)
        self._ended.pop(name, None)
        self._ended[name] = now  # the last of them: so the first are the oldest
        while now - self._ended[oldest := next(iter(self._ended))] >= LATE:
            del self._ended[oldest]
        session = self._sessions.pop(name, None)
        if session is not None:
            session.stop_tools()


class Session:
    """One instance, and what has become of its task so far."""

    def __init__(self, instance: ResourcesServer, options: Options, commands: AgentCommands) -> None:
        self.instance = instance
        self._options = options
        self._commands = commands
        self.task: dict[str, Any] | None = None
        """As its reset got it."""
        self._answer: ResetAnswer | None = None
        self.reset_at: float | None = None
        """When its reset was through, on the monotonic clock."""
        self._tools_closed = False
        self._calls: dict[asyncio.Future[Any], Callable[[], object]] = {}
        """What is called by the agent now, and how to stop it."""
        self._scoring = Scoring(instance, options.verify_timeout)
        self._lock = asyncio.Lock()
        self._may_call = asyncio.Event()
        """Not set while it is being saved."""
        self._may_call.set()
        instance.workspace = Path(options.workspace)
        if options.max_sessions == 1:
            instance._runs = commands

    async def reset(self, task: dict[str, Any]) -> ResetAnswer:
        """Prepare the instance; a repeat with the same task gets the same answer, so a lost answer can be asked again.

        Raises:
            Conflict: it was reset for another task: a sandbox serves one.
            Invalid: the task is not one.
            Internal: `reset` raised (`rollout_kind` is reset_failed).
            TimedOut: it took longer than it may.
        """
        async with self._lock:
            if self._answer is None:
                parsed = task_of(task)
                async with deadline(self._options.reset_timeout, "reset"), failing_as("reset_failed", "reset"):
                    await self.instance._finish(self.instance.reset, parsed)
                    self._answer = ResetAnswer(tools=self.instance.tool_definitions())
                self.reset_at = time.monotonic()
                self.task = task
            elif self.task != task:
                raise Conflict("this session was reset for another task; one sandbox serves one task")
            return self._answer

    async def call_tool(self, name: str, arguments: bytes | bytearray) -> ToolResult:
        """What the model gets to read; a failing tool is a result too.

        Raises:
            Conflict: verify has begun, or there was no reset.
        """
        if self._answer is None:
            raise Conflict("there was no reset yet: POST /reset comes first")
        await self._may_call.wait()
        self._refuse_if_closed()
        call = asyncio.create_task(self._tool_result(name, arguments))
        self._calls[call] = call.cancel
        call.add_done_callback(self._calls.pop)
        try:
            return await call
        except asyncio.CancelledError:
            if self._tools_closed:
                raise Conflict("verify has begun: the tool was stopped") from None
            call.cancel()
            raise

    async def answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the author's own routes answer a request, which is a call of the agent as much as a tool's is.

        Raises:
            Conflict: verify has begun.
        """
        from anyio import CancelScope  # which few sandboxes need

        await self._may_call.wait()
        self._refuse_if_closed()
        call = asyncio.get_running_loop().create_future()
        # a scope and not a task to cancel: it is left only when the thread of a sync route has ended
        with CancelScope() as answering:
            self._calls[call] = answering.cancel
            try:
                await app(scope, limited(receive, MOST_OF_A_TOOL), send)
            finally:
                del self._calls[call]
                call.set_result(None)
        if answering.cancelled_caught and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1001, "reason": "verify has begun"})
        elif answering.cancelled_caught:
            raise Conflict("verify has begun: the route was stopped")

    @property
    def was_reset(self) -> bool:
        return self._answer is not None

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Within the block no tool is called, nor reset or verify, so that it can be saved.

        Raises:
            Conflict: a tool runs, or verify has begun.
        """
        async with self._lock:
            if self._tools_closed:
                raise Conflict("verify has begun: what it has seen must not get into a snapshot")
            if self._calls:
                raise Conflict("a tool is running: ask again when it has answered", cause="busy")
            self._may_call.clear()
            try:
                yield
            finally:
                self._may_call.set()

    async def restore(self, task: dict[str, Any], state: Any) -> None:
        """Be what was saved, as if reset for that task; the files are in place already.

        Args:
            state: what the instance's `snapshot` told.

        Raises:
            Conflict: it was reset, or cannot be restored.
            Internal: the author's `restore` raised.
            TimedOut: it took longer than `reset` may.
        """
        async with self._lock:
            if self._answer is not None:
                raise Conflict("this session was reset: nothing can be restored into it")
            async with deadline(self._options.reset_timeout, "restore"), failing_as("reset_failed", "restore"):
                await self.instance._finish(self.instance.restore, task_of(task), state)
                self._answer = ResetAnswer(tools=self.instance.tool_definitions())
            self.task = task

    def _refuse_if_closed(self) -> None:
        if self._tools_closed:
            raise Conflict("verify has begun: nothing can be called any more")

    async def _tool_result(self, name: str, body: bytes | bytearray) -> ToolResult:
        seconds = self._options.tool_timeout
        try:
            arguments = json.loads(body or b"{}")
        except ValueError as error:
            return ToolResult(output=f"The arguments of {name} are not JSON: {error}", is_error=True)
        try:
            async with asyncio.timeout(seconds) as limit:
                return ToolResult(output=result_text(await self.instance.call_tool(name, arguments)))
        except ToolError as error:
            return ToolResult(output=str(error), is_error=True)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return ToolResult(output=f"{name} did not finish within {seconds:g} s.", is_error=True)
            log.warning("tool %s raised", name, exc_info=True)
            return ToolResult(output=f"{name} failed: {type(error).__name__}: {error}", is_error=True)

    def stop_tools(self) -> None:
        """Refuse further tool calls and cancel the ones that run."""
        self._tools_closed = True
        for stop in self._calls.values():
            stop()

    async def finish(self) -> None:
        """Close the tools and end what the agent has running, so that nothing of it touches what it leaves; a second
        time is fine.

        Raises:
            Conflict: there was no reset.
            TimedOut: that took longer than it may.
        """
        if self._answer is None:
            raise Conflict("there was no reset yet: POST /reset comes first")
        async with self._lock:
            await self._end_agent(asyncio.get_running_loop().time())

    async def _end_agent(self, begun: float) -> None:
        self.stop_tools()
        async with deadline(self._options.verify_timeout, "ending the tools", begun):
            if self._calls:
                await asyncio.wait(self._calls)
            await self.instance._no_thread_works()
        if self._options.max_sessions == 1:  # else the agent has no processes, see ResourcesServer.exec
            await self._commands.kill_all()

    async def verify(
        self, read: Callable[[], Awaitable[VerifyRequest]], *, can_ask: bool = False
    ) -> Verdict | list[dict[str, Any]]:
        """The verdict; a second call gets the stored one, or the stored failure. Or, to a caller that `can_ask` a
        judge, the questions for it that have no answer yet.

        `read` is called, and hidden data with it comes into this process, only when no tool runs and no process of
        the agent is left.

        Raises:
            Conflict: there was no reset.
            Internal: `verify` raised (`rollout_kind` is verify_failed) or gave no finite number (bad_verdict).
            TimedOut: it, or ending the tools, took longer than it may.
        """
        if self._answer is None:
            raise Conflict("there was no reset yet: POST /reset comes first")
        async with self._lock:
            if not self._scoring.has_begun:
                begun = asyncio.get_running_loop().time()
                await self._end_agent(begun)
                if can_ask:
                    self._scoring.attend()
                self._scoring.begin(await read(), begun)
        return await self._scoring.outcome(can_ask=can_ask)

    async def answer_judge(self, answers: bytes | bytearray) -> Verdict | list[dict[str, Any]]:
        """As `verify`, once it has what it asked; see `judge.Line`.

        Raises:
            Conflict: verify has not begun.
            Invalid: these are no answers.
        """
        return await self._scoring.answered(answers)
