"""Streamed files: the bytes of one sandbox's files, in and out as they come, at constant memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gymbox.sandbox_calls import IDLE

if TYPE_CHECKING:
    from gymbox.sandbox_calls import SandboxCalls

LONGEST = 3600.0
"""Seconds that an upload may take."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file whose bytes are read as they come."""

    size: int | None
    """None: not known before its end."""
    pieces: AsyncIterator[bytes]


class StreamedFiles:
    """The files of one sandbox."""

    def __init__(self, calls: SandboxCalls) -> None:
        self._calls = calls

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[Download]:
        """A file of any size, read piece by piece within the block; leaving it ends the transfer.

        Raises:
            NotFound: there is none.
            Invalid: it is no file.
            TimedOut: nothing came for `IDLE` seconds.
            SandboxEnded: the sandbox is no more.
        """
        async with self._calls.stream("GET", "/files", idle=IDLE, params={"path": path}) as answer:
            yield Download(answer.content_length, answer.content.iter_any())

    async def upload(self, path: str, pieces: AsyncIterable[bytes], mode: int = 0o644) -> None:
        """Write a file of any size from what `pieces` gives, sent as it comes; missing folders are made. Where
        `pieces` raises, that is raised, and nothing is written.

        Raises:
            Forbidden, Invalid, Conflict: it cannot be written there.
            SandboxEnded: the sandbox is no more.
        """
        failures: list[Exception] = []

        async def given() -> AsyncIterator[bytes]:
            try:
                async for piece in pieces:
                    yield piece
            except Exception as error:
                failures.append(error)
                sending.cancel()  # or it would be asked whether the sandbox has ended
                raise

        params = {"path": path, "mode": f"{mode:o}"}
        sending = asyncio.create_task(
            self._calls.send("PUT", "/files", given(), params=params, timeout=LONGEST, repeatable=False)
        )
        try:
            await sending
        except asyncio.CancelledError:
            if not failures:
                raise
        finally:
            sending.cancel()
        if failures:
            raise failures[0]
