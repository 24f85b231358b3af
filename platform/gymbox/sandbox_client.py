"""Sandbox client: every call to one sandbox, through the proxy or straight to its socket.

What fails is raised as a Problem; a sandbox that is no more raises SandboxEnded, with the cause.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from os import SEEK_END
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Literal

from gymbox_sandbox.responses import Response
from gymbox_sandbox.sparse import SparseWriter
from gymbox_sandbox.tasks import Verdict
from gymbox_sandbox.wire import JUDGE_HEADER, ExecRequest, ExecResult, ToolResult

from gymbox.artifacts import Keep, contents_of
from gymbox.background import CALL, GRACE, SILENCE, Change, Jobs, Shells, changes
from gymbox.environment import Manifest
from gymbox.errors import Conflict, ErrorKind, Invalid, NotFound, Problem, RolloutFailure
from gymbox.execution import Execution
from gymbox.http import HttpClient
from gymbox.requests import TOOL_PATTERN, in_path, request_of
from gymbox.sandbox_calls import IDLE, Reach, SandboxCalls, Why
from gymbox.streamed_files import StreamedFiles

if TYPE_CHECKING:
    from gymbox.judge import Judge

log = logging.getLogger(__name__)

ASKED = 202
"""Status of an answer that holds questions for a judge."""
PIECE = 1 << 20
"""Bytes of a file that are read at once."""

Judges = Callable[[], Awaitable["Judge"]]
"""The judge for those environments that need one; it raises JudgeFailed where there is none."""


Fresh = Callable[[], AbstractAsyncContextManager["SandboxClient"]]
"""Gives this sandbox up for a clean one of the same environment: to hold both could take the places of others who also
want a second one, so that none gets any."""


class SandboxClient:
    """One sandbox. Whatever is called, a sandbox that has ended raises SandboxEnded with the cause."""

    def __init__(
        self,
        id: str,
        manifest: Manifest,
        http: HttpClient,
        reach: Reach,
        why: Why,
        fresh: Fresh,
        judge: Judges | None = None,
    ) -> None:
        self.id = id
        self.tools = SandboxTools(self)
        self._calls = calls = SandboxCalls(id, http, reach, why)
        self.jobs = Jobs(id, calls)
        self.shells = Shells(calls)
        self.files = StreamedFiles(calls)
        self.lead_models: Callable[[str, str], None] | None = None
        """Sends model calls from inside to the model at an address, with its key, where the network is `models`; None:
        only its controller could."""
        self.models_unanswered: Callable[[], int] = lambda: 0
        """Model calls from inside that got no answer, since the last that got one, as far as its controller knows."""
        self._manifest = manifest
        self._reach = reach
        self._fresh = fresh
        self._judge = judge
        self._public: dict[str, Any] = {}

    async def reset(self, task: dict[str, Any]) -> None:
        """Prepare it for a task, given without what is hidden from the agent.

        Raises:
            Problem: `reset` failed (`rollout_kind` says so), or took too long.
            SandboxEnded: it is no more.
        """
        body = json.dumps({"task": task}).encode()
        answer = await self._calls.send(
            "POST", "/reset", body, timeout=self._manifest.timeouts.reset + GRACE, repeatable=True
        )
        self._public = task
        self.tools.learn(answer.json()["tools"], complete=True)

    async def load_tools(self) -> None:
        """Learn its tools without a `reset`, of a sandbox that another client has reset, or that began where one was.

        Raises:
            SandboxEnded: it is no more.
        """
        answer = await self._calls.send(
            "GET", "/tools", timeout=CALL, repeatable=True, headers=self._reach.tools_headers
        )
        self.tools.learn(answer.json()["tools"], complete=False)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool; sent once only, so it never runs twice.

        Raises:
            Invalid: no tool can have that name.
            Problem: no answer in time.
            Conflict: it was not reset yet, or verify has begun.
            SandboxEnded: it is no more.
        """
        answer = await self._calls.send(
            "POST",
            f"/tools/{in_path(name, 'tool', TOOL_PATTERN)}",
            json.dumps(arguments).encode(),
            timeout=self._manifest.timeouts.tool + GRACE,
            repeatable=False,
            headers=self._reach.tools_headers,
        )
        return ToolResult.model_validate_json(answer.body)

    async def verify(
        self,
        task: dict[str, Any],
        response: Response,
        *,
        keep: Keep | None = None,
        artifacts: IO[bytes] | None = None,
    ) -> Verdict:
        """Score the task, given whole. Asked again, it gives the same verdict.

        Where the manifest says `verify: fresh`, this one is given up and the task is scored in a clean one, to which
        the artifacts that it names are copied (those that are missing stay missing).

        Args:
            keep: is handed the artifacts before they are scored. With `verify: shared` they do not count for the
                verdict, so where they cannot be had that is logged, and nobody is handed anything.
            artifacts: those of another sandbox: they are put into this one, which was reset and had no agent, and it
                is scored with them.

        Raises:
            Problem: `verify` failed (`rollout_kind` says how), or took too long.
            JudgeFailed: it needs a judge, and has no usable answer of one.
            SandboxEnded: it is no more.
        """
        task = dict(task)
        if artifacts is not None:
            await self.put(".", artifacts, tree=True)
            return await self._verify(task, response, self.id)
        if self._manifest.verify == "shared":
            if keep is not None:
                await self._kept(keep)
            return await self._verify(task, response, self.id)
        with TemporaryFile() as file:
            await self._end_agent()
            await self.save_artifacts(file)
            if keep is not None:
                await keep(file)
                file.seek(0)
            async with self._fresh() as clean:
                await clean.reset(self._public)
                await clean.put(".", file, tree=True)
                return await clean._verify(task, response, self.id)  # the same rollout still

    async def _end_agent(self) -> None:
        """End what the agent left running, which could hinder that its artifacts are read, and so avoid its score."""
        timeout = self._manifest.timeouts.verify + GRACE
        try:
            await self._calls.send("POST", "/verify/prepare", timeout=timeout, repeatable=True)
        except NotFound:
            log.warning("sandbox %s has an older server: what its agent left running goes on for now", self.id)

    async def save_artifacts(self, file: IO[bytes]) -> None:
        """Write a tar of what the manifest's `artifacts` match in the workspace into `file`. What is missing or
        cannot be read is left out.

        Raises:
            RolloutFailure: it is more than `artifact_limits` allow.
            TimedOut: nothing came for `IDLE` seconds.
            SandboxEnded: the sandbox is no more.
        """
        limits = self._manifest.artifact_limits
        params = [("path", "."), *(("only", pattern) for pattern in self._manifest.artifacts)]
        most = limits.megabytes << 20
        async with self._calls.stream("GET", "/archive", idle=IDLE, params=params) as answer:
            async for chunk in answer.content.iter_any():
                file.write(chunk)
                if file.tell() > most:
                    raise _too_large(f"more than {limits.megabytes} MB")
        file.seek(0)
        contents = await asyncio.to_thread(contents_of, file)
        if contents.bytes > most:
            raise _too_large(f"more than {limits.megabytes} MB (holes in files count)")
        if contents.files > limits.files:
            raise _too_large(f"more than {limits.files} files")

    async def _kept(self, keep: Keep) -> None:
        with TemporaryFile() as file:
            try:
                await self.save_artifacts(file)
            except Problem as error:
                log.warning("sandbox %s: its artifacts are not kept: %s", self.id, error.detail)
                return
            await keep(file)

    async def _verify(self, task: dict[str, Any], response: Response, rollout: str) -> Verdict:
        """The verdict; what `verify` asks a judge on the way is asked here, for it cannot leave its sandbox."""
        gold, limits, hearing = task.pop("gold_judgements", None), self._manifest.judge, None
        headers = dict(self._reach.headers)
        if limits is not None and self._judge is not None:
            hearing = (await self._judge()).hearing(rollout, limits, gold)
            headers[JUDGE_HEADER] = "asks"
        path, body = "/verify", json.dumps({"task": task, "response": response.dump()}).encode()
        timeout = self._manifest.timeouts.verify + GRACE
        while True:
            answer = await self._calls.send("POST", path, body, timeout=timeout, repeatable=True, headers=headers)
            if answer.status != ASKED or hearing is None:
                return Verdict.model_validate_json(answer.body)
            path, body = "/verify/answers", json.dumps({"answers": await hearing.answers(answer.body)}).encode()

    async def exec(self, command: str | list[str], **options: Any) -> ExecResult:
        """Run a command as the agent's user and wait for its end; `options` are ExecRequest's. With a `request_id`, a
        broken connection is made good by asking again, and the command runs once.

        Raises:
            Invalid: the options are wrong.
            Conflict: another request had that id.
            SandboxEnded: it is no more.
        """
        request = request_of(ExecRequest, command=command, **options)
        body = request.model_dump_json(exclude_unset=True).encode()
        once, timeout = request.request_id is not None, request.timeout + GRACE
        answer = await self._calls.send("POST", "/exec", body, timeout=timeout, repeatable=once)
        return ExecResult.model_validate_json(answer.body)

    @asynccontextmanager
    async def exec_stream(self, request: ExecRequest) -> AsyncIterator[Execution]:
        """Run a command and follow its output as it comes; leaving the block early hangs up.

        Raises:
            TimedOut: it was silent for longer than it may run.
            SandboxEnded: the sandbox is no more.
        """
        body = request.model_copy(update={"stream": True}).model_dump_json(exclude_unset=False).encode()
        headers, idle = {"Content-Type": "application/json"}, request.timeout + GRACE
        async with self._calls.stream("POST", "/exec", idle=idle, data=body, headers=headers) as answer:
            # input is taken as the command reads it, so what gives it waits for as long as the command may run
            yield Execution(self.id, answer, partial(self._calls.tell, max(idle, CALL)))

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = True) -> AsyncIterator[AsyncIterator[Change]]:
        """Changes in a folder as they happen, from when the block is entered; leaving it ends the watch.

        Raises:
            NotFound: there is no such folder.
            AtCapacity: as many watches are open as may be.
            SandboxEnded: the sandbox is no more.
        """
        params = {"path": path, "recursive": str(int(recursive))}
        async with self._calls.stream("GET", "/files/watch", idle=SILENCE, params=params) as answer:
            yield changes(answer)

    async def read_file(self, path: str, *, most: int | None = None) -> bytes:
        """The bytes of a file in the sandbox.

        Args:
            most: bytes that it may have.

        Raises:
            NotFound: there is none.
            Invalid: it has more than `most` bytes, with the cause `too_large`.
            SandboxEnded: the sandbox is no more.
        """
        if most is None:
            return (await self._calls.send("GET", "/files", params={"path": path}, timeout=300, repeatable=True)).body
        content = bytearray()
        async with self._calls.stream("GET", "/files", idle=IDLE, params={"path": path}) as answer:
            async for chunk in answer.content.iter_any():
                content += chunk
                if len(content) > most:
                    raise Invalid(f"{path} has more than {most} bytes", cause="too_large")
        return bytes(content)

    async def write_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Put a file into the sandbox; missing folders are made.

        Raises:
            SandboxEnded: the sandbox is no more.
        """
        params = {"path": path, "mode": f"{mode:o}"}
        await self._calls.send("PUT", "/files", content, params=params, timeout=300, repeatable=True)

    async def save(self, path: str, file: IO[bytes]) -> Literal["tree", "file"]:
        """Write what is at `path`, of any size, into `file`: a folder as a tar ("tree"), or the bytes of a file.

        Raises:
            NotFound: there is nothing.
            TimedOut: nothing came for `IDLE` seconds.
            SandboxEnded: the sandbox is no more.
        """
        try:
            await self._download("/archive", path, file)
            return "tree"
        except NotFound:  # or no folder
            await self._download("/files", path, file)
            return "file"

    async def put(self, path: str, file: IO[bytes], *, tree: bool, mode: int = 0o644) -> None:
        """Unpack a tar into a folder of the sandbox (`tree`), or write a file, of any size.

        Raises:
            SandboxEnded: the sandbox is no more.
        """
        route, params = ("/archive", {"path": path}) if tree else ("/files", {"path": path, "mode": f"{mode:o}"})
        begin = file.tell()
        size = file.seek(0, SEEK_END) - begin
        file.seek(begin)
        headers = {**self._reach.headers, "Content-Length": str(size)}
        await self._calls.send(
            "PUT", route, _pieces(file), params=params, timeout=3600, repeatable=False, headers=headers
        )

    async def _download(self, route: str, path: str, file: IO[bytes]) -> None:
        async with self._calls.stream("GET", route, idle=IDLE, params={"path": path}) as answer:
            writer = SparseWriter(file)
            async for chunk in answer.content.iter_any():
                writer.write(chunk)
            writer.finish()
        file.seek(0)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE):
        yield piece


def _too_large(text: str) -> RolloutFailure:
    return RolloutFailure(ErrorKind.ARTIFACTS_TOO_LARGE, f"the artifacts to be scored are {text}; see artifact_limits")


class SandboxTools:
    """The tools of one sandbox: all that an agent is handed of it."""

    def __init__(self, sandbox: SandboxClient) -> None:
        self._sandbox = sandbox
        self._definitions: list[dict[str, Any]] | None = None
        self._complete = False

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """Function-tool definitions, known from `reset`, or `load_tools` of the client.

        Raises:
            Conflict: they are not known yet.
        """
        if self._definitions is None:
            raise Conflict(
                f"the tools of sandbox {self._sandbox.id} are not known yet: reset it first; of one that another "
                "client has reset, `await client.load_tools()` tells them"
            )
        return self._definitions

    def learn(self, definitions: list[dict[str, Any]], *, complete: bool) -> None:
        """These are its tools.

        Args:
            complete: there are no others; False: a `reset` by somebody else may still add some.
        """
        self._definitions, self._complete = definitions, complete

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """See `SandboxClient.call_tool`. What the sandbox does not have is told to the model.

        Raises: as `SandboxClient.call_tool`.
        """
        if self._complete and not any(definition.get("name") == name for definition in self.definitions):
            known = ", ".join(str(definition.get("name")) for definition in self.definitions) or "none"
            return ToolResult(output=f"There is no tool {name!r}. The tools are: {known}.", is_error=True)
        return await self._sandbox.call_tool(name, arguments)
