"""Adoption: taking over what an earlier controller left running. What is unknown, or does not answer, is removed."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gymbox_sandbox.lifecycle import ID_PATTERN, CreateSandbox
from pydantic import ValidationError

from gymbox.controller.container import DIGEST_LABEL, MOST_TOLD, POOL_LABEL, REQUEST_LABEL, Container, as_made
from gymbox.controller.containers import Containers
from gymbox.controller.state import StateDirectory
from gymbox.environment import Environment
from gymbox.http import HttpClient
from gymbox.network import way_out
from gymbox.providers import Found, SandboxProvider, Started

log = logging.getLogger(__name__)


class Occupant(NamedTuple):
    """A sandbox that was found."""

    container: Container
    request: CreateSandbox
    exact: bool
    """Whether this is its request; else only the environment is known."""


@dataclass
class Adoption:
    """What there was. Used once, before anything is created."""

    containers: Containers
    provider: SandboxProvider
    state: StateDirectory
    http: HttpClient
    occupants: dict[str, Occupant] = field(default_factory=dict)
    """Sandboxes, by id."""
    spares: list[Container] = field(default_factory=list)
    """Containers of pools that nobody has claimed."""

    async def run(self, environment_of: Callable[[str], Environment]) -> None:
        """Look at everything that runs.

        Raises:
            Unavailable: the provider's technology does not answer.
        """
        doomed, claims = self.state.intended_deletes(), self.containers.claims.read()
        found = await self.provider.list()
        if unreadable := self.containers.claims.unreadable:
            log.warning(
                "what %s claimed cannot be read: containers of pools that nobody is known to have claimed are removed",
                ", ".join(sorted(unreadable)),
            )
        await asyncio.gather(*(self._adopt(one, environment_of, doomed, claims.get(one.id, [])) for one in found))
        there = {one.id for one in found}
        for id in claims.keys() - there:
            self.containers.claims.container_gone(id)
        self.containers.claims.drop_unreadable()
        await asyncio.gather(*(self.containers.removals.begin(id).wait() for id in doomed - there))
        # the provider knows no more of a container that a crash has seen half removed, or not yet made
        await asyncio.to_thread(self.state.clear_sockets_but, there | self.state.intended_deletes())
        # what has ended since then is not handed out
        self.occupants = {id: one for id, one in self.occupants.items() if one.container in self.containers}
        self.spares = [spare for spare in self.spares if spare in self.containers]

    async def _adopt(
        self, found: Found, environment_of: Callable[[str], Environment], doomed: set[str], claims: list[CreateSandbox]
    ) -> None:
        started = Started(found.id, found.socket, found.address, found.image)
        try:
            if found.id in doomed:
                raise LookupError("it was to be deleted")
            environment = environment_of(found.environment)
            made = as_made(environment, found.labels)
            container = Container(
                id=found.id,
                environment=made,
                capacity=made.manifest.sessions,
                labels=found.labels,
                started=started,
                paused=found.paused,
                age=max(0.0, time.time() - found.created_at) if REQUEST_LABEL in found.labels else 0,
            )
            occupants = await self._occupants_of(container, claims)
            if POOL_LABEL in container.labels and not occupants and self.containers.claims.unreadable:
                raise LookupError("a claim that cannot be read may be one of it")
            if way_out(made.manifest.network) is not None:  # which ended with the last controller
                await self.provider.reopen(self.containers.spec(container))
        except Exception as error:
            log.warning("removing %s, which cannot be adopted: %s", found.id, error)
            await self.containers.removals.begin(found.id, started).wait()
            return
        container.closing = made is not environment or found.labels.get(DIGEST_LABEL) != environment.digest
        for phase in ("queued", "created", "started", "ready"):
            container.mark(phase)
        container.spare = POOL_LABEL in container.labels and not occupants
        self.containers.keep(container)
        for one in occupants:
            assert one.request.id is not None
            container.sandboxes.add(one.request.id)
            self.occupants[one.request.id] = one
        if container.spare:
            self.spares.append(container)
        else:
            self.containers.stop_if_idle(container)

    async def _occupants_of(self, container: Container, claims: list[CreateSandbox]) -> list[Occupant]:
        """What asked for the sandboxes on a container that was found. Where several share it and nothing is noted of
        one, as a full disk may have it, the container itself tells its id."""
        if REQUEST_LABEL in container.labels:
            try:
                request = CreateSandbox.model_validate_json(container.labels[REQUEST_LABEL])
            except ValidationError as error:
                raise LookupError("its labels are not ours") from error
            health = None if container.paused else await self._ask(container, "/healthz")
            if health is not None and request.snapshot not in (None, health.get("snapshot")):
                raise LookupError(f"snapshot {request.snapshot} was not in place yet")
            return [Occupant(container, request, exact=True)]
        if container.paused:  # it was ready before, and is its sandbox's alone
            return [Occupant(container, request, exact=True) for request in claims]
        answer = await self._ask(container, "/sessions")
        found = [Occupant(container, request, exact=True) for request in claims]
        if container.capacity == 1:
            if not claims and answer.get("resets"):
                raise LookupError("it has been used, and nobody has claimed it")
            return found
        claimed = {request.id for request in claims}
        for id in answer["sessions"]:
            if re.fullmatch(ID_PATTERN, id) and id not in claimed:
                request = CreateSandbox(id=id, environment=container.environment.name)
                found.append(Occupant(container, request, exact=False))
        return found

    async def _ask(self, container: Container, path: str) -> Any:
        base, socket = container.server()
        return await self.http.json("GET", f"{base}{path}", timeout=10, socket=socket, most=MOST_TOLD)
