"""Background: jobs, shells and watches of one sandbox, as callers have them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gymbox_sandbox.background import (
    JobOutput,
    JobRequest,
    JobView,
    ShellRequest,
    ShellResult,
    ShellRun,
    ShellView,
)

from gymbox.errors import from_wire
from gymbox.execution import Execution
from gymbox.models.sse import events_of
from gymbox.requests import COMMAND_PATTERN, in_path, request_of

if TYPE_CHECKING:
    import aiohttp

    from gymbox.sandbox_calls import SandboxCalls

CALL = 60.0
"""Seconds for a call that waits for nothing."""
GRACE = 10.0
"""Seconds beyond what the sandbox's own server gives a call: it knows better why something took too long."""
SILENCE = 86_400.0
"""Seconds for which nothing of a job's output or of changes may come."""


def _job(id: str, what: str = "") -> str:
    return f"/exec/jobs/{in_path(id, 'job', COMMAND_PATTERN)}{what}"


def _shell(id: str, what: str = "") -> str:
    return f"/exec/shells/{in_path(id, 'shell', COMMAND_PATTERN)}{what}"


class Jobs:
    """The commands in the background of one sandbox. All end when `verify` begins."""

    def __init__(self, sandbox: str, calls: SandboxCalls) -> None:
        self._sandbox = sandbox
        self._calls = calls

    async def start(self, id: str, command: str | list[str], **options: Any) -> JobView:
        """Start a job under an id of the caller's; `options` are JobRequest's. Asking again finds the same job.

        Raises:
            Invalid: the options are wrong, or it cannot be started.
            Conflict: another job has that id.
            AtCapacity: as many run as may.
            SandboxEnded: the sandbox is no more.
        """
        request = request_of(JobRequest, command=command, **options)
        body = request.model_dump_json(exclude_unset=True).encode()
        answer = await self._calls.send("PUT", _job(id), body, timeout=CALL, repeatable=True)
        return JobView.model_validate_json(answer.body)

    async def list(self) -> list[JobView]:
        """All jobs that are known, those that have ended included.

        Raises:
            SandboxEnded: the sandbox is no more.
        """
        found = (await self._calls.send("GET", "/exec/jobs", timeout=CALL, repeatable=True)).json()["jobs"]
        return [JobView.model_validate(view) for view in found]

    async def get(self, id: str, *, wait: float = 0) -> JobView:
        """What is known about a job now, or once it has ended, but after `wait` seconds at the latest.

        Raises:
            NotFound: there is none.
            SandboxEnded: the sandbox is no more.
        """
        params = {"wait": str(wait)}
        answer = await self._calls.send("GET", _job(id), timeout=wait + CALL, repeatable=True, params=params)
        return JobView.model_validate_json(answer.body)

    async def output(self, id: str, offset: int = 0, *, encoding: Literal["text", "base64"] = "text") -> JobOutput:
        """What a job printed from `offset` on (in bytes), as far as it is kept.

        Raises:
            NotFound: there is none.
            SandboxEnded: the sandbox is no more.
        """
        params = {"offset": str(offset), "encoding": encoding}
        answer = await self._calls.send("GET", _job(id, "/output"), timeout=CALL, repeatable=True, params=params)
        return JobOutput.model_validate_json(answer.body)

    @asynccontextmanager
    async def follow(self, id: str, offset: int = 0) -> AsyncIterator[Execution]:
        """What a job printed from `offset` on and prints; leaving the block leaves the job alone.

        Raises:
            NotFound: there is none.
            SandboxEnded: the sandbox is no more.
        """
        params = {"offset": str(offset)}
        async with self._calls.stream("GET", _job(id, "/events"), idle=SILENCE, params=params) as answer:
            yield Execution(self._sandbox, answer, partial(self._calls.tell, CALL))

    async def kill(self, id: str) -> JobView:
        """Kill a job with its whole tree; what it printed can still be read.

        Raises:
            NotFound: there is none.
            SandboxEnded: the sandbox is no more.
        """
        answer = await self._calls.send("POST", _job(id, "/kill"), timeout=CALL, repeatable=True)
        return JobView.model_validate_json(answer.body)

    async def forget(self, id: str) -> None:
        """Kill a job and forget it; a second time is fine.

        Raises:
            NotFound: there was none.
            SandboxEnded: the sandbox is no more.
        """
        await self._calls.send("DELETE", _job(id), timeout=CALL, repeatable=True)


class Shell:
    """A shell in a sandbox that keeps folder, variables and functions from one command to the next."""

    def __init__(self, view: ShellView, calls: SandboxCalls) -> None:
        self.id = view.id
        self._calls = calls

    async def run(self, command: str, **options: Any) -> ShellResult:
        """Run a command and wait for its end; `options` are ShellRun's. With a `request_id`, a broken connection is
        made good by asking again, and the command runs once.

        Raises:
            Invalid: the options are wrong.
            Gone: the shell has ended, and its state is lost.
            Conflict: it runs another command.
            SandboxEnded: the sandbox is no more.
        """
        request = request_of(ShellRun, command=command, **options)
        answer = await self._calls.send(
            "POST",
            _shell(self.id, "/run"),
            request.model_dump_json(exclude_unset=True).encode(),
            timeout=request.timeout + GRACE,
            repeatable=request.request_id is not None,
        )
        return ShellResult.model_validate_json(answer.body)

    async def close(self) -> None:
        """Kill it, with all that runs in it.

        Raises:
            NotFound: it was closed before.
            SandboxEnded: the sandbox is no more.
        """
        await self._calls.send("DELETE", _shell(self.id), timeout=CALL, repeatable=False)


class Shells:
    """The shells of one sandbox. All end when `verify` begins."""

    def __init__(self, calls: SandboxCalls) -> None:
        self._calls = calls

    async def open(self, id: str, **options: Any) -> Shell:
        """Open a shell under an id of the caller's, or find it again; `options` are ShellRequest's.

        Raises:
            Invalid: the options are wrong, or the id is none.
            Conflict: another shell has that id.
            AtCapacity: there are as many as may be.
            SandboxEnded: the sandbox is no more.
        """
        body = request_of(ShellRequest, **options).model_dump_json().encode()
        answer = await self._calls.send("PUT", _shell(id), body, timeout=CALL, repeatable=True)
        return Shell(ShellView.model_validate_json(answer.body), self._calls)

    async def list(self) -> list[ShellView]:
        """All shells that were opened and not closed.

        Raises:
            SandboxEnded: the sandbox is no more.
        """
        found = (await self._calls.send("GET", "/exec/shells", timeout=CALL, repeatable=True)).json()["shells"]
        return [ShellView.model_validate(view) for view in found]


@dataclass(frozen=True, slots=True)
class Change:
    """Something changed below a folder that is watched."""

    kind: str
    """`created`, `modified`, `attributes`, `deleted` or `moved`; or `overflow`: some changes were missed."""
    path: str = ""
    folder: bool = False
    to: str | None = None
    """Where it was moved."""


async def changes(answer: aiohttp.ClientResponse) -> AsyncIterator[Change]:
    """The changes that a watch tells of, once it is in place.

    Raises:
        Problem: it ended: the folder is gone, or the agent's processes were killed.
    """
    async for event in events_of(answer):
        data = json.loads(event.data)
        if event.event == "error":
            raise from_wire(int(data.get("status", 500)), data, where="watch")
        if event.event == "overflow":
            yield Change("overflow")
        elif event.event == "change":
            yield Change(data["change"], data["path"], data["folder"], data.get("to"))
