"""Sync sandbox: a sandbox for programs without an event loop of their own; all of them share one in a thread.

with SyncSandbox("debian:trixie-slim") as box:
    print(box.exec("echo hello").stdout)
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from gymbox_sandbox.wire import ExecResult

from gymbox.execution import ExecEvent, Execution
from gymbox.runs.loop_thread import LoopThread
from gymbox.sandbox_client import SandboxClient
from gymbox.sdk.arguments import Content
from gymbox.sdk.host import ProviderChoice
from gymbox.sdk.pool import SandboxPool
from gymbox.sdk.sandbox import Sandbox

Call = Callable[[Coroutine[Any, Any, Any]], Any]


class _SharedLoop:
    """One loop for all in this process who hold it at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: LoopThread | None = None

    def take(self) -> LoopThread:
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = LoopThread("gymbox-sandboxes")
            return self._loop

    def give_back(self, loop: LoopThread) -> None:
        with self._lock:
            if loop is not self._loop:  # of the process that this one was forked from
                return
            self._users -= 1
            if not self._users:
                loop.close()
                self._loop = None

    def begin_anew(self) -> None:
        """In a process that was forked: the parent's thread is not here, nor whoever may have held the lock."""
        self._lock = threading.Lock()
        self._users, self._loop = 0, None


_LOOP = _SharedLoop()
os.register_at_fork(after_in_child=_LOOP.begin_anew)


class SyncSandbox:
    """See `Sandbox`, whose arguments and methods these are, for use as `with`. Ctrl-C removes it as well.

    A process that is forked meanwhile can open sandboxes of its own. To use the parent's there raises RuntimeError,
    and to leave its block leaves the sandbox alone.
    """

    def __init__(self, image: str | None = None, **settings: Any) -> None:
        """
        Raises:
            ConfigError: these arguments make no sandbox; nothing was started.
        """
        self._sandbox = Sandbox(image, **settings)
        self._loop: LoopThread | None = None

    @staticmethod
    def host(provider: ProviderChoice = "auto", **settings: Any) -> AbstractContextManager[None]:
        """See `Sandbox.host`."""
        return _kept(Sandbox.host(provider, **settings), lambda call: None)

    @staticmethod
    def pool(image: str | None = None, *, size: int, **settings: Any) -> AbstractContextManager[SyncSandboxPool]:
        """See `Sandbox.pool`."""
        pool = Sandbox.pool(image, size=size, **settings)
        return _kept(pool, lambda call: SyncSandboxPool(pool, call))

    @classmethod
    def _of(cls, sandbox: Sandbox) -> Self:
        made = cls.__new__(cls)
        made._sandbox, made._loop = sandbox, None
        return made

    def __enter__(self) -> Self:
        """See `Sandbox`.

        Raises:
            RuntimeError: it is open already.
            ConfigError, Problem: as `Sandbox.__aenter__`.
        """
        if self._loop is not None:
            raise RuntimeError("this sandbox is open already; make another SyncSandbox for another one")
        self._loop = _LOOP.take()
        try:
            self._call(self._sandbox.__aenter__())
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._loop is None or self._loop.is_here:
                self._call(self._sandbox.__aexit__())
        finally:
            self._leave()

    @property
    def id(self) -> str:
        """See `Sandbox.id`."""
        return self._sandbox.id

    @property
    def controller_url(self) -> str:
        """See `Sandbox.controller_url`."""
        return self._sandbox.controller_url

    def ask[Found](self, work: Callable[[SandboxClient], Coroutine[Any, Any, Found]]) -> Found:
        """What `work` finds out from `Sandbox.client`, in the loop's thread: `box.ask(lambda each: each.reset({}))`.

        Raises:
            RuntimeError: the sandbox is not open.
        """
        return self._call(work(self._sandbox.client))

    def exec(self, command: str | list[str], **options: Any) -> ExecResult:
        """See `Sandbox.exec`."""
        return self._call(self._sandbox.exec(command, **options))

    @contextmanager
    def exec_stream(self, command: str | list[str], **options: Any) -> Iterator[SyncExecution]:
        """See `Sandbox.exec_stream`."""
        with _entered(self._call, self._sandbox.exec_stream(command, **options)) as execution:
            yield SyncExecution(execution, self._call)

    def read_file(self, path: str, *, most: int | None = None) -> bytes:
        """See `Sandbox.read_file`."""
        return self._call(self._sandbox.read_file(path, most=most))

    def read_text(self, path: str) -> str:
        """See `Sandbox.read_text`."""
        return self._call(self._sandbox.read_text(path))

    def write_file(self, path: str, content: Content, mode: int = 0o644) -> None:
        """See `Sandbox.write_file`."""
        self._call(self._sandbox.write_file(path, content, mode))

    def upload(self, source: Path | str, path: str) -> None:
        """See `Sandbox.upload`."""
        self._call(self._sandbox.upload(source, path))

    def download(self, path: str, target: Path | str) -> None:
        """See `Sandbox.download`."""
        self._call(self._sandbox.download(path, target))

    def _call[Found](self, coroutine: Coroutine[Any, Any, Found]) -> Found:
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("this sandbox is not open: use it inside `with SyncSandbox(…) as box:`")
        return self._loop.call(coroutine)

    def _leave(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            _LOOP.give_back(loop)


class SyncSandboxPool:
    """See `SandboxPool`."""

    def __init__(self, pool: SandboxPool, call: Call) -> None:
        self._pool = pool
        self._call = call

    def sandbox(self) -> SyncSandbox:
        """See `SandboxPool.sandbox`; to be opened by `with`."""
        return SyncSandbox._of(self._pool.sandbox())

    def filled(self, timeout: float | None = 600) -> None:
        """See `SandboxPool.filled`."""
        self._call(self._pool.filled(timeout))


class SyncExecution:
    """See `Execution`, whose methods these are."""

    def __init__(self, execution: Execution, call: Call) -> None:
        self._execution = execution
        self._call = call

    @property
    def result(self) -> ExecResult | None:
        """See `Execution.result`."""
        return self._execution.result

    def events(self) -> Iterator[ExecEvent]:
        """See `Execution.events`."""
        found = self._execution.events()
        while (event := self._call(_next(found))) is not None:
            yield event

    def write(self, content: bytes) -> None:
        """See `Execution.write`."""
        self._call(self._execution.write(content))

    def close_stdin(self) -> None:
        """See `Execution.close_stdin`."""
        self._call(self._execution.close_stdin())

    def resize(self, rows: int, columns: int) -> None:
        """See `Execution.resize`."""
        self._call(self._execution.resize(rows, columns))

    def signal(self, name: str) -> None:
        """See `Execution.signal`."""
        self._call(self._execution.signal(name))


async def _next(events: AsyncIterator[ExecEvent]) -> ExecEvent | None:
    return await anext(events, None)


@contextmanager
def _kept[Given](block: AbstractAsyncContextManager[Any], given: Callable[[Call], Given]) -> Iterator[Given]:
    """Keeps a block entered in the shared loop, and gives what `given` makes of the way to call into that."""
    loop = _LOOP.take()
    try:
        with _entered(loop.call, block):
            yield given(loop.call)
    finally:
        _LOOP.give_back(loop)


@contextmanager
def _entered[Found](call: Call, block: AbstractAsyncContextManager[Found]) -> Iterator[Found]:
    """What a block gives that is entered and left in the loop's thread; who was forked meanwhile does not leave it."""
    found: Found = call(_enter(block))
    process = os.getpid()
    try:
        yield found
    finally:
        if os.getpid() == process:
            call(_leave(block))


async def _enter[Found](block: AbstractAsyncContextManager[Found]) -> Found:
    return await block.__aenter__()


async def _leave(block: AbstractAsyncContextManager[Any]) -> None:
    await block.__aexit__(None, None, None)
