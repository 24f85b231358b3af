"""Watch: the containers of one controller as this process knows them, and who is told when one ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from docker.errors import APIError
from docker.errors import NotFound as NoSuchContainer
from gymbox_sandbox.lifecycle import Ended

from gymbox.errors import NotFound, Problem, Unavailable
from gymbox.providers import OnEnd
from gymbox.providers.confinement import MEGABYTE
from gymbox.providers.container import NETWORK_LABEL, SERVICE_LABEL, SERVICES_LABEL, directory_of
from gymbox.providers.ends import LOG_LINES, last_lines, why_it_ended
from gymbox.providers.engine import Engine
from gymbox.providers.events import ContainerEvent, Events
from gymbox.providers.service_container import service_of

logger = logging.getLogger(__name__)

UNSEEN = 255
"""Exit code that the engine gives to a container whose end it did not see."""
OOM_EXPLAINS = 10.0
"""Seconds for which an out-of-memory event explains the end of its container."""


@dataclass(slots=True)
class Container:
    """A container of ours, and what must go when it goes."""

    directory: Path | None
    network: bool
    key: str = ""
    """The engine's id, once it is created."""
    ended: asyncio.Future[int | None] | None = None
    """While it starts: resolved with its exit code if it ends before it is ready."""
    reported: bool = False
    """Whether its end has been told."""
    stopping: bool = False
    """Whether `stop` is at it, or was: then its end is no news."""
    owner: str = ""
    """Of a service: the sandbox that ends when it does."""

    @classmethod
    def labelled(cls, labels: dict[str, str], key: str) -> Container:
        network = labels.get(NETWORK_LABEL) == "internal" or SERVICES_LABEL in labels
        return cls(directory_of(labels), network, key, owner=labels.get(SERVICE_LABEL, ""))


class Watch:
    """Tells `on_end` of every container in `containers` that ends, unless it starts or is being stopped."""

    def __init__(self, engine: Engine, label: str, on_end: OnEnd) -> None:
        self.containers: dict[str, Container] = {}
        """By name. Whoever starts or removes one keeps this true."""
        self._engine = engine
        self._label = label
        self._on_end = on_end
        self._out_of_memory: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: Events | None = None

    async def open(self) -> None:
        """Listen to the engine, which is connected.

        Raises:
            Unavailable: it does not answer.
        """
        self._events = Events(self._engine.api, self._label, self._heard, self.compare_soon)
        await self._engine.call("report events", self._events.start)

    async def close(self) -> None:
        """Tell nothing more; safe to call twice, and without `open`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._events is not None:
            await asyncio.to_thread(self._events.close)

    def forget(self, id: str) -> None:
        """It is gone, with all that belonged to it."""
        self._out_of_memory.pop(id, None)
        del self.containers[id]

    async def logs(self, id: str, tail: int) -> str:
        """The last lines that it printed.

        Raises:
            NotFound: there is no such container.
        """
        return (await self._log(id, tail)).decode(errors="replace")

    async def last_lines(self, id: str) -> str:
        """As `Ended.logs` wants them; `""` where they cannot be had."""
        try:
            return last_lines(await self._log(id, LOG_LINES))
        except Problem:
            return ""

    async def _log(self, id: str, tail: int) -> bytes:
        try:
            return bytes(
                await self._engine.call(f"read the log of {id}", partial(self._engine.api.logs, id, tail=tail))
            )
        except APIError as error:  # gone, or about to be
            raise NotFound(f"there is no container {id}") from error

    def _heard(self, event: ContainerEvent) -> None:
        container = self.containers.get(event.name)
        if container is None or container.key != event.key:
            return
        if event.action == "oom":
            self._out_of_memory[event.name] = time.monotonic()
        else:
            self.ended(event.name, container, event.exit_code)

    def ended(self, id: str, container: Container, exit_code: int | None) -> None:
        """A container has ended."""
        if container.ended is not None:
            if not container.ended.done():
                container.ended.set_result(exit_code)
        elif not container.reported and not container.stopping:
            container.reported = True
            self._in_background(self._report(id, container, exit_code))

    def compare_soon(self) -> None:
        """Look for what ended while nobody listened; it is told when it is found."""
        self._in_background(self._compare())

    async def _compare(self) -> None:
        watched = [(id, container) for id, container in self.containers.items() if container.key]
        list_all = partial(self._engine.api.containers, all=True, filters={"label": self._label})
        states = {row["Id"]: row["State"] for row in await self._engine.call("list containers", list_all)}
        for id, container in watched:
            if states.get(container.key, "gone") in ("gone", "exited", "dead"):  # one of "created" is being started
                self.ended(id, container, None)

    async def _report(self, id: str, container: Container, exit_code: int | None) -> None:
        ended = await self.why(id, exit_code)
        if self.containers.get(id) is container and not container.stopping:  # it may have come to that meanwhile
            if container.owner:
                owner = self.containers.get(container.owner)
                if owner is None or owner.reported or owner.stopping:
                    return
                owner.reported = True
                id = container.owner
            logger.warning("sandbox %s ended (%s): %s", id, ended.cause, ended.detail)
            self._on_end(id, ended)

    async def why(self, id: str, exit_code: int | None) -> Ended:
        """What the end of a container means; `exit_code` is None where nobody has heard it."""
        heard = self._out_of_memory.pop(id, None)
        service = self._service(id)
        who = id if service is None else f"service {service}"
        try:
            found = await self._engine.call(f"inspect {id}", self._engine.api.inspect_container, id)
        except NoSuchContainer:
            return Ended(cause="killed", detail=f"{who} was removed by someone else", exit_code=exit_code)
        except Unavailable as error:
            return Ended(cause="lost", detail=f"{who} ended, and {error.detail}", exit_code=exit_code)
        if exit_code is None and found["State"]["ExitCode"] == UNSEEN:
            return Ended(cause="lost", detail=f"{who} ended while the engine was away", logs=await self.last_lines(id))
        # the engine sets OOMKilled for any process in the container, also for one whose end it survived
        oom = time.monotonic() - heard < OOM_EXPLAINS if heard is not None else bool(found["State"]["OOMKilled"])
        allowed = found["HostConfig"]["Memory"] // MEGABYTE if oom else None
        logs, exit_code = await self.last_lines(id), found["State"]["ExitCode"]
        return why_it_ended(id, exit_code, logs, out_of_memory_at=allowed, service=service)

    def _service(self, id: str) -> str | None:
        """Of a service its own name: failures stand beside the sandbox's, which its container's only repeats."""
        owner = self.containers[id].owner if id in self.containers else ""
        return service_of(id) if owner else None

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a container's end could not be told", exc_info=task.exception())
