"""Hang-up: end the work that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive


async def unless_hung_up[Result](receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the caller hangs up; the request's body has been read.

    Raises:
        ClientDisconnect: the caller hung up.
    """
    working = asyncio.create_task(work)
    hanging_up = asyncio.create_task(_hang_up(receive))
    try:
        await asyncio.wait({working, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        hanging_up.cancel()
        working.cancel()
        await asyncio.wait({working})


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
