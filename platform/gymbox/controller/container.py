"""Container: one server, and what a controller knows of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gymbox_sandbox.lifecycle import Ended

from gymbox.controller.line import Claim, Ticket
from gymbox.environment import Environment, Manifest
from gymbox.errors import Problem
from gymbox.providers import Started

REQUEST_LABEL = "gymbox.request"
"""JSON of the CreateSandbox that a container of its own was made for; absent where it is shared."""
DIGEST_LABEL = "gymbox.environment-digest"
POOL_LABEL = "gymbox.pool"
"""On a container that was made for a pool; whose it is, if anybody's, its claim says."""
MANIFEST_LABEL = "gymbox.manifest"
"""JSON of the manifest that a container was made with; its environment's may be another by now."""
MADE_LABEL = "gymbox.made"
"""Random: tells a container from one that had its id, and whose sandbox had the same id, before."""
MOST_TOLD = 1 << 20
"""Bytes that a server may answer when it is asked for its health or its sessions: it runs code that is not trusted."""


@dataclass(eq=False, slots=True)
class Container:
    """One server, and the sandboxes on it (`sessions` of its environment may be)."""

    id: str
    environment: Environment
    capacity: int
    labels: dict[str, str]
    claim: Claim = Claim()
    """Of the run whose sandbox had it made."""
    sandboxes: set[str] = field(default_factory=set)
    """Ids; one that has ended stays until its instance inside is gone too."""
    times: dict[str, float] = field(default_factory=dict)
    """When it got to "queued" (out of the line), "created", "started" and "ready", on the monotonic clock."""
    started: Started | None = None
    error: Problem | None = None
    """Why it did not start."""
    early_end: Ended | None = None
    """It ended before its start was through."""
    snapshot: str | None = None
    """What it begins with."""
    paused: bool = False
    age: float = 0
    """Seconds that its sandbox had lived when it was adopted, as far as that is known."""
    closing: bool = False
    """It takes no more sandboxes."""
    spare: bool = False
    """It is in a pool, for whoever asks first."""
    ticket: Ticket | None = None
    """Of the line to be started."""
    starting: asyncio.Task[None] | None = None
    idle: asyncio.TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        return not self.closing and len(self.sandboxes) < self.capacity

    @property
    def made(self) -> str:
        """What no other container has, also not one of the same id."""
        return self.labels.get(MADE_LABEL, "")

    def mark(self, phase: str) -> None:
        """It has got to this phase now."""
        self.times.setdefault(phase, time.monotonic())

    def server(self) -> tuple[str, str | None]:
        """Base address and socket of its server, once it is started."""
        assert self.started is not None
        return f"http://{self.started.address or 'sandbox'}", self.started.socket


def as_made(environment: Environment, labels: Mapping[str, str]) -> Environment:
    """An environment with the manifest that the container with these labels was made with: how many share it and what
    its network lets through is what it was, whatever the manifest says by now.

    Raises:
        ValueError: the label cannot be read.
    """
    now = environment.manifest
    if MANIFEST_LABEL in labels:
        made = Manifest.model_validate_json(labels[MANIFEST_LABEL])
    elif REQUEST_LABEL in labels:  # made before there was that label
        made = now.model_copy(update={"sessions": 1})
    elif POOL_LABEL in labels:
        made = now
    else:
        made = now.model_copy(update={"sessions": max(2, now.sessions)})
    return environment if made == now else replace(environment, manifest=made)
