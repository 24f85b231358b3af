"""Sync run: a run for programs without an event loop of their own; it has one in a thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from gymbox.models import Model
from gymbox.runner import Summary
from gymbox.runs.async_run import Run
from gymbox.runs.delivery import Counts, Result
from gymbox.runs.loop_thread import LoopThread


class SyncRun:
    """See `Run`, whose methods these are. Used as `with`, or iterated over as it is: leaving either, also by Ctrl-C,
    ends everything that is under way and deletes its sandboxes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop: LoopThread | None = None

    def __enter__(self) -> Self:
        """
        Raises:
            ConfigError: something is wrong; no rollout was started.
        """
        try:
            if self._loop is None:
                self._loop = LoopThread("gymbox-run")
            self._call(self._run.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is under way, wait until it is cleaned up, and end the thread; safe to call twice. In a process
        that was forked from the run's it leaves the run alone."""
        loop = self._loop
        if loop is None:
            return
        try:
            if loop.is_here:
                loop.call(self._run.aclose())
        finally:
            self._loop = None
            loop.close()

    def __iter__(self) -> Generator[Result]:
        return self.results()

    def results(self) -> Generator[Result]:
        """See `Run.results`."""
        yield from self._each(self._run.results())

    def groups(self, *, min_scored: int = 0) -> Generator[list[Result]]:
        """See `Run.groups`."""
        yield from self._each(self._run.groups(min_scored=min_scored))

    @property
    def id(self) -> str:
        """See `Run.id`."""
        return self._run.id

    @property
    def folder(self) -> Path | None:
        """See `Run.folder`."""
        return self._run.folder

    @property
    def summary(self) -> Summary | None:
        """See `Run.summary`."""
        return self._run.summary

    @property
    def counts(self) -> Counts:
        """See `Run.counts`."""
        return self._run.counts

    @property
    def under_way(self) -> list[str]:
        """See `Run.under_way`."""
        return self._run.under_way

    @property
    def policy_version(self) -> int | None:
        """See `Run.policy_version`."""
        return self._run.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self.update_policy(version)

    def update_policy(self, version: int, model: Model | None = None) -> None:
        """See `Run.update_policy`.

        Raises:
            ConfigError: the new model cannot be opened, or the version is no whole number; the old ones stay.
            RuntimeError: a model is given and the run is not under way.
        """
        if self._loop is not None:
            self._call(self._run.update_policy(version, model))
        elif model is None:
            self._run.policy_version = version
        else:
            raise RuntimeError("the run is not under way: give the model to run_sync, or enter the run first")

    def pause(self) -> None:
        """See `Run.pause`."""
        self._act(self._run.pause)

    def resume(self) -> None:
        """See `Run.resume`."""
        self._act(self._run.resume)

    def stop(self) -> None:
        """See `Run.stop`."""
        self._act(self._run.stop)

    def cancel(self, rollout: str | None = None, *, group: str | None = None) -> None:
        """See `Run.cancel`."""
        self._act(lambda: self._run.cancel(rollout, group=group))

    def _act(self, act: Callable[[], None]) -> None:
        """Do it in the loop's thread; before the run began and after its end it only changes what it was told."""
        if self._loop is None:
            act()
        else:
            self._call(_doing(act))

    def _call[Found](self, coroutine: Coroutine[Any, Any, Found]) -> Found:
        assert self._loop is not None
        return self._loop.call(coroutine)

    def _each[Found](self, results: AsyncGenerator[Found]) -> Iterator[Found]:
        """What the generator gives; a run that was not entered ends with it."""
        own, end = self._loop is None, object()
        try:
            self.__enter__()
            while (found := self._call(_next(results, end))) is not end:
                yield found
        finally:
            if own:
                self.close()
            elif self._loop is not None and self._loop.is_here:
                self._call(results.aclose())


async def _next(results: AsyncGenerator[Any], end: object) -> Any:
    return await anext(results, end)


async def _doing(act: Callable[[], None]) -> None:
    act()


async def in_a_thread[Item](items: Iterable[Item]) -> AsyncIterator[Item]:
    """The items of an iterable that may block, which is asked in a thread, one item at a time. A thread that never
    comes back from it keeps nothing else from ending."""
    loop = asyncio.get_running_loop()
    wanted: queue.SimpleQueue[asyncio.Future[Any] | None] = queue.SimpleQueue()
    end = object()

    def ask() -> None:
        iterator = iter(items)
        while (told := wanted.get()) is not None:
            found: Any = end
            error: BaseException | None = None
            try:
                found = next(iterator, end)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_tell, told, found, error)
            except RuntimeError:
                return  # the run, and its loop with it, has ended meanwhile

    threading.Thread(target=ask, name="gymbox-rows", daemon=True).start()
    try:
        while True:
            told: asyncio.Future[Any] = loop.create_future()
            wanted.put(told)
            if (item := await told) is end:
                return
            yield item
    finally:
        wanted.put(None)


def _tell(told: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
    if told.cancelled():
        return
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(found)
