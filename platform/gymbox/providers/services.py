"""Services: the containers beside a sandbox, on one engine. They start before it and go with it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from docker.errors import APIError
from docker.errors import NotFound as NoSuchContainer
from gymbox_sandbox.lifecycle import Ended

from gymbox.errors import Conflict, StartFailed
from gymbox.logs import Waits
from gymbox.providers import StartSpec
from gymbox.providers.container import CONTROLLER_LABEL, SERVICE_LABEL
from gymbox.providers.ends import never_ready
from gymbox.providers.engine import Engine, Refused
from gymbox.providers.images import ServiceImage
from gymbox.providers.service_container import service_config, service_name, service_of
from gymbox.providers.watch import Container, Watch
from gymbox.services import HealthCheck

log = logging.getLogger(__name__)

PAUSES = (0.05, 0.1, 0.2, 0.4)
"""Seconds between tries of a health check; the last one repeats. Each try costs a process in the container."""
MOMENT = 3.0
"""Seconds that a service may take before the log says that it is waited for."""
LOOK_EVERY = 0.03
"""Seconds between looks at whether a try is over."""

UntilGone = Callable[[str, Callable[[], None]], Awaitable[None]]


class Services:
    """Those of one controller.

    Args:
        until_gone: removes something of a sandbox's, however often it takes.
    """

    def __init__(self, engine: Engine, watch: Watch, controller_id: str, until_gone: UntilGone) -> None:
        self._engine = engine
        self._watch = watch
        self._controller_id = controller_id
        self._until_gone = until_gone
        self._waits = Waits(log)

    async def start(self, spec: StartSpec, images: Mapping[str, ServiceImage]) -> None:
        """Start the services of a sandbox whose network is there, each once the one before is healthy. What an earlier
        start has left of them is replaced.

        Raises:
            StartFailed: one ended, or is not healthy in time; with its log.
            Conflict: the name of one is taken by a container that is none of this sandbox's.
            Unavailable: the engine does not answer.
        """
        for name in spec.environment.manifest.services:
            await self._start(spec, name, images[name])

    async def _start(self, spec: StartSpec, name: str, image: ServiceImage) -> None:
        id, check = service_name(spec.id, name), spec.environment.manifest.services[name].health
        api = self._engine.api
        await self._free_name(id, spec.id)
        container = self._watch.containers[id] = Container(directory=None, network=False, owner=spec.id)
        container.ended = asyncio.get_running_loop().create_future()
        config = service_config(spec, name, image, self._controller_id)
        create = partial(api.create_container_from_config, config, id)
        container.key = (await self._engine.call(f"create {id}", create))["Id"]
        await self._engine.call(f"start {id}", api.start, id)
        if check is not None:
            refused: list[str] = []
            slow = f"{spec.environment.name}: waiting for service {name} to become healthy (up to {check.within:g} s)"
            try:
                async with asyncio.timeout(check.within):
                    with self._waits.of(slow, moment=MOMENT):
                        await self._until_healthy(id, check, container.ended, refused)
            except TimeoutError as error:
                why = ": ".join([" ".join(check.test), *refused[-1:]])[:400]
                detail = f"service {name} was not healthy within {check.within:g} s ({why})"
                logs = await self._watch.last_lines(id)
                raise StartFailed(Ended(cause="failed_to_start", detail=detail, logs=logs)) from error
        if container.ended.done():
            raise never_ready(await self._watch.why(id, container.ended.result()))
        container.ended = None  # from now on its end is the sandbox's

    async def _free_name(self, id: str, owner: str) -> None:
        try:
            found = await self._engine.call(f"inspect {id}", self._engine.api.inspect_container, id)
        except NoSuchContainer:
            return
        labels = found["Config"]["Labels"]
        if (labels.get(CONTROLLER_LABEL), labels.get(SERVICE_LABEL)) != (self._controller_id, owner):
            raise Conflict(f"there is a container {id} already, which is no service of {owner}")
        await self._until_gone(id, partial(self._engine.api.remove_container, found["Id"], v=True, force=True))

    async def _until_healthy(
        self, id: str, check: HealthCheck, ended: asyncio.Future[Any], refused: list[str]
    ) -> None:
        """Return once the check succeeds, or the service has ended. What the engine says to checks that it cannot run
        is added to `refused`: one in a container that has just ended, or whose program there is not."""
        for number in itertools.count():
            try:
                if await self._succeeds(id, check):
                    return
            except (APIError, Refused) as error:
                refused[:] = [error.detail if isinstance(error, Refused) else str(error)]
            if await _done_within(ended, PAUSES[min(number, len(PAUSES) - 1)]):
                return

    async def _succeeds(self, id: str, check: HealthCheck) -> bool:
        api, about = self._engine.api, f"check service {service_of(id)}"
        made = await self._engine.call(about, partial(api.exec_create, id, check.test, stdout=False, stderr=False))
        # detached, so that one that hangs holds no thread
        await self._engine.call(about, partial(api.exec_start, made["Id"], detach=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(check.timeout):
                while True:
                    await asyncio.sleep(LOOK_EVERY)
                    found = await self._engine.call(about, partial(api.exec_inspect, made["Id"]))
                    if not found["Running"]:
                        return bool(found["ExitCode"] == 0)
        return False

    async def stop(self, id: str) -> None:
        """Remove the services of a sandbox; none is fine.

        Raises:
            Unavailable: one cannot be removed.
        """
        labels = [f"{CONTROLLER_LABEL}={self._controller_id}", f"{SERVICE_LABEL}={id}"]
        list_all = partial(self._engine.api.containers, all=True, filters={"label": labels})
        keys = {row["Id"] for row in await self._engine.call(f"list the services of {id}", list_all)}
        known = {name: container for name, container in self._watch.containers.items() if container.owner == id}
        for container in known.values():
            container.stopping = True
        keys |= {container.key for container in known.values() if container.key}
        remove = self._engine.api.remove_container
        await asyncio.gather(*(self._until_gone(id, partial(remove, key, v=True, force=True)) for key in keys))
        for name in known:
            if name in self._watch.containers:
                self._watch.forget(name)

    async def logs(self, id: str, tail: int) -> str:
        """The last lines of a sandbox's services, each with its name before it; `""` where it has none."""
        lines = []
        for name, container in list(self._watch.containers.items()):
            if container.owner == id:
                with contextlib.suppress(NoSuchContainer, APIError):
                    text = await self._watch.logs(name, tail)
                    lines += [f"{service_of(name)} | {line}" for line in text.splitlines()]
        return "".join(f"{line}\n" for line in lines)


async def _done_within(future: asyncio.Future[Any], seconds: float) -> bool:
    done, _ = await asyncio.wait({future}, timeout=seconds)
    return bool(done)
