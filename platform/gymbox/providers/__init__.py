"""Providers: start, stop and list sandboxes on one technology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from gymbox_sandbox.lifecycle import Ended

from gymbox.environment import Environment
from gymbox.network import Traffic

BY_COMPOSE = (
    "run controller and proxy beside the engine (docker compose -f compose/compose.yaml up) "
    "and use controller=http://…"
)
"""The way on where the machine is no Linux."""


class ModelsAt(NamedTuple):
    """Where the model calls of one sandbox go."""

    url: str
    """Of the proxy, or of one model (`one`)."""
    key: str
    """That is taken there from this sandbox and no other; it never enters the sandbox."""
    one: bool = False


@dataclass(frozen=True, slots=True)
class StartSpec:
    """One container (or process) to start. Everything is decided here: nothing of a caller's goes in raw."""

    id: str
    """Name of the container; the caller picks it, so a retry is the same request."""
    environment: Environment
    directory: Path
    """Host directory for its sockets, not yet made; the provider makes it (owner, mode) and removes it in `stop`."""
    labels: dict[str, str] = field(default_factory=dict)
    """What the controller needs to adopt it after a crash."""
    disk: str | None = None
    """The block device that holds its workspace, where that is on disk; filled in by the provider."""
    models: ModelsAt | None = None
    """Where its model calls go, if its network lets them out; None: there is no proxy."""


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers."""

    id: str
    socket: str | None
    """Host path of its unix socket, or"""
    address: str | None
    """host:port."""
    image: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """A running container that `list` came upon."""

    id: str
    environment: str
    socket: str | None
    address: str | None
    image: str | None
    labels: dict[str, str]
    created_at: float
    """Unix seconds."""
    paused: bool = False


OnEnd = Callable[[str, Ended], None]
"""Called in the event loop, once, for each container that ended without `stop`."""
OnPhase = Callable[[str], None]
"""Called with "created" and "started" as `start` gets there."""


def isolation_of(provider: SandboxProvider) -> str:
    """Its name, and what isolation its sandboxes lack where it says so (`isolation_note`)."""
    return getattr(provider, "isolation_note", "").partition(":")[0] or provider.name


def base_of(provider: SandboxProvider, environment: Environment) -> str | None:
    """The digest of what an environment's image is based on, once `prepare` has made it (`base_of`)."""
    asked: Callable[[Environment], str | None] = getattr(provider, "base_of", lambda environment: None)
    return asked(environment)


def versions_of(provider: SandboxProvider) -> dict[str, str]:
    """Versions of the technology of a provider that is open, as far as it tells them (`versions`)."""
    return dict(getattr(provider, "versions", {}))


def containers_stay(provider: SandboxProvider) -> bool:
    """Whether its containers live on when their controller ends (`containers_stay`; by default they do)."""
    return bool(getattr(provider, "containers_stay", True))


def traffic_of(provider: SandboxProvider, id: str) -> Traffic:
    """What a container of a provider that is open was let through to and refused, as far as it tells (`traffic`)."""
    tell: Callable[[str], Traffic] | None = getattr(provider, "traffic", None)
    return Traffic() if tell is None else tell(id)


def lead_models(provider: SandboxProvider, id: str, models: ModelsAt) -> None:
    """Send the model calls of a container there from now on, where its network lets them out at all."""
    lead: Callable[[str, ModelsAt], None] | None = getattr(provider, "lead_models", None)
    if lead is not None:
        lead(id, models)


class SandboxProvider(Protocol):
    """Starts, stops and lists sandboxes. Three verbs; `prepare`, `reopen` and `logs` serve them."""

    @property
    def name(self) -> str: ...

    async def open(self, controller_id: str, on_end: OnEnd) -> None:
        """Connect, and watch the containers labelled with `controller_id` from now on.

        Raises:
            Unavailable: the technology does not answer; the text says what failed and two ways on.
        """

    async def close(self) -> None:
        """Let go of connections. Containers live on; safe to call twice."""

    async def prepare(self, environment: Environment) -> str | None:
        """Make sure that its image exists and return its tag (None: this provider has no images).

        One build a key, however many ask at once.

        Raises:
            ImageBuildFailed: with the failing step's log.
        """

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        """Return once the server inside answers. What a failed start made is removed before it raises.

        Starting an id that runs already adopts it; of two starts of one id at once, the later one does, and starts
        anew where the earlier one failed or was given up.

        Raises:
            StartFailed: it ended or did not answer in time; raised the moment the cause is known. With the cause
                `deleted`: `stop` came meanwhile.
            ImageBuildFailed: see `prepare`.
            Unavailable: the technology does not answer.
        """

    async def reopen(self, spec: StartSpec) -> None:
        """Open the way out of a container that `list` has found: its last one ended with who had started it. Starts
        and makes nothing; what has a way out already, or none by its network, is fine.

        Raises:
            Unavailable: it cannot be opened.
        """

    async def stop(self, id: str) -> None:
        """Remove it with everything it had; what is gone already, or never was, is fine. Ends a start under way.

        Raises:
            Unavailable: not all of it could be removed; it is kept in mind, for another `stop`.
        """

    async def list(self) -> list[Found]:
        """Everything of this controller that runs."""

    async def logs(self, id: str, tail: int = 100) -> str:
        """The last lines that it printed.

        Raises:
            NotFound: there is no such container.
        """


@runtime_checkable
class Pauses(Protocol):
    """What else a provider can do that can hold its sandboxes still."""

    async def pause(self, id: str) -> None:
        """Stop all its processes where they are; they keep their memory. What is paused already is fine.

        Raises:
            NotFound: it does not run.
            Unavailable: the technology does not answer.
        """

    async def unpause(self, id: str) -> None:
        """Let it go on; what is not paused is fine. Raises as `pause`."""
