"""Execution: a command that runs in a sandbox, and whose output is followed as it comes."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, cast

import aiohttp
from gymbox_sandbox.wire import ExecResult

from gymbox.errors import Unavailable, from_wire
from gymbox.models.sse import events_of
from gymbox.requests import COMMAND_PATTERN, in_path


class Tell(Protocol):
    """Posts to a path of the sandbox; once only."""

    def __call__(self, path: str, body: bytes, params: Mapping[str, str] | None = None) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class ExecEvent:
    """`started`, `stdout`, `stderr` or `exit`, with what it brings."""

    name: str
    data: dict[str, Any]

    @property
    def output(self) -> bytes:
        """What was printed (of `stdout` and `stderr`)."""
        return base64.b64decode(self.data.get("data", ""))


class Execution:
    """One command, from `started` to `exit`.

    Args:
        sandbox: its id.
        answer: the stream of what happens.
        tell: reaches the sandbox.
    """

    def __init__(self, sandbox: str, answer: aiohttp.ClientResponse, tell: Tell) -> None:
        self._sandbox = sandbox
        self._answer = answer
        self._tell = tell
        self.id = ""
        """Known once `started` has come."""
        self.result: ExecResult | None = None
        """Known once `exit` has come."""

    async def events(self) -> AsyncIterator[ExecEvent]:
        """Everything that happens, until the command has ended.

        Raises:
            Problem: the command could not be followed to its end.
            SandboxEnded: the sandbox is no more.
        """
        async with aclosing(cast(Any, events_of(self._answer))) as found:
            async for each in found:
                event = ExecEvent(each.event, json.loads(each.data))
                if event.name == "started":
                    self.id = event.data["exec_id"]
                elif event.name == "exit":
                    self.result = ExecResult.model_validate(event.data)
                elif event.name == "error":
                    raise from_wire(int(event.data.get("status", 500)), event.data, where="exec")
                yield event
        if self.result is None:
            raise Unavailable(f"the output of a command in sandbox {self._sandbox} broke off")

    async def write(self, content: bytes) -> None:
        """Give the command input."""
        await self._post("stdin", content)

    async def close_stdin(self) -> None:
        """There is no more input."""
        await self._post("stdin", b"", {"eof": "1"})

    async def resize(self, rows: int, columns: int) -> None:
        """The terminal has another size now."""
        await self._post("resize", json.dumps({"rows": rows, "columns": columns}).encode())

    async def signal(self, name: str) -> None:
        """Send it a signal (`SIGINT`, …)."""
        await self._post("signal", json.dumps({"signal": name}).encode())

    async def _post(self, what: str, body: bytes, params: Mapping[str, str] | None = None) -> None:
        await self._tell(f"/exec/{in_path(self.id, 'command', COMMAND_PATTERN)}/{what}", body, params)
