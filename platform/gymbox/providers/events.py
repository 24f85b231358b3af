"""Events: what the engine says about the containers of one controller, heard in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests
from docker import APIClient
from docker.errors import DockerException

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to reach an engine that went away; the last one repeats."""


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """`die` (with its exit code) or `oom` of a container."""

    action: str
    key: str
    """The engine's id: a name may have been given to another container by the time its event is heard."""
    name: str
    exit_code: int | None


class Events:
    """A thread that follows the event stream, through restarts of the engine, until `close`.

    `on_event` and `on_reconnect` are called in the loop. An event may come twice around a reconnect, and those of an
    engine that was away are lost: compare what runs with what should, on reconnect.
    """

    def __init__(
        self,
        engine: APIClient,
        label: str,
        on_event: Callable[[ContainerEvent], None],
        on_reconnect: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._filters = {"type": ["container"], "event": ["die", "oom"], "label": [label]}
        self._on_event = on_event
        self._on_reconnect = on_reconnect
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._follow, name="docker-events", daemon=True)

    def start(self) -> None:
        """Subscribe, then follow in a thread; blocks until the engine has answered.

        Raises:
            DockerException, OSError: the engine does not answer.
        """
        self._stream = self._subscribe(int(time.time()))
        self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it; safe to call twice, and without `start`."""
        self._closed.set()
        if self._stream is not None:
            # the thread may be closing the same stream, or the engine have closed it
            with contextlib.suppress(OSError, AttributeError, ValueError):
                self._stream.close()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _subscribe(self, since: int) -> Any:
        return self._engine.events(since=since, filters=self._filters, decode=True)

    def _follow(self) -> None:
        while True:
            heard = int(time.time())
            for event in self._stream:
                heard = int(event.get("time", heard))
                self._post(self._on_event, _container_event(event))
            if not self._resubscribed(heard):
                return
            self._post(self._on_reconnect)

    def _resubscribed(self, since: int) -> bool:
        """Whether the engine answers again; False once closed."""
        attempt = 0
        while not self._closed.wait(PAUSES[min(attempt, len(PAUSES) - 1)]):
            try:
                self._stream = self._subscribe(since)
                return not self._closed.is_set()
            except (DockerException, requests.RequestException, OSError):
                attempt += 1
        return False

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and whoever listened with it
            self._loop.call_soon_threadsafe(function, *arguments)


def _container_event(event: dict[str, Any]) -> ContainerEvent:
    attributes = event["Actor"]["Attributes"]
    exit_code = attributes.get("exitCode")
    return ContainerEvent(
        event["Action"],
        event["Actor"]["ID"],
        attributes["name"],
        int(exit_code) if exit_code is not None else None,
    )
