"""Terminals: a command in a sandbox on this terminal, or through these pipes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gymbox_sandbox.wire import ExecResult, Pty

from gymbox.errors import ConfigError

if TYPE_CHECKING:
    from gymbox.execution import Execution

LONGEST = 86_400.0
TIMED_OUT = 124
"""Exit code of a command that was killed for taking too long, as of `timeout`."""
DETACH = b"\x1d"
"""Ctrl-]: leaves what runs on a terminal to itself, where one can come back to it."""


_LARGEST = 1000
"""Rows or columns of a terminal that a sandbox takes; of a larger one, that much is used."""


class Detached(Exception):
    """The user left, and what was followed goes on."""


def exit_code(result: ExecResult) -> int:
    """What a shell would report for the command."""
    if result.timed_out:
        return TIMED_OUT
    return result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)


async def follow(
    execution: Execution, stdin: int | None, *, resizes: bool = False, leaves: bool = False
) -> ExecResult:
    """Print a command's output as it comes and, from when it has started, give it what comes in on `stdin`.

    Raises:
        Detached: the user typed Ctrl-], which `leaves` allows.
    """
    loop = asyncio.get_running_loop()
    typing: asyncio.Task[None] | None = None
    following = asyncio.current_task()
    assert following is not None
    try:
        async for event in execution.events():
            if event.name == "started" and stdin is not None:
                typing = asyncio.create_task(_type(execution, stdin, leaves))
                typing.add_done_callback(lambda typed: _has_left(typed) and following.cancel())
                if resizes:
                    loop.add_signal_handler(signal.SIGWINCH, lambda: asyncio.ensure_future(_resize(execution)))
            elif event.name in ("stdout", "stderr"):
                _write(sys.stdout if event.name == "stdout" else sys.stderr, event.output)
            elif event.name == "dropped":
                _write(sys.stderr, f"[{event.data['bytes']} bytes were dropped]\r\n".encode())
    except asyncio.CancelledError:
        if typing is None or not _has_left(typing):
            raise
        following.uncancel()
        raise Detached from None
    finally:
        if typing is not None:
            typing.cancel()
            await asyncio.wait({typing})
        if resizes:
            loop.remove_signal_handler(signal.SIGWINCH)
    assert execution.result is not None
    return execution.result


def _has_left(typing: asyncio.Task[None]) -> bool:
    return typing.done() and not typing.cancelled() and isinstance(typing.exception(), Detached)


async def _type(execution: Execution, stdin: int, leaves: bool) -> None:
    async for content in _chunks(stdin):
        before, left, _ = content.partition(DETACH) if leaves else (content, b"", b"")
        if before:
            await execution.write(before)
        if left:
            raise Detached
    await execution.close_stdin()


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What can be read from a descriptor, until its end. Files are read at once: the loop cannot watch them."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    while True:
        readable.clear()
        try:
            loop.add_reader(descriptor, readable.set)
        except PermissionError:
            pass  # a file: always readable
        else:
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
        content = os.read(descriptor, 64 * 1024)
        if not content:
            return
        yield content


async def _resize(execution: Execution) -> None:
    size = terminal_size()
    await execution.resize(size.rows, size.columns)


def terminal_size() -> Pty:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Pty(rows=min(max(1, rows), _LARGEST), columns=min(max(1, columns), _LARGEST))


def is_terminal(*streams: Any) -> bool:
    """Whether all of these are one; Python has None for a stream that this process was started without (`<&-`)."""
    return all(stream is not None and stream.isatty() for stream in streams)


def input_descriptor() -> int:
    """Of what is typed or piped here.

    Raises:
        ConfigError: this process was started without (`<&-`).
    """
    if sys.stdin is None:
        raise ConfigError("there is no input to pass on: stdin is closed; leave out --interactive, or add </dev/null")
    return sys.stdin.fileno()


@contextmanager
def raw_terminal() -> Iterator[None]:
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _write(stream: Any, content: bytes) -> None:
    if stream is None:  # closed (`>&-`), which is to be rid of it
        return
    stream.buffer.write(content)
    stream.buffer.flush()
