"""Copies: sandboxes that begin where another one is, and sandboxes that stand still."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from gymbox_sandbox.lifecycle import CreateSandbox, ForkSandbox, SnapshotSandbox, SnapshotView

from gymbox.controller.sandbox import FORK_LABEL, FORK_MADE_LABEL, no_own_labels
from gymbox.errors import Conflict, Invalid, Problem, SandboxEnded, SandboxPaused
from gymbox.providers import Pauses

if TYPE_CHECKING:
    from gymbox.controller.sandbox import Sandbox
    from gymbox.controller.sandboxes import Sandboxes

log = logging.getLogger(__name__)


class _Fork(NamedTuple):
    """A fork that is being made."""

    parent: str
    request: ForkSandbox
    made: asyncio.Task[list[Sandbox]]


class Copies:
    """Snapshots and forks of a controller's sandboxes, and their pauses."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._forks: dict[str, _Fork] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By sandbox: what is saved cannot be paused in the midst of it, and the other way round."""

    async def snapshot(self, id: str, request: SnapshotSandbox, *, passing: bool = False) -> SnapshotView:
        """Save a sandbox's files and what its instance knows; it goes on.

        Raises:
            NotFound, SandboxEnded: it does not live.
            Conflict: it is starting, paused or being verified, a tool runs, or its environment cannot tell what its
                instance knows (see `SnapshotSandbox.files_only`).
            Invalid: it shares its container with others.
            AtCapacity: there is no room (`snapshot_mb`).
        """
        # shielded: who hangs up must not leave half a snapshot, nor the agent standing still
        return await asyncio.shield(self._snapshot(id, request, passing))

    async def _snapshot(self, id: str, request: SnapshotSandbox, passing: bool) -> SnapshotView:
        async with self._turn(id):
            sandbox = self._usable(id)
            if sandbox.container.paused:
                raise SandboxPaused(id)
            store, provider = self._sandboxes.snapshots, self._sandboxes.provider.name
            return await store.save(id, sandbox.container, provider, request, passing=passing)

    async def fork(self, id: str, request: ForkSandbox) -> list[Sandbox]:
        """New sandboxes that begin where this one is: all of them, ready, or none.

        Raises:
            Conflict: the id is another fork's, of this sandbox or of another.
            Problem: as `snapshot` and `Sandboxes.create`.
        """
        no_own_labels(request)
        prefix = request.id or f"{id[:70]}.fork-{secrets.token_hex(3)}"
        if prefix not in self._forks:
            task = asyncio.create_task(self._fork(id, prefix, request), name=f"fork {prefix}")
            self._forks[prefix] = _Fork(id, request, task)
            task.add_done_callback(lambda done: self._forks.pop(prefix, None))
        under_way = self._forks[prefix]
        if under_way.parent != id or _essence(under_way.request) != _essence(request):
            raise Conflict(f"fork {prefix} is being made and was asked for with another request")
        try:
            return await asyncio.shield(under_way.made)
        except asyncio.CancelledError:
            log.info("who asked for fork %s has hung up; it is made all the same, for them to ask again", prefix)
            raise

    async def _fork(self, id: str, prefix: str, request: ForkSandbox) -> list[Sandbox]:
        parent, origin = self._usable(id), f"{prefix}.origin"
        requests = [
            CreateSandbox(
                id=f"{prefix}.{number}",
                environment=parent.environment.name,
                snapshot=origin,
                lease=request.lease,
                labels={**request.labels, FORK_LABEL: id, FORK_MADE_LABEL: parent.container.made},
                run=parent.request.run,
                priority=parent.request.priority,
                share=parent.request.share,
                patience=request.patience,
            )
            for number in range(request.n)
        ]
        if any(str(each.id) in self._sandboxes for each in requests):
            made = self._made(requests)
            if len(made) == request.n:
                return made
            raise Conflict(f"sandboxes {prefix}.… exist and were asked for with another request")
        await self.snapshot(id, SnapshotSandbox(id=origin, files_only=request.files_only), passing=True)
        create = partial(self._sandboxes.create, environment=parent.environment, own_labels=True)
        tries = [asyncio.ensure_future(create(each)) for each in requests]
        try:
            return await asyncio.gather(*tries)
        except BaseException:
            for one in tries:
                one.cancel()
            await asyncio.wait(tries)
            made = self._made(requests)  # not whatever else has these ids meanwhile
            await asyncio.gather(*(self._sandboxes.delete(one.id) for one in made), return_exceptions=True)
            raise
        finally:
            self._forget(origin)

    def _made(self, requests: list[CreateSandbox]) -> list[Sandbox]:
        """The living sandboxes that were made for these requests."""
        living = [(each, str(each.id)) for each in requests if str(each.id) in self._sandboxes]
        return [one for each, id in living if (one := self._sandboxes.get(id)).is_same(each)]

    def _forget(self, origin: str) -> None:
        try:
            self._sandboxes.snapshots.delete(origin)
        except Problem as error:  # the next start of a controller sweeps it
            log.warning("snapshot %s, made for a fork, is left for now: %s", origin, error)

    async def pause(self, id: str) -> Sandbox:
        """Hold all its processes where they are. Calls are refused from now on (409); those under way wait, their
        callers' clocks go on, and so do its lease and its place. What is paused already is fine.

        Raises:
            NotFound, SandboxEnded: it does not live.
            Conflict: it is starting.
            Invalid: the provider cannot, or it shares its container with others.
        """
        return await self._hold(id, True)

    async def unpause(self, id: str) -> Sandbox:
        """Let it go on; what is not paused is fine. Raises as `pause`."""
        return await self._hold(id, False)

    async def _hold(self, id: str, still: bool) -> Sandbox:
        async with self._turn(id):
            sandbox = self._usable(id)
            provider, container = self._sandboxes.provider, sandbox.container
            if not isinstance(provider, Pauses):
                raise Invalid(f"sandboxes of provider {provider.name} cannot be paused; containers can")
            pausing = still and not container.paused
            try:
                if pausing:
                    await self._sandboxes.reroute(sandbox, paused=True)  # first, so that no call gets stuck
                await (provider.pause if still else provider.unpause)(container.id)
            except BaseException as error:
                if sandbox.ended is not None and isinstance(error, Problem):
                    raise SandboxEnded(sandbox.ended) from error
                if pausing and sandbox.ended is None:
                    await self._sandboxes.reroute(sandbox, paused=False)
                raise
            if sandbox.ended is not None:
                raise SandboxEnded(sandbox.ended)
            if not still and container.paused:
                await self._sandboxes.reroute(sandbox, paused=False)
            return sandbox

    def _turn(self, id: str) -> asyncio.Lock:
        return self._turns.setdefault(id, asyncio.Lock())

    def _usable(self, id: str) -> Sandbox:
        sandbox = self._sandboxes.get(id)
        if sandbox.ended is not None:
            raise SandboxEnded(sandbox.ended)
        if sandbox.routed is None:
            raise Conflict(f"sandbox {id} is not ready yet")
        if sandbox.container.capacity > 1:
            raise Invalid(f"sandbox {id} shares its container with others of {sandbox.environment.name}")
        return sandbox


def _essence(request: ForkSandbox) -> ForkSandbox:
    """The request without how its caller waits, which makes no other fork."""
    return request.model_copy(update={"patience": 0})
