"""Filesystem service: `filesystem.Filesystem`, E2B's RPCs for files, but for their bytes."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from gymbox.e2b.messages import ListDirRequest, MoveRequest, PathRequest, WatcherRequest, WatchRequest, read
from gymbox.e2b.refusals import Refused
from gymbox.e2b.rpc import Call, Service
from gymbox.e2b.sandboxes import Sandbox
from gymbox.e2b.watchers import followed
from gymbox.errors import Problem


def filesystem_service() -> Service:
    """Its methods, by name."""
    return Service(
        "filesystem.Filesystem",
        unary={
            "Stat": _stat,
            "MakeDir": _make_dir,
            "Move": _move,
            "ListDir": _list_dir,
            "Remove": _remove,
            "CreateWatcher": _create_watcher,
            "GetWatcherEvents": _watcher_events,
            "RemoveWatcher": _remove_watcher,
        },
        server_stream={"WatchDir": _watch_dir},
    )


async def _stat(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    return {"entry": (await sandbox.filesystem.stat(read(PathRequest, call.body).path)).message()}


async def _make_dir(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    return {"entry": (await sandbox.filesystem.make(read(PathRequest, call.body).path)).message()}


async def _move(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    request = read(MoveRequest, call.body)
    return {"entry": (await sandbox.filesystem.move(request.source, request.destination)).message()}


async def _list_dir(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    request = read(ListDirRequest, call.body)
    entries = await sandbox.filesystem.list(request.path, request.depth or 1)
    return {"entries": [entry.message() for entry in entries]}


async def _remove(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    await sandbox.filesystem.remove(read(PathRequest, call.body).path)
    return {}


async def _watch_dir(sandbox: Sandbox, call: Call) -> AsyncGenerator[dict[str, Any]]:
    request = read(WatchRequest, call.body)
    path = sandbox.filesystem.at(request.path)
    async with aclosing(followed(sandbox.client, request, path)) as messages:
        async for message in messages:
            if request.include_entry and "filesystem" in message:
                message = {"filesystem": await _with_entry(sandbox, path, message["filesystem"])}
            yield message


async def _create_watcher(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    request = read(WatchRequest, call.body)
    return {"watcherId": await sandbox.watchers.watch(request, sandbox.filesystem.at(request.path))}


async def _watcher_events(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    watcher, request = sandbox.watchers[read(WatcherRequest, call.body).watcher_id]
    events = watcher.taken()
    if request.include_entry:
        path = sandbox.filesystem.at(request.path)
        events = [await _with_entry(sandbox, path, event) for event in events]
    return {"events": events}


async def _remove_watcher(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    sandbox.watchers.forget(read(WatcherRequest, call.body).watcher_id)
    return {}


async def _with_entry(sandbox: Sandbox, folder: str, event: dict[str, Any]) -> dict[str, Any]:
    """An event with what is at its place now, where anything is."""
    if event["type"] in ("EVENT_TYPE_REMOVE", "EVENT_TYPE_RENAME"):
        return event
    try:
        entry = await sandbox.filesystem.stat(posixpath.join(folder, event["name"]))
    except (Refused, Problem):
        return event
    return event | {"entry": entry.message()}
