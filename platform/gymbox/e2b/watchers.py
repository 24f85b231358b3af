"""Watchers: folders of one sandbox that are watched for those who ask from time to time what has changed."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from gymbox.background import Change
from gymbox.e2b.messages import WatchRequest
from gymbox.e2b.refusals import Code, Refused, refused
from gymbox.errors import Problem
from gymbox.sandbox_client import SandboxClient

MOST_KEPT = 4096
"""Events that wait to be asked for; with one more, the watcher ends."""
_TYPES = {"created": "CREATE", "modified": "WRITE", "attributes": "CHMOD", "deleted": "REMOVE"}


def events_of_change(change: Change) -> list[dict[str, Any]]:
    """E2B's events for a change; a move is two, as its own watches tell it.

    Raises:
        Refused: some changes were missed.
    """
    if change.kind == "overflow":
        raise Refused(Code.DATA_LOSS, "there were too many changes, and some were missed: watch anew")
    if change.kind == "moved":
        return [_event(change.path, "RENAME"), _event(change.to or "", "CREATE")]
    return [_event(change.path, _TYPES[change.kind])]


def _event(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": f"EVENT_TYPE_{kind}"}


class Watcher:
    """One watched folder."""

    def __init__(self, client: SandboxClient, path: str, recursive: bool) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events: deque[dict[str, Any]] = deque()
        self._failure: Refused | None = None
        self.task = asyncio.create_task(self._run(client, path, recursive))

    def taken(self) -> list[dict[str, Any]]:
        """What has changed since this was asked last.

        Raises:
            Refused: it is watched no more, and all before that was told.
        """
        if not self._events and self._failure is not None:
            raise self._failure
        found = list(self._events)
        self._events.clear()
        return found

    async def _run(self, client: SandboxClient, path: str, recursive: bool) -> None:
        try:
            async with client.watch(path, recursive=recursive) as changes:
                self.ready.set_result(None)
                async for change in changes:
                    self._events += events_of_change(change)
                    if len(self._events) > MOST_KEPT:
                        raise Refused(Code.DATA_LOSS, f"more than {MOST_KEPT} events were not asked for: watch anew")
            self._failure = Refused(Code.NOT_FOUND, f"{path} is watched no more")
        except (Problem, Refused) as error:
            self._failure = refused(error)
        finally:
            if not self.ready.done():
                self.ready.set_exception(self._failure or Refused(Code.UNAVAILABLE, f"{path} is watched no more"))


class Watchers:
    """Those of one sandbox."""

    def __init__(self, client: SandboxClient) -> None:
        self._client = client
        self._watchers: dict[str, tuple[Watcher, WatchRequest]] = {}

    async def watch(self, request: WatchRequest, path: str) -> str:
        """Watch a folder from now on; by which id it is asked for.

        Raises:
            Refused: it cannot be watched.
        """
        watcher = Watcher(self._client, path, request.recursive)
        try:
            await watcher.ready
        except BaseException:
            watcher.task.cancel()
            raise
        id = f"w{secrets.token_hex(8)}"
        self._watchers[id] = watcher, request
        return id

    def __getitem__(self, id: str) -> tuple[Watcher, WatchRequest]:
        """
        Raises:
            Refused: there is none of that id.
        """
        if id not in self._watchers:
            raise Refused(Code.NOT_FOUND, f"watcher {id!r:.60} not found")
        return self._watchers[id]

    def forget(self, id: str) -> None:
        """Watch no more. Raises as `[]`."""
        watcher, _ = self[id]
        watcher.task.cancel()
        del self._watchers[id]

    def close(self) -> None:
        """Watch no more; a second time is fine."""
        for id in list(self._watchers):
            self.forget(id)


async def followed(client: SandboxClient, request: WatchRequest, path: str) -> AsyncGenerator[dict[str, Any]]:
    """What changes in a folder, as it does, for who stays.

    Raises:
        Refused, Problem: it cannot be watched, or not any more.
    """
    async with client.watch(path, recursive=request.recursive) as changes:
        yield {"start": {}}
        async for change in changes:
            for event in events_of_change(change):
                yield {"filesystem": event}
