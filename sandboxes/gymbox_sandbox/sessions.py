"""Sessions: one task's instance each, and the order of its life: reset, tools, verify."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from gymbox_sandbox.bodies import MOST_OF_A_TOOL, limited
from gymbox_sandbox.options import Options
from gymbox_sandbox.problems import AtCapacity, Conflict, Internal, Invalid, Problem, TimedOut, ToolError, faults
from gymbox_sandbox.resources import ResourcesServer, Runs, can_be_restored
from gymbox_sandbox.tasks import LARGEST, Task, Verdict
from gymbox_sandbox.tools import result_text
from gymbox_sandbox.wire import ResetAnswer, ToolResult, VerifyRequest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gymbox_sandbox.judge import Judge, Line
    from gymbox_sandbox.saved import Instance

log = logging.getLogger(__name__)
LOG_LINES = 30
"""Of a traceback, in a problem's `log`."""


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
            AtCapacity: the sandbox has as many as it may have.
        """
        if name not in self._sessions:
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

    def close(self, name: str) -> None:
        """Forget the session and its instance; what is no session is fine."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.stop_tools()


class Session:
    """One instance, and what has become of its task so far."""

    def __init__(self, instance: ResourcesServer, options: Options, commands: AgentCommands) -> None:
        self.instance = instance
        self._options = options
        self._commands = commands
        self._task: dict[str, Any] | None = None
        self._answer: ResetAnswer | None = None
        self.reset_at: float | None = None
        """When its reset was through, on the monotonic clock."""
        self._tools_closed = False
        self._calls: dict[asyncio.Future[Any], Callable[[], object]] = {}
        """What is called by the agent now, and how to stop it."""
        self._verdict: asyncio.Task[Verdict] | None = None
        self._judge: Judge | None = None
        self._line: Line | None = None
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
                async with _deadline(self._options.reset_timeout, "reset"), _failing_as("reset_failed", "reset"):
                    await self.instance._finish(self.instance.reset, parsed)
                    self._answer = ResetAnswer(tools=self.instance.tool_definitions())
                self.reset_at = time.monotonic()
                self._task = task
            elif self._task != task:
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
    async def saving(self, *, files_only: bool) -> AsyncIterator[Instance | None]:
        """What it takes to make this instance again; within the block no tool is called, nor reset or verify.

        Raises:
            Conflict: a tool runs, verify has begun, or the instance cannot be saved.
            Internal: the author's `snapshot` raised, or gave what JSON cannot hold.
            TimedOut: it took longer than a tool may.
        """
        async with self._lock:
            if self._tools_closed:
                raise Conflict("verify has begun: what it has seen must not get into a snapshot")
            if self._calls:
                raise Conflict("a tool is running: ask again when it has answered", cause="busy")
            self._may_call.clear()
            try:
                yield None if files_only or self._task is None else await self._told(self._task)
            finally:
                self._may_call.set()

    async def _told(self, task: dict[str, Any]) -> Instance:
        from gymbox_sandbox.saved import Instance  # which few sandboxes need

        name = type(self.instance).__name__
        if not can_be_restored(type(self.instance)):
            raise Conflict(
                f"{name} has no snapshot() and restore(), so what it knows of its task would be lost: write both, "
                "save before reset, or keep the files alone (files_only), with which a new reset begins",
                cause="no_hooks",
            )
        async with _deadline(self._options.tool_timeout, "snapshot"), _failing_as("internal", "snapshot"):
            await self.instance._no_thread_works()
            state = await self.instance._finish(self.instance.snapshot)
            return Instance(task=task, state=json.loads(json.dumps(state, allow_nan=False)))

    async def restore(self, instance: Instance) -> None:
        """Be what was saved, as if reset for its task; the files are in place already.

        Raises:
            Conflict: it was reset, or cannot be restored.
            Internal: the author's `restore` raised.
            TimedOut: it took longer than `reset` may.
        """
        async with self._lock:
            if self._answer is not None:
                raise Conflict("this session was reset: nothing can be restored into it")
            async with _deadline(self._options.reset_timeout, "restore"), _failing_as("reset_failed", "restore"):
                await self.instance._finish(self.instance.restore, task_of(instance.task), instance.state)
                self._answer = ResetAnswer(tools=self.instance.tool_definitions())
            self._task = instance.task

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
            async with asyncio.timeout(seconds) as deadline:
                return ToolResult(output=result_text(await self.instance.call_tool(name, arguments)))
        except ToolError as error:
            return ToolResult(output=str(error), is_error=True)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                return ToolResult(output=f"{name} did not finish within {seconds:g} s.", is_error=True)
            log.warning("tool %s raised", name, exc_info=True)
            return ToolResult(output=f"{name} failed: {type(error).__name__}: {error}", is_error=True)

    def stop_tools(self) -> None:
        """Refuse further tool calls and cancel the ones that run."""
        self._tools_closed = True
        for stop in self._calls.values():
            stop()

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
            if self._verdict is None:
                begun = asyncio.get_running_loop().time()
                self.stop_tools()
                async with _deadline(self._options.verify_timeout, "ending the tools", begun):
                    if self._calls:
                        await asyncio.wait(self._calls)
                    await self.instance._no_thread_works()
                if self._options.max_sessions == 1:  # else the agent has no processes, see ResourcesServer.exec
                    await self._commands.kill_all()
                if can_ask:
                    self._open_line().attend()
                self._verdict = asyncio.create_task(self._score(await read(), begun))
        if can_ask and (questions := await self._until_asked(self._verdict)):
            return questions
        # shielded: a caller that hangs up must not end what the next one will ask for
        return await asyncio.shield(self._verdict)

    async def answer_judge(self, answers: bytes | bytearray) -> Verdict | list[dict[str, Any]]:
        """As `verify`, once it has what it asked; see `judge.Line`.

        Raises:
            Conflict: verify has not begun.
            Invalid: these are no answers.
        """
        if self._verdict is None:
            raise Conflict("verify has not begun: there is nothing to answer")
        self._open_line().take(answers)
        if questions := await self._until_asked(self._verdict):
            return questions
        return await asyncio.shield(self._verdict)

    async def _until_asked(self, verdict: asyncio.Task[Verdict]) -> list[dict[str, Any]]:
        return await self._open_line().until_asked(verdict)

    def _open_line(self) -> Line:
        from gymbox_sandbox.judge import Line  # which few sandboxes need

        self._line = self._line or Line()
        return self._line

    def _open_judge(self) -> Judge:
        from gymbox_sandbox.judge import Judge

        self._judge = self._judge or Judge(self._open_line())
        return self._judge

    async def _score(self, request: VerifyRequest, begun: float) -> Verdict:
        task = task_of(request.task)
        self.instance._opens_judge = self._open_judge
        try:
            async with _deadline(self._options.verify_timeout, "verify", begun):
                async with _failing_as("verify_failed", "verify"):
                    found = verdict_of(await self.instance._finish(self.instance.verify, task, request.response))
        except Exception as error:
            failure = self._failure_of_judge(error)
            if failure is None or failure is error:
                raise
            raise failure from error
        finally:
            self.instance._opens_judge = None
        if self._judge is None:
            return found
        if failure := self._failure_of_judge(None):
            raise failure  # caught by verify, which cannot know what the answer would have been
        return found.model_copy(update={"metrics": {**self._judge.metrics(), **found.metrics}})

    def _failure_of_judge(self, error: Exception | None) -> Problem | None:
        """What the judge has to do with how verify ended: it failed, or was still being waited for."""
        if self._judge is None:
            return None
        if self._judge.failed is None and isinstance(error, TimedOut):
            from gymbox_sandbox.judge import JudgeFailed

            return JudgeFailed(f"{error.detail}, and waited for its judge") if self._judge.interrupted else None
        return self._judge.failed


def task_of(row: dict[str, Any]) -> Task:
    """
    Raises:
        Invalid: the row is no task.
    """
    try:
        return Task.model_validate(row)
    except ValidationError as error:
        raise Invalid(f"the task is wrong: {faults(error)}", rollout_kind="invalid_task") from error


def verdict_of(found: Any) -> Verdict:
    """The verdict that `verify` means.

    Raises:
        Internal: it is no finite number, nor a Verdict (`rollout_kind` is bad_verdict).
    """
    if isinstance(found, Verdict):
        return found
    try:
        reward = float(found) if hasattr(type(found), "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not abs(reward) <= LARGEST:
        raise Internal(
            f"verify gave {found!r:.200}, which is no finite number (of at most {LARGEST:g})",
            rollout_kind="bad_verdict",
        )
    return Verdict(reward=reward)


@asynccontextmanager
async def _deadline(seconds: float, name: str, begun: float | None = None) -> AsyncIterator[None]:
    """`begun` is when the seconds began, on the loop's clock; None for now."""
    begun = asyncio.get_running_loop().time() if begun is None else begun
    try:
        async with asyncio.timeout_at(begun + seconds) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise TimedOut(f"{name} did not finish within {seconds:g} s", rollout_kind="timed_out") from error


@asynccontextmanager
async def _failing_as(kind: str, name: str) -> AsyncIterator[None]:
    """Turn what the author's code raises into a problem that says what and where."""
    try:
        yield
    except Problem as problem:
        problem.extra.setdefault("rollout_kind", kind)  # its own kind alone would say that the sandbox failed
        raise
    except Exception as error:
        log.warning("%s raised", name, exc_info=True)
        # a Verdict that was given a NaN is refused while it is made, inside verify
        if isinstance(error, ValidationError) and error.title == Verdict.__name__:
            kind = "bad_verdict"
        elif isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
            kind = "disk_full"
        lines = "".join(traceback.format_exception(error)).splitlines()[-LOG_LINES:]
        raise Internal(
            f"{name} raised {type(error).__name__}: {error}", rollout_kind=kind, log="\n".join(lines)
        ) from error
