"""Sandbox: what a controller knows of one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from gymbox_sandbox.lifecycle import CreateSandbox, Ended, ForkSandbox, Phases, Route

from gymbox.controller.arrivals import essence
from gymbox.controller.container import Container
from gymbox.controller.line import Ticket
from gymbox.environment import Environment
from gymbox.errors import Invalid, Problem

OWN_LABELS = "gymbox."
"""How the names of labels begin that no caller may set."""
GROUP_LABEL = f"{OWN_LABELS}group"
"""On each sandbox of a group: its id."""
FORK_LABEL = f"{OWN_LABELS}fork"
"""On each fork: the id of the sandbox where it began."""
FORK_MADE_LABEL = f"{OWN_LABELS}fork-made"
"""On each fork: which one of that id it was (`Container.made`)."""


@dataclass(eq=False, slots=True)
class Sandbox:
    """One sandbox, for one task."""

    id: str
    request: CreateSandbox
    environment: Environment
    container: Container
    route: Route
    place: Ticket
    created_at: float = field(default_factory=time.time)
    """Unix seconds."""
    created: float = field(default_factory=time.monotonic)
    """When it was asked for; on the monotonic clock, like all times that follow."""
    claimed: float | None = None
    """When it was given a container of the pool."""
    reset: float | None = None
    """When its task was set, as far as anybody has asked its server."""
    lease: float = 0
    expires: float = 0
    deadline: float = math.inf
    """When it has lived for as long as its environment allows."""
    timer: asyncio.TimerHandle | None = None
    routed: int | None = None
    """Version of the route table that has it."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """It is ready or has ended."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ended: Ended | None = None
    error: Problem | None = None
    """Why it did not start."""
    exact: bool = True
    """Whether `request` is known; of an adopted sandbox in a shared container only the environment is."""

    @property
    def phases(self) -> Phases:
        """How long each took."""
        times = {**self.container.times, "claimed": self.claimed, "reset": self.reset}
        return Phases(**{name: max(0.0, round(at - self.created, 6)) for name, at in times.items() if at is not None})

    @property
    def group(self) -> str | None:
        """The group that it is of."""
        return self.request.labels.get(GROUP_LABEL)

    def is_same(self, request: CreateSandbox) -> bool:
        """Whether this is what the request asks for."""
        if not self.exact:
            return request.environment == self.request.environment
        return essence(request, self.id) == self.request


def no_own_labels(request: CreateSandbox | ForkSandbox) -> None:
    """
    Raises:
        Invalid: it has labels that only the controller sets.
    """
    if any(name.startswith(OWN_LABELS) for name in request.labels):
        raise Invalid(f"labels whose names start with {OWN_LABELS!r} are the controller's own")


def by_snapshot(sandboxes: Iterable[Sandbox]) -> dict[str, list[str]]:
    """The snapshots with which some of these began, and the ids of those."""
    found: dict[str, list[str]] = {}
    for sandbox in sandboxes:
        if sandbox.request.snapshot is not None:
            found.setdefault(sandbox.request.snapshot, []).append(sandbox.id)
    return found
