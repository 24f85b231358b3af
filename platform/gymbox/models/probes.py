"""Probes: whether the address of a model answers, asked beside its calls: of replicas that were ejected, and of all
before a run begins."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from gymbox.errors import ErrorKind
from gymbox.http import HttpClient
from gymbox.models.replicas import Place, Pool

log = logging.getLogger(__name__)

LONGEST_PROBE = 5.0
"""Seconds for one look at an ejected replica."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds between two tries to find an address ready; doubled each time."""
_REFUSED = frozenset({401, 402, 403, 407})


async def status_of(http: HttpClient, url: str, headers: dict[str, str], seconds: float) -> int:
    """The status of the answer to a GET, of which nothing more is read.

    Raises:
        TimeoutError, aiohttp.ClientError, OSError, ValueError: none came.
    """
    async with asyncio.timeout(seconds):
        session = await http.session()
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            status = answer.status
            answer.close()
            return status


async def until_one_answers(
    asks: Mapping[str, Callable[[float], Awaitable[int]]], seconds: float, what: str, shown: Callable[[str], str]
) -> str:
    """Ask some addresses again and again until one answers, whatever its status; what is waited for is logged once.

    Args:
        asks: by address, as `status_of` within the seconds that it is given.
        what: is there, for the log.
        shown: makes of a text what may be logged.

    Returns:
        "", or why none answered within `seconds`.
    """
    tasks = [asyncio.create_task(_until_answered(ask, url, seconds, what, shown)) for url, ask in asks.items()]
    why = ""
    try:
        for ended in asyncio.as_completed(tasks):
            why = await ended
            if not why:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return why


async def _until_answered(
    ask: Callable[[float], Awaitable[int]], url: str, seconds: float, what: str, shown: Callable[[str], str]
) -> str:
    loop = asyncio.get_running_loop()
    until, pause, told = loop.time() + seconds, FIRST_PAUSE, False
    while True:
        try:
            await ask(until - loop.time())
            return ""
        except TimeoutError:
            why = f"did not answer within {seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = f"could not be reached ({type(error).__name__}: {error})"[:300]
        if loop.time() + pause >= until:
            return why
        if not told:
            told = True
            log.warning(
                "%s; waiting for it up to %g s (runner.ready_timeout)", shown(f"{what} at {url} {why}"), seconds
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


class Probes:
    """Looks after the replicas of a pool that were ejected, one task for each.

    When a replica's pause is over it is asked before a call may try it: where it answers it is back, where it does not
    it is asked again after about `interval` seconds, and where its answer says nothing (as of a server that does not
    know the path) a call tries it, as without probes.

    Args:
        ask: the status of a replica's answer, as `status_of`.
        interval: seconds; 0 leaves all to the calls.
    """

    def __init__(self, pool: Pool, ask: Callable[[HttpClient, Place], Awaitable[int | None]], interval: float) -> None:
        self._pool = pool
        self._ask = ask
        self._interval = interval
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def watch(self, place: Place, http: HttpClient) -> None:
        """Look after this replica from now on, if it is ejected; to be told twice is fine."""
        if self._interval and place.ejected and not place.probed and not self._closed:
            place.probed = True
            task = asyncio.create_task(self._look_after(place, http))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Look no more; safe to call twice."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_after(self, place: Place, http: HttpClient) -> None:
        loop = asyncio.get_running_loop()
        try:
            while place.ejected:
                rest = place.ejected - loop.time()
                if rest > 0:
                    # many that were cut off together do not come back in one moment
                    await asyncio.sleep(rest * random.uniform(1, 1.25))
                    continue
                # who has closed the client has ended its calls, and these are of no use without
                well = await self._is_well(place, http) if http.in_use else None
                if well is None or not place.ejected:
                    return
                if well:
                    self._pool.returned(place)
                else:
                    self._pool.still_ejected(place, self._interval)
        finally:
            self._pool.unprobed(place)

    async def _is_well(self, place: Place, http: HttpClient) -> bool | None:
        """Whether it answers; None where that cannot be told."""
        try:
            status = await self._ask(http, place)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return False
        if status is None:
            return None
        if status in _REFUSED and place.fault is ErrorKind.MODEL_UNAUTHORIZED:
            return False
        if status >= 500 and status != 501:
            return False
        # 429: it is there, and its calls are told to wait
        return True if 200 <= status < 300 or status == 429 else None
