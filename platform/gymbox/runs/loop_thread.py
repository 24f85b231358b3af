"""Loop thread: an event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

_OPEN: set[LoopThread] = set()
"""Kept until they are closed. A process that was forked keeps its parent's: to be rid of their connections and files
would reach, by what the two share, into the parent."""


class LoopThread:
    """A loop that runs until it is closed. The thread keeps no process from ending, and is in none that is forked from
    this one: there, what was opened in the loop is the parent's, to use and to close."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process = os.getpid()
        self._thread.start()
        _OPEN.add(self)

    @property
    def is_here(self) -> bool:
        """Whether its thread is in this process."""
        return self._process == os.getpid()

    def call[Found](self, coroutine: Coroutine[Any, Any, Found]) -> Found:
        """What it gives, run in the loop's thread; if the wait for it is interrupted, it is cancelled.

        Raises:
            RuntimeError: the thread is in another process, from which this one was forked.
        """
        if not self.is_here:
            coroutine.close()
            raise RuntimeError(
                f"this was opened by process {self._process}, from which process {os.getpid()} was forked, and only "
                "that one can use it: open another one here"
            )
        coming: Future[Found] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return coming.result()
        except BaseException:
            coming.cancel()
            raise

    def close(self) -> None:
        """End the loop and wait for its thread; safe to call twice."""
        if not self.is_here:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        _OPEN.discard(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
