"""Client: every call to a controller, as methods.

    async with HttpClient() as http:
        controller = ControllerClient("http://127.0.0.1:8710", token, http)
        async with controller.sandbox(environment) as sandbox:
            await sandbox.reset(row)
            result = await sandbox.exec("pytest -q")

What fails is raised as a Problem; a sandbox that is no more raises SandboxEnded, with the cause.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from gymbox_sandbox.lifecycle import (
    ROLLOUT_HEADER,
    CreateGroup,
    CreateSandbox,
    Ended,
    ForkSandbox,
    GroupView,
    PoolSettings,
    PoolView,
    Priority,
    SandboxView,
    SnapshotView,
)

from gymbox.environment import Environment, EnvironmentView, Manifest
from gymbox.errors import NotFound, Problem, SandboxEnded, StartFailed, Unavailable
from gymbox.held_sandbox import HeldSandbox, delete_quietly
from gymbox.http import Answer, HttpClient
from gymbox.network import Traffic
from gymbox.requests import address, in_path, request_of
from gymbox.sandbox_calls import ENDED_WAIT, Reach
from gymbox.sandbox_client import SandboxClient

if TYPE_CHECKING:
    from gymbox.judge import Judge

MOST_CREATING = 512
"""Sandboxes that one client asks for at once: requests in line hold their connections, and others need some too."""


class ControllerClient:
    """The REST API of a controller; a URL that is none raises ConfigError. Whatever is called, Unavailable is raised
    where it does not answer, TimedOut where it does not in time, Unauthorized where it does not know the token, and
    Invalid for an id or a name that is none.

    Args:
        lease: seconds for which a sandbox outlives a caller that vanished.
        patience: seconds to wait for a place while the controller is full.
        proxy_url: where this process reaches the proxy; default: where the controller says that clients do.
        judge: what the verifiers ask that need a judge; default: what the proxy serves as /models/judge.
    """

    def __init__(
        self,
        url: str,
        token: str,
        http: HttpClient,
        *,
        lease: float = 120,
        patience: float = 900,
        proxy_url: str | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.url = address(url, "controller")
        self._http = http
        self._headers = {"Authorization": f"Bearer {token}"}
        self._token = token
        self._lease = lease
        self._patience = patience
        self._proxy_url = proxy_url
        self._judge = judge
        self._judge_lock = asyncio.Lock()
        self._claim: dict[str, Any] = {}
        self._creating = asyncio.Semaphore(MOST_CREATING)

    def of_run(self, run: str, priority: Priority, share: float) -> Self:
        """The same for one run, on whose account `sandbox` asks for places; see `CreateSandbox`."""
        found = copy(self)
        found._claim = {"run": run, "priority": priority, "share": share}
        return found

    async def create(self, request: CreateSandbox, *, timeout: float = 3600) -> SandboxView:
        """Create a sandbox; with an id of the caller's it may be asked again and is created once.

        Raises:
            Problem: NotFound, Conflict, Gone, AtCapacity; see `Sandboxes.create`.
            StartFailed: it did not become ready.
        """
        return SandboxView.model_validate(await self._created("/sandboxes", request, timeout))

    async def create_group(self, request: CreateGroup, *, timeout: float = 3600) -> GroupView:
        """Create identical sandboxes, all or none; with an id of the caller's it may be asked again and is done once.

        Raises:
            Problem: NotFound, Invalid, Conflict, Gone, AtCapacity; see `Groups.create`.
            StartFailed: one did not become ready, so none is left.
        """
        return GroupView.model_validate(await self._created("/sandboxes:group", request, timeout))

    async def delete_group(self, id: str) -> None:
        """Delete what is left of a group.

        Raises:
            NotFound: there is none of that id.
        """
        await self._json("DELETE", f"/sandboxes:group/{in_path(id, 'group')}", timeout=120)

    async def pools(self) -> list[PoolView]:
        """How many started containers of which environments wait for requests."""
        return [PoolView.model_validate(view) for view in await self._json("GET", "/pools")]

    async def set_pool(self, environment: str, settings: PoolSettings) -> PoolView:
        """Have so many wait from now on.

        Raises:
            NotFound: there is no such environment.
            Invalid: more than there may be sandboxes.
        """
        body = settings.model_dump(exclude_unset=True)
        return PoolView.model_validate(await self._json("PUT", _pool(environment), json=body))

    async def forecast(self, environment: str, sandboxes: int) -> None:
        """Tell how many sandboxes the run of this client (see `of_run`) will still ask for.

        Raises:
            NotFound: there is no such environment.
        """
        run = self._claim.get("run") or "client"
        path = _pool(environment, f"/forecasts/{in_path(run, 'run')}")
        await self._json("PUT", path, json={"sandboxes": sandboxes})

    async def _created(self, path: str, request: CreateSandbox, timeout: float) -> Any:
        headers = {ROLLOUT_HEADER: request.id} if request.id else {}
        return await self._started(path, request.model_dump(), headers=headers, timeout=timeout)

    async def _started(self, path: str, body: Any, **options: Any) -> Any:
        """What a request answers that starts sandboxes."""
        try:
            return await self._json("POST", path, json=body, retry=False, **options)
        except Unavailable as error:
            if isinstance(error.extra.get("ended"), dict):
                raise StartFailed(Ended.model_validate(error.extra["ended"])) from error
            raise

    async def sandboxes(
        self, *, environment: str | None = None, status: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[SandboxView]:
        """All sandboxes, without their tokens.

        Raises:
            Invalid: there is no such status.
        """
        query = [(name, value) for name, value in (("environment", environment), ("status", status)) if value]
        query += [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        found = await self._json("GET", "/sandboxes", params=query)
        return [SandboxView.model_validate(view) for view in found]

    async def get(self, id: str, *, wait_ended: float = 0) -> SandboxView:
        """One sandbox; `wait_ended` seconds (at most 60) are given to it to end.

        Raises:
            NotFound: there is none of that id.
        """
        params = {"wait_ended": f"{wait_ended:g}"}
        return SandboxView.model_validate(
            await self._json("GET", _sandbox(id), params=params, timeout=30 + wait_ended)
        )

    async def delete(self, id: str) -> None:
        """Delete a sandbox; one that has ended already is fine.

        Raises:
            NotFound: there is none of that id.
        """
        await self._json("DELETE", _sandbox(id), timeout=120)

    async def renew(self, id: str, lease: float | None = None) -> SandboxView:
        """Let it live for another lease.

        Raises:
            NotFound, Gone: it does not live.
        """
        return SandboxView.model_validate(await self._json("POST", _sandbox(id, "/renew"), json={"lease": lease}))

    async def logs(self, id: str, tail: int = 100) -> str:
        """The last lines that its container printed.

        Raises:
            NotFound: there is none of that id.
        """
        answer = await self._request("GET", _sandbox(id, "/logs"), params={"tail": str(tail)})
        return answer.body.decode(errors="replace")

    async def snapshot(
        self,
        id: str,
        *,
        name: str | None = None,
        files_only: bool = False,
        labels: Mapping[str, str] | None = None,
        timeout: float = 3600,
    ) -> SnapshotView:
        """Save a sandbox's files and what its environment's instance knows; `create` begins with it (`snapshot`).

        Args:
            name: the snapshot's id; with one, the same request may be sent again.
            files_only: leave out what the instance knows.
            labels: as of a sandbox.

        Raises:
            NotFound, Gone: the sandbox does not live.
            Conflict: it cannot be saved now, or not with what its instance knows.
            AtCapacity: there is no room for it.
        """
        body = {"id": name, "files_only": files_only, "labels": dict(labels or {})}
        found = await self._json("POST", _sandbox(id, "/snapshot"), json=body, timeout=timeout, retry=False)
        return SnapshotView.model_validate(found)

    async def fork(
        self,
        id: str,
        n: int = 1,
        *,
        name: str | None = None,
        files_only: bool = False,
        lease: float | None = None,
        labels: Mapping[str, str] | None = None,
        patience: float = 0,
        timeout: float = 3600,
    ) -> list[SandboxView]:
        """Make `n` sandboxes that begin where this one is, all or none.

        Args:
            name: they are `NAME.0`, `NAME.1`, …; with one, the same request may be sent again.
            files_only, lease, labels, patience: see ForkSandbox.

        Raises:
            Problem: as `snapshot` and `create`.
        """
        fields = {"files_only": files_only, "lease": lease, "labels": dict(labels or {}), "patience": patience}
        request = request_of(ForkSandbox, n=n, id=name, **fields)
        found = await self._started(_sandbox(id, "/fork"), request.model_dump(), timeout=timeout)
        return [SandboxView.model_validate(view) for view in found]

    async def pause(self, id: str) -> SandboxView:
        """Hold all processes of a sandbox; calls of it raise Conflict meanwhile (its `cause` is `paused`).

        Raises:
            NotFound, Gone: it does not live.
            Invalid: its provider cannot do that.
        """
        return SandboxView.model_validate(await self._json("POST", _sandbox(id, "/pause")))

    async def unpause(self, id: str) -> SandboxView:
        """Let a paused sandbox go on. Raises as `pause`."""
        return SandboxView.model_validate(await self._json("POST", _sandbox(id, "/unpause")))

    async def snapshots(self, *, environment: str | None = None) -> list[SnapshotView]:
        """All snapshots, oldest first."""
        query = {"environment": environment} if environment else {}
        return [SnapshotView.model_validate(view) for view in await self._json("GET", "/snapshots", params=query)]

    async def delete_snapshot(self, id: str) -> None:
        """
        Raises:
            NotFound: there is none of that id.
            Conflict: a sandbox is beginning with it right now.
        """
        await self._json("DELETE", f"/snapshots/{in_path(id, 'snapshot')}")

    async def traffic(self, id: str) -> Traffic:
        """What a sandbox's network policy let through and refused so far.

        Raises:
            NotFound: there is none of that id.
        """
        return Traffic.model_validate(await self._json("GET", _sandbox(id, "/network")))

    async def environments(self) -> list[Manifest]:
        """The manifests of what sandboxes can be made of."""
        return [Manifest.model_validate(manifest) for manifest in await self._json("GET", "/environments")]

    async def environment(self, name: str, *, prepare: bool = False, timeout: float = 3600) -> EnvironmentView:
        """One environment's manifest, and what its sandboxes are made with there.

        Args:
            prepare: have its image made, where it is missing, and tell which it is.

        Raises:
            NotFound: there is none of that name.
            Invalid: its image does not build; `extra["log"]` ends with the failing step.
        """
        query = {"prepare": "true"} if prepare else {}
        path = f"/environments/{in_path(name, 'environment')}"
        found = await self._json("GET", path, params=query, timeout=timeout if prepare else 60)
        return EnvironmentView.model_validate(found)

    async def judge(self) -> Judge:
        """The judge of this client, or else of the proxy, found when it is first needed.

        Raises:
            JudgeFailed: there is none.
        """
        async with self._judge_lock:
            if self._judge is None:
                from gymbox.judge import judge_of_proxy

                proxy = self._proxy_url or (await self._json("GET", "/proxy"))["url"]
                self._judge = await judge_of_proxy(proxy, self._token, self._http)
        return self._judge

    async def attach(self, id: str) -> SandboxClient:
        """A client for a sandbox that exists; of one that was reset, or began where another was, it knows the tools.

        Raises:
            NotFound: there is none of that id.
            SandboxEnded: it is no more.
        """
        view = await self.get(id)
        if view.ended is not None:
            raise SandboxEnded(view.ended)
        client = self.open(view, await self.environment(view.environment))
        if view.status == "ready" and (view.phases.reset is not None or view.snapshot is not None):
            await client.load_tools()
        return client

    def open(self, view: SandboxView, manifest: Manifest) -> SandboxClient:
        """A client for a sandbox that exists; calls go through the proxy. `attach` also finds out which tools it has.

        Raises:
            Invalid: the controller has told no address for it, since it knows of no proxy.
        """
        reach = Reach.through_proxy(view, self._proxy_url, self._token)

        async def why() -> Ended | None:
            return await self._why(view.id)

        @asynccontextmanager
        async def fresh() -> AsyncIterator[SandboxClient]:
            await delete_quietly(self, view.id)
            async with self.sandbox_of(manifest, f"{view.id[:80]}.verify-{secrets.token_hex(3)}") as clean:
                yield clean

        return SandboxClient(view.id, manifest, self._http, reach, why, fresh, self.judge)

    def sandbox(
        self, environment: Environment, *, id: str | None = None
    ) -> AbstractAsyncContextManager[SandboxClient]:
        """A sandbox of its own within the block: renewed while it lasts, deleted on every way out. Leaving never
        raises: what could not be deleted is left to its lease.

        An `id` that an earlier sandbox has used up gets an ending, so that a rollout may be done again.

        Raises:
            Problem: (on entering) see `create`; while the controller is full it waits.
        """
        return self.sandbox_of(environment.manifest, id)

    @asynccontextmanager
    async def sandbox_of(self, manifest: Manifest, id: str | None = None) -> AsyncIterator[SandboxClient]:
        """See `sandbox`; for those who have only the manifest, as the controller tells it."""
        id = id or f"{manifest.name}-{secrets.token_hex(8)}"
        request = request_of(CreateSandbox, id=id, environment=manifest.name, lease=self._lease, **self._claim)
        held = HeldSandbox(self, request, self._lease, self._creating)
        try:
            yield self.open(await held.created(self._patience), manifest)
        finally:
            # shielded: a second cancellation must not leave it behind
            await asyncio.shield(held.let_go())

    async def _why(self, id: str) -> Ended | None:
        try:
            return (await self.get(id, wait_ended=ENDED_WAIT)).ended
        except NotFound:
            return Ended(cause="lost", detail=f"the controller knows no sandbox {id} any more")
        except Problem:
            return None

    async def _request(self, method: str, path: str, **options: Any) -> Answer:
        headers = {**self._headers, **options.pop("headers", {})}
        answer = await self._http.request(method, self.url + path, headers=headers, **options)
        return answer.raise_for_status()

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        answer = await self._request(method, path, **options)
        return answer.json() if answer.body else None


def _sandbox(id: str, what: str = "") -> str:
    return f"/sandboxes/{in_path(id, 'sandbox')}{what}"


def _pool(environment: str, what: str = "") -> str:
    return f"/pools/{in_path(environment, 'environment')}{what}"
