"""Forwarding: a provider that only holds settings, and has another object do its work while it is open."""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel, PrivateAttr

from gymbox.environment import Environment
from gymbox.errors import Invalid, Unavailable
from gymbox.providers import Found, OnPhase, Pauses, Started, StartSpec


class Worker(Protocol):
    """A provider that is open: see SandboxProvider."""

    async def close(self) -> None: ...

    async def prepare(self, environment: Environment) -> str | None: ...

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started: ...

    async def reopen(self, spec: StartSpec) -> None: ...

    async def stop(self, id: str) -> None: ...

    async def list(self) -> list[Found]: ...

    async def logs(self, id: str, tail: int = 100) -> str: ...


class Forwarding[Work: Worker](BaseModel):
    """The verbs of a SandboxProvider but for `name` and `open`, which sets `_worker` once that can work."""

    _worker: Work | None = PrivateAttr(None)

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def prepare(self, environment: Environment) -> str | None:
        return await self._opened.prepare(environment)

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        return await self._opened.start(spec, on_phase)

    async def reopen(self, spec: StartSpec) -> None:
        await self._opened.reopen(spec)

    async def stop(self, id: str) -> None:
        await self._opened.stop(id)

    async def logs(self, id: str, tail: int = 100) -> str:
        return await self._opened.logs(id, tail)

    async def list(self) -> list[Found]:
        return await self._opened.list()

    async def pause(self, id: str) -> None:
        await self._pauses.pause(id)

    async def unpause(self, id: str) -> None:
        await self._pauses.unpause(id)

    @property
    def _pauses(self) -> Pauses:
        worker = self._opened
        if not isinstance(worker, Pauses):
            raise Invalid("local processes cannot be paused; containers can")
        return worker

    @property
    def _opened(self) -> Work:
        if self._worker is None:
            raise Unavailable("this provider is not open")
        return self._worker
