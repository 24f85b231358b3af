"""Collected: a command whose input or output is too large for one request, streamed and put together here."""

from __future__ import annotations

import asyncio
import contextlib

from gymbox_sandbox.wire import ExecRequest, ExecResult

from gymbox.errors import Conflict, NotFound
from gymbox.execution import Execution
from gymbox.sandbox_client import SandboxClient

LARGE_STDIN = 1 << 20
"""Bytes of input, above which it is streamed."""
LARGE_OUTPUT = 8_000_000
"""Bytes of output that the answer to one request may hold."""
_CHUNK = 1 << 20


async def collected(sandbox: SandboxClient, request: ExecRequest, stdin: bytes, limit: int) -> ExecResult:
    """The result of a command, with at most `limit` bytes of each of its outputs.

    Raises:
        Problem: see `SandboxClient.exec_stream`.
    """
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    feeding: asyncio.Task[None] | None = None
    async with sandbox.exec_stream(request.model_copy(update={"stdin_open": True})) as execution:
        try:
            async for event in execution.events():
                if event.name == "started":
                    feeding = asyncio.create_task(_feed(execution, stdin))
                elif event.name in kept:
                    output = kept[event.name]
                    output += event.output[: limit - len(output)]
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait({feeding})
    result = execution.result
    assert result is not None
    sizes = result.stdout_bytes + result.stderr_bytes
    return result.model_copy(
        update={
            **{name: output.decode(errors="replace") for name, output in kept.items()},
            "truncated": sizes > sum(map(len, kept.values())),
        }
    )


async def _feed(execution: Execution, stdin: bytes) -> None:
    with contextlib.suppress(Conflict, NotFound):  # it has ended, or closed its input: its own matter
        for start in range(0, len(stdin), _CHUNK):
            await execution.write(stdin[start : start + _CHUNK])
        await execution.close_stdin()
