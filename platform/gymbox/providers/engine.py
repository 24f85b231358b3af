"""Engine: calls to one Docker engine, a bounded number at once, whose failures are told as problems."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import requests
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException

from gymbox.errors import Unavailable, by_this_python
from gymbox.providers import BY_COMPOSE

DEFAULT_HOST = "unix:///var/run/docker.sock"
WITHOUT = "go without containers: provider=process"
CALL_TIMEOUT = 120
"""Seconds that one call to the engine may take: a busy engine takes tens."""


class Refused(Unavailable):
    """The engine answered, and the answer was no."""


class Engine:
    """The SDK's client, whose blocking calls run in threads.

    Args:
        host: its address; None: the usual socket.
        threads: calls at once.
    """

    def __init__(self, host: str | None, threads: int) -> None:
        self.host = host or DEFAULT_HOST
        self.api: Any = None
        """The client, once connected. It has no types."""
        self.version = ""
        """Of the engine, once connected."""
        self._is_usual = host is None
        self._size = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="docker")

    async def connect(self) -> None:
        """
        Raises:
            Unavailable: it does not answer, or is not on this machine.
        """
        if self.host.startswith("ssh://"):
            raise self._elsewhere("over ssh")
        self.api = await self.call("connect", self._connected)

    def close(self) -> None:
        """Take no more calls, without waiting for those under way; safe to call twice, and before `connect`."""
        self._threads.shutdown(wait=False)
        if self.api is not None:
            self.api.close()

    def _connected(self) -> APIClient:
        # the stream of events holds one connection of the pool
        api = APIClient(self.host, version="auto", timeout=CALL_TIMEOUT, max_pool_size=self._size + 1)
        api.trust_env = False  # or every call would look for proxies and a .netrc
        info = api.info()
        if not is_here(info, self.host):
            api.close()
            raise self._elsewhere(info["OperatingSystem"])
        self.version = str(info["ServerVersion"])
        return api

    def _elsewhere(self, what: str) -> Unavailable:
        return Unavailable(
            f"the Docker engine at {self.host} ({what}) is not on this machine, and sandboxes are reached over unix "
            "sockets, which do not leave a machine, virtual ones included: unset DOCKER_HOST (provider.host) to use "
            f"this machine's own engine, {BY_COMPOSE}, or {WITHOUT}"
        )

    async def call[T](self, doing: str, function: Callable[..., T], *arguments: object) -> T:
        """Run a call in the pool. What a thread has begun cannot be stopped, so cancelling waits for its end.

        Raises:
            APIError: with status 404 or 409, which the caller may know what to do with.
            Unavailable: the engine does not answer, or refused for another reason.
        """
        with self.translated(doing):
            call = asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                await asyncio.wait([call])
                if not call.cancelled():
                    call.exception()  # nobody is there any more to be told
                raise

    async def must[T](self, doing: str, function: Callable[..., T], *arguments: object) -> T:
        """As `call`, for what the engine has no known reason to refuse.

        Raises:
            Unavailable: the engine does not answer, or refused.
        """
        try:
            return await self.call(doing, function, *arguments)
        except APIError as error:
            raise Refused(f"the Docker engine refused to {doing}: {error.explanation or error}") from error

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Failures of the SDK within the block, as `call` tells them."""
        try:
            yield
        except APIError as error:
            if error.status_code in (404, 409):
                raise
            raise Refused(f"the Docker engine refused to {doing}: {error.explanation or error}") from error
        except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise Unavailable(
                f"no Docker engine answers at {self.host} ({_cause(error)}): {self._ways_on()}"
            ) from error

    async def call_aside[T](self, doing: str, function: Callable[[], T]) -> T:
        """As `call`, for what takes long: it has a thread of its own, which does not hold up the end of the process,
        and whoever cancels leaves it to itself."""
        with self.translated(doing):
            return await _in_daemon_thread(function)

    def _ways_on(self) -> str:
        start = f"`{by_this_python('setup_docker')}`"
        if self._is_usual:
            return f"start one by {start}, or {WITHOUT}"
        return f"start it, or unset DOCKER_HOST (provider.host) to use this machine's own ({start}), or {WITHOUT}"


def is_here(info: dict[str, Any], host: str) -> bool:
    """Whether the engine runs on this machine's kernel: sockets pass its mounts, and no others."""
    here = os.uname()
    if host.startswith("unix://"):
        return info["KernelVersion"] in (here.release, "<unknown>")
    return (info["KernelVersion"], info["Name"]) == (here.release, here.nodename)


def _cause(error: BaseException) -> str:
    """The innermost reason: the SDK wraps a refused connection four times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error)


async def _in_daemon_thread[T](function: Callable[[], T]) -> T:
    """Run something in a thread that does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="docker-build", daemon=True).start()
    return await future
