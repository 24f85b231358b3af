"""Loop thread: an event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any


class LoopThread:
    """A loop that runs until it is closed. The thread keeps no process from ending."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call[Found](self, coroutine: Coroutine[Any, Any, Found]) -> Found:
        """What it gives, run in the loop's thread; if the wait for it is interrupted, it is cancelled."""
        coming: Future[Found] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return coming.result()
        except BaseException:
            coming.cancel()
            raise

    def close(self) -> None:
        """End the loop and wait for its thread; safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
