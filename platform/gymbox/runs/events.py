"""Events: a run as it goes on, as server-sent events. Source of the format: HTML Living Standard, 9.2.

progress   a RunView; about once a second while something changes; without an id, since the next one replaces it
rollout    one rollout that has ended; its id is the place in the run's log, so `Last-Event-ID` goes on after it
reset      the log was rewritten since that id: all rollouts that count now follow
end        the last RunView; with its id, a client that comes again is told (204) that there is no more
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

from gymbox.errors import Conflict
from gymbox.runs.log import Line, RunLog
from gymbox.runs.view import RunView

PROGRESS = 1.0
"""Seconds between two snapshots."""
HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that nothing on the way takes the connection for dead."""
AT_END = "!"
"""What the id of `end` has after its cursor."""


class Followed(Protocol):
    """A run to be followed."""

    log: RunLog

    @property
    def over(self) -> bool:
        """Nothing more is written."""

    @property
    def size(self) -> int | None:
        """Bytes of the log that count; None: all."""

    async def changed(self, within: float) -> None: ...

    async def view(self) -> RunView: ...


async def events(run: Followed, after: str = "") -> AsyncIterator[bytes]:
    """What happens to a run, from after the event of that id to its end."""
    cursor = after.removesuffix(AT_END)
    try:
        place = await asyncio.to_thread(run.log.place, cursor)
    except Conflict:
        place, cursor = 0, ""
        yield _event("reset", {})
    told, said = time.monotonic(), await run.view()
    yield _event("progress", said.model_dump(mode="json"))
    while True:
        over = run.over  # asked before the log is read: what it has by then is all
        lines = await asyncio.to_thread(run.log.read, place, run.size)
        for line in lines:
            place, cursor = line.end, line.cursor
            yield _rollout(line)
        if over and not lines:
            break
        now = time.monotonic()
        if now - told >= PROGRESS:
            view = await run.view()
            if _differs(view, said):
                told, said = now, view
                yield _event("progress", view.model_dump(mode="json"))
            elif now - told >= HEARTBEAT:
                told = now
                yield b": heartbeat\n\n"
        if not lines:
            await run.changed(PROGRESS)
    yield _event("end", (await run.view()).model_dump(mode="json"), id=cursor + AT_END)


def _differs(view: RunView, other: RunView) -> bool:
    passing = {"told_at", "rate", "eta"}
    return view.model_dump(exclude=passing) != other.model_dump(exclude=passing)


def told_of(content: bytes) -> dict[str, Any]:
    """What is told of a line of `rollouts.jsonl`: without row and trajectory, which `results` has."""
    record = json.loads(content)
    names = ("rollout_id", "task_id", "environment", "reward", "reward_components", "metrics", "error", "attempts")
    told = {name: record.get(name) for name in (*names, "timings", "usage")}
    return told | {"task_index": record.get("_ng_task_index"), "repeat": record.get("_ng_rollout_index")}


def _rollout(line: Line) -> bytes:
    return _event("rollout", told_of(line.content), id=line.cursor)


def _event(name: str, data: dict[str, Any], *, id: str = "") -> bytes:
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()
