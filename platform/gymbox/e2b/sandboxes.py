"""Sandboxes: those that were asked for here, from create to ended.

They are the controller's, under the same ids; a sandbox lives by the controller's lease, which is what E2B calls its
timeout, so one whose server has vanished ends by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from gymbox_sandbox.lifecycle import CreateSandbox, SandboxView, SnapshotView

from gymbox.client import ControllerClient
from gymbox.e2b.filesystem import Filesystem
from gymbox.e2b.messages import LONGEST_LIFE, NewSandbox
from gymbox.e2b.processes import Processes
from gymbox.e2b.refusals import Away, Unserved
from gymbox.e2b.watchers import Watchers
from gymbox.environment import EnvironmentView
from gymbox.errors import Conflict, Gone, Invalid, NotFound, Problem, Unavailable
from gymbox.requests import request_of
from gymbox.sandbox_client import SandboxClient

log = logging.getLogger(__name__)

BASE = "base"
"""The template that E2B's SDK asks for when its user names none."""
LABEL = "e2b"
"""Of the controller's sandboxes that were made here, with their template, and of snapshots, with whose they are."""
STARTING = 600.0
"""Seconds that a sandbox lives at least until it is ready and its own time begins."""
PATIENCE = 30.0
"""Seconds to wait for a place while the controller is full: the SDK waits for a minute."""
MOMENT = 0.01
"""Seconds of a lease in the place of none at all."""


@dataclass(eq=False)
class Sandbox:
    """One that was made here, and ended neither here nor, as far as is known, elsewhere."""

    id: str
    token: str
    """What each call of its own must bring."""
    request: NewSandbox
    environment: EnvironmentView
    home: str
    """Its workspace: what E2B has as the user's home."""
    client: SandboxClient
    processes: Processes
    filesystem: Filesystem
    watchers: Watchers
    expires_at: float
    """Unix seconds."""

    def close(self) -> None:
        """Let go of what runs for it here; a second time is fine."""
        self.processes.close()
        self.watchers.close()


class Sandboxes:
    """All that were asked for here.

    Args:
        owner: by which the snapshots that were made here are told from others, also after a restart.
        base: the environment that stands for the template `base`; default: the controller's of that name.
    """

    def __init__(self, controller: ControllerClient, owner: str, base: str | None = None) -> None:
        self._controller = controller
        self._owner = owner
        self._base = base or BASE
        self._sandboxes: dict[str, Sandbox] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of those that are being made, by id."""
        self._closed = False

    def __getitem__(self, id: str) -> Sandbox:
        """
        Raises:
            Away: there is none of that id.
        """
        if id not in self._sandboxes:
            raise Away(id)
        return self._sandboxes[id]

    async def create(self, request: NewSandbox, key: str | None) -> Sandbox:
        """Make one.

        Args:
            key: of the caller's; with one, the same request again finds the same sandbox.

        Raises:
            Unserved: it asks for what no sandbox here can have.
            NotFound: there is no such template.
            Conflict: another request had that key, or its sandbox has ended.
            Problem: see `ControllerClient.create`.
        """
        _refuse_unserved(request)
        self._refuse_when_closed()
        self._sweep()
        id = _id(key)
        # one at a time of a key, since a caller that was not answered asks again while the first still goes on
        async with self._turns.setdefault(id, asyncio.Lock()):
            return self._again(id, request) if id in self._sandboxes else await self._made(id, request)

    async def all(self) -> list[tuple[Sandbox, SandboxView]]:
        """Those that live, with what the controller says of them."""
        views = {view.id: view for view in await self._controller.sandboxes() if view.ended is None}
        return [(sandbox, views[id]) for id, sandbox in self._sandboxes.items() if id in views]

    async def get(self, id: str) -> tuple[Sandbox, SandboxView]:
        """
        Raises:
            NotFound: none of that id lives.
        """
        sandbox = self._own(id)
        try:
            view = await self._controller.get(id)
        except NotFound:
            view = None
        if view is None or view.ended is not None:
            self._forget(id)
            why = f": {view.ended.detail}" if view is not None and view.ended is not None else ""
            raise NotFound(f"sandbox {id} has ended{why}")
        sandbox.expires_at = view.expires_at
        return sandbox, view

    async def connect(self, id: str, seconds: float | None) -> tuple[Sandbox, bool]:
        """Let it go on if it is paused, and live for at least so long; whether it was paused.

        Raises:
            NotFound: none of that id lives.
        """
        sandbox, view = await self.get(id)
        paused = view.status == "paused"
        if paused:
            await self._controller.unpause(id)
            seconds = sandbox.request.timeout if seconds is None else seconds
        if seconds is not None and (paused or time.time() + seconds > view.expires_at):
            await self.renew(id, seconds)
        return sandbox, paused

    async def renew(self, id: str, seconds: float) -> None:
        """Let it live for so long from now.

        Raises:
            NotFound: none of that id lives.
        """
        sandbox = self._own(id)
        try:
            sandbox.expires_at = (await self._controller.renew(id, max(seconds, MOMENT))).expires_at
        except (Gone, NotFound) as error:
            self._forget(id)
            raise NotFound(f"sandbox {id} has ended: {error.detail}") from error

    async def pause(self, id: str) -> None:
        """Hold all its processes; it lives for a day more.

        Raises:
            NotFound: none of that id lives.
            Conflict: it is paused already.
            Unserved: its provider cannot do that.
        """
        _, view = await self.get(id)
        if view.status == "paused":
            raise Conflict(f"sandbox {id} is paused already")
        try:
            await self._controller.pause(id)
        except Invalid as error:
            raise Unserved(error.detail) from error
        await self.renew(id, LONGEST_LIFE)

    async def snapshot(self, id: str, name: str | None) -> SnapshotView:
        """Save its files.

        Raises:
            NotFound: none of that id lives.
            Problem: see `ControllerClient.snapshot`.
        """
        self._own(id)
        return await self._controller.snapshot(id, name=name, files_only=True, labels={LABEL: self._owner})

    async def snapshots(self) -> list[SnapshotView]:
        """Those that were made here, oldest first."""
        found = await self._controller.snapshots()
        return [snapshot for snapshot in found if snapshot.labels.get(LABEL) == self._owner]

    async def delete_snapshot(self, id: str) -> None:
        """
        Raises:
            NotFound: none of that id was made here.
            Conflict: a sandbox is beginning with it right now.
        """
        if id not in [snapshot.id for snapshot in await self.snapshots()]:
            raise NotFound(f"there is no snapshot {id!r:.100} here")
        await self._controller.delete_snapshot(id)

    async def fork(self, id: str, count: int, seconds: float) -> list[Sandbox]:
        """Make so many that begin with its files, all or none.

        Raises:
            NotFound: none of that id lives.
            Problem: see `ControllerClient.fork`.
        """
        self._refuse_when_closed()
        sandbox = self._own(id)
        lease = max(STARTING, seconds)
        views = await self._controller.fork(
            id, count, files_only=True, lease=lease, labels={LABEL: sandbox.request.template_id}
        )
        begun: list[Sandbox] = []
        try:
            for view in views:
                begun.append(await self._begun(view, sandbox.request, sandbox.environment, seconds))
        except BaseException:
            await asyncio.shield(asyncio.gather(*(self._discard(view.id) for view in views)))
            raise
        return begun

    async def delete(self, id: str) -> None:
        """End it.

        Raises:
            NotFound: none of that id lives.
        """
        self._own(id)
        with suppress(NotFound):
            await self._controller.delete(id)
        self._forget(id)

    async def close(self) -> None:
        """End all, and make no more; what cannot be ended is left to its lease."""
        self._closed = True
        await asyncio.gather(*(self._discard(id) for id in list(self._sandboxes)))

    async def _discard(self, id: str) -> None:
        """End it, or else leave it to its lease."""
        self._forget(id)
        try:
            await self._controller.delete(id)
        except NotFound:
            pass
        except Problem as error:
            log.warning("cannot delete sandbox %s, which is left to its lease: %s", id, error)

    async def _template(self, name: str) -> tuple[EnvironmentView, str | None]:
        """The environment of a template, and the snapshot where it is one.

        Raises:
            NotFound: there is none of that name.
        """
        environment = self._base if name == BASE else name
        try:
            return await self._controller.environment(environment), None
        except (NotFound, Invalid) as error:
            for snapshot in await self.snapshots():
                if snapshot.id == name:
                    return await self._controller.environment(snapshot.environment), name
            hint = " (gymbox serve e2b --base says which environment that is)" if name == BASE else ""
            raise NotFound(f"there is no template {name!r}{hint}: {error.detail}") from error

    async def _begun(
        self, view: SandboxView, request: NewSandbox, environment: EnvironmentView, seconds: float
    ) -> Sandbox:
        """One that is ready; it is ended again where it cannot be used."""
        client = self._controller.open(view, environment)
        try:
            home = (await client.exec(["/bin/sh", "-c", "pwd -P"])).stdout.removesuffix("\n")
            sandbox = Sandbox(
                view.id,
                secrets.token_urlsafe(32),
                request,
                environment,
                home,
                client,
                Processes(client, home, request.env_vars),
                Filesystem(client, home),
                Watchers(client),
                view.expires_at,
            )
            self._refuse_when_closed()
            self._sandboxes[view.id] = sandbox
            await self.renew(view.id, seconds)
        except BaseException:
            await asyncio.shield(self._discard(view.id))
            raise
        return sandbox

    async def _made(self, id: str, request: NewSandbox) -> Sandbox:
        environment, snapshot = await self._template(request.template_id)
        _check_network(request, environment)
        wanted = request_of(
            CreateSandbox,
            id=id,
            environment=environment.name,
            lease=max(STARTING, request.timeout),
            labels={LABEL: request.template_id},
            patience=PATIENCE,
            snapshot=snapshot,
        )
        try:
            view = await self._controller.create(wanted)
        except Gone as error:
            raise Conflict(f"the sandbox of this idempotency key has ended: {error.detail}") from error
        return await self._begun(view, request, environment, request.timeout)

    def _again(self, id: str, request: NewSandbox) -> Sandbox:
        if self._sandboxes[id].request != request:
            raise Conflict("another request had this idempotency key")
        return self._sandboxes[id]

    def _own(self, id: str) -> Sandbox:
        if id not in self._sandboxes:
            raise NotFound(f"there is no sandbox {id!r:.100} here")
        return self._sandboxes[id]

    def _forget(self, id: str) -> None:
        if (sandbox := self._sandboxes.pop(id, None)) is not None:
            sandbox.close()

    def _sweep(self) -> None:
        """Forget those whose time was over a while ago and that nobody has asked for since."""
        late = time.time() - STARTING
        for id in [id for id, sandbox in self._sandboxes.items() if sandbox.expires_at < late]:
            self._forget(id)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Unavailable("this server is stopping")


def _id(key: str | None) -> str:
    """What a sandbox is called: letters and digits, as E2B's are; the same for the same key."""
    return f"i{hashlib.sha256(key.encode()).hexdigest()[:24] if key else secrets.token_hex(12)}"


def _refuse_unserved(request: NewSandbox) -> None:
    asked: dict[str, Any] = {
        "lifecycle on_timeout pause": request.auto_pause,
        "lifecycle auto_resume": request.auto_resume.get("enabled"),
        "network": request.network,
        "mcp": request.mcp,
        "iam": request.iam,
        "volume_mounts": request.volume_mounts,
    }
    for name, value in asked.items():
        if value:
            raise Unserved(f"{name} is not served here")


def _check_network(request: NewSandbox, environment: EnvironmentView) -> None:
    """
    Raises:
        Unserved: it asks for another network than its environment has.
    """
    network, asked = environment.network, request.allow_internet_access
    if asked is not None and asked != (network == "open"):
        told = network if isinstance(network, str) else f"allow: {', '.join(network.allow)}"
        raise Unserved(f"allow_internet_access={asked}: the network of {environment.name} is {told}, by its manifest")
