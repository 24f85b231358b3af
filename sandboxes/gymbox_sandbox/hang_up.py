"""Hang-up: end the work that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive


async def unless_hung_up[Result](receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the caller hangs up; the request's body has been read.

    The work runs in the task that calls this, and has ended, its cleaning up included, when this ends.

    Raises:
        ClientDisconnect: the caller hung up.
    """
    task = asyncio.current_task()
    assert task is not None
    hung_up = over = False

    def on_end(_: asyncio.Task[None]) -> None:
        nonlocal hung_up
        if not over:
            hung_up = True
            task.cancel()

    cancelled_before = task.cancelling()
    # eager: it begins to listen at once, and not a turn of the loop later
    watch = asyncio.Task(_hang_up(receive), loop=asyncio.get_running_loop(), eager_start=True)
    watch.add_done_callback(on_end)
    try:
        return await work
    finally:
        over = True
        watch.cancel()
        # where somebody else has cancelled it meanwhile, that is what it ends of
        if hung_up and task.uncancel() <= cancelled_before:
            raise ClientDisconnect


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
