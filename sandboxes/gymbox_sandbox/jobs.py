"""Jobs: commands in the background, which outlive the request that started them.

What a job prints is read as it comes, and the last of it kept, so a job waits for nobody and whoever follows it can
leave and come again. A job on a terminal is a terminal to which one can attach again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from gymbox_sandbox.background import JobOutput, JobRequest, JobView
from gymbox_sandbox.command import Dropped, Output, Started
from gymbox_sandbox.once import Forgotten
from gymbox_sandbox.output_log import Kept, OutputLog
from gymbox_sandbox.problems import AtCapacity, Conflict, Gone, Internal, Invalid, NotFound, Problem
from gymbox_sandbox.wire import ExecResult

if TYPE_CHECKING:
    from gymbox_sandbox.commands import Commands

MOST_JOBS = 32
MOST_KEPT = 32_000_000
"""Bytes that all jobs together may keep of their output."""


class Job:
    """One command in the background."""

    def __init__(self, id: str, request: JobRequest, commands: Commands) -> None:
        self.id = id
        self.request = request
        self.log = OutputLog(request.output_limit)
        self.result: ExecResult | None = None
        self.problem: Problem | None = None
        self.started: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
        self._started_at = time.time()
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(commands))

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def view(self) -> JobView:
        """What is known about it now, once it has started."""
        return JobView(
            id=self.id,
            command=self.request.command,
            pid=self.started.result().pid,
            status="ended" if self.has_ended else "running",
            started_at=self._started_at,
            terminal=self.request.pty is not None,
            output_bytes=self.log.end,
            dropped_bytes=self.log.begin,
            result=self.result,
            problem=self.problem.to_wire() if self.problem else None,
        )

    async def wait(self, seconds: float) -> None:
        """Return when it has ended, or after so long."""
        await asyncio.wait({self._task}, timeout=seconds)

    async def kill(self) -> None:
        """Kill it with its whole tree, if it still runs."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    def output(self, offset: int, encoding: str) -> JobOutput:
        """What it printed from `offset` on, as far as it is kept."""
        start, pieces = self.log.since(offset)
        kept = {"stdout": Kept(self.log.end), "stderr": Kept(self.log.end)}
        for stream, data in pieces:
            kept[stream].add(data)
        return JobOutput(
            offset=start,
            next_offset=self.log.end,
            dropped_bytes=max(0, start - offset),
            stdout=kept["stdout"].read(encoding),
            stderr=kept["stderr"].read(encoding),
            ended=self.has_ended,
        )

    async def follow(self, offset: int) -> AsyncGenerator[Started | Dropped | Output | ExecResult]:
        """All that it printed from `offset` on and prints until it ends, and how it ended.

        Raises:
            Problem: it could not be followed to its end.
        """
        yield self.started.result()
        while True:
            changed, ended = self._changed, self.has_ended
            start, pieces = self.log.since(offset)
            if start > offset:
                yield Dropped(start - offset)
            offset = start
            for stream, data in pieces:
                offset += len(data)
                yield Output(stream, data)
            if offset < self.log.end:
                continue
            if ended:
                break
            await changed.wait()
        if self.problem is not None:
            raise self.problem
        assert self.result is not None
        yield self.result

    async def _run(self, commands: Commands) -> None:
        try:
            async with aclosing(commands.stream(self.request, self.id)) as events:
                async for event in events:
                    if isinstance(event, Output):
                        self.log.add(event.stream, event.data)
                        self._tell_followers()
                    elif isinstance(event, Started):
                        self.started.set_result(event)
                    else:
                        self.result = event
        except Problem as problem:
            self._fail(problem)
        except asyncio.CancelledError:
            duration = time.time() - self._started_at
            self.result = ExecResult(exit_code=None, signal=9, duration=duration)
            self._fail(Conflict(f"the job {self.id!r} was killed before it had started"))
        except Exception as error:
            self._fail(Internal(f"the job {self.id!r} was lost: {type(error).__name__}: {error}"))
            raise
        finally:
            asyncio.get_running_loop().call_soon(self._tell_followers)  # once the task counts as ended

    def _fail(self, problem: Problem) -> None:
        if not self.started.done():
            self.started.set_exception(problem)
        elif self.result is None:
            self.problem = problem

    def _tell_followers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Jobs:
    """The jobs of a sandbox, by the names that callers gave them."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._jobs: dict[str, Job] = {}
        self._forgotten = Forgotten()

    def views(self) -> list[JobView]:
        """All that have started, the oldest first."""
        return [job.view() for job in self._jobs.values() if job.started.done() and not job.started.exception()]

    async def start(self, id: str, request: JobRequest) -> Job:
        """Start a job, or find the one that the same request has started before.

        Raises:
            Conflict: another request has that id.
            Gone: there was one, and it is forgotten.
            AtCapacity: as many run, or would keep as much output, as may.
            Invalid, Unavailable: it cannot be started.
        """
        if request.stream or request.request_id is not None:
            raise Invalid("a job is known by its id and followed by its events: leave out stream and request_id")
        job = self._jobs.get(id)
        if job is None:
            if id in self._forgotten:
                raise Gone(f"there was a job {id!r}, and it is forgotten: take another id", cause="forgotten")
            self._make_room(request.output_limit)
            job = self._jobs[id] = Job(id, request, self._commands)
        elif job.request != request:
            raise Conflict(f"there is a job {id!r}, of another request")
        try:
            await asyncio.shield(job.started)
        except Problem:
            if self._jobs.get(id) is job:
                del self._jobs[id]
            raise
        return job

    def __getitem__(self, id: str) -> Job:
        """
        Raises:
            NotFound: there is none.
            Gone: it is forgotten.
        """
        job = self._jobs.get(id)
        if job is None or not job.started.done() or job.started.exception():
            if id in self._forgotten:
                raise Gone(f"the job {id!r} is forgotten", cause="forgotten")
            raise NotFound(f"there is no job {id!r}")
        return job

    async def forget(self, id: str) -> None:
        """Kill a job, if it runs, and forget it with its output; a second time is fine.

        Raises:
            NotFound: there was none.
        """
        if id not in self._forgotten:
            await self[id].kill()
            self._drop(id)

    def _drop(self, id: str) -> None:
        if self._jobs.pop(id, None) is not None:
            self._forgotten.add(id)

    def _make_room(self, limit: int) -> None:
        """Forget the jobs that ended first, as many as have to go for another one."""
        ended = [job for job in self._jobs.values() if job.has_ended]
        while (
            len(self._jobs) >= MOST_JOBS
            or sum(job.request.output_limit for job in self._jobs.values()) + limit > MOST_KEPT
        ):
            if not ended:
                raise AtCapacity(
                    f"at most {MOST_JOBS} jobs, which keep at most {MOST_KEPT} bytes of output, may run at once",
                    retry_after=1,
                )
            self._drop(ended.pop(0).id)
