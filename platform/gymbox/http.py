"""Http: the one shared aiohttp client of a process, with pooling, bounded retries and deadlines."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Self

import aiohttp

from gymbox.errors import Problem, TimedOut, Unavailable, from_wire
from gymbox.sockets import SocketSessions

TRIES = 3
FIRST_PAUSE = 0.25
CONNECT = 10.0
"""Seconds that a connection may take to open."""
RETRY_STATUS = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status, headers, body bytes."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    def json(self) -> Any:
        """The decoded body.

        Raises:
            Unavailable: the body is not JSON.
        """
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Unavailable(f"{self.url} answered {self.status} with a body that is not JSON") from error

    def raise_for_status(self) -> Self:
        """Itself if the status is below 400.

        Raises:
            Problem: the kind that the answer describes.
        """
        if self.status < 400:
            return self
        try:
            body: Any = json.loads(self.body)
        except ValueError:
            body = self.body[:300].decode(errors="replace")
        problem = from_wire(self.status, body, where=self.url)
        if problem.retry_after is None:
            problem.retry_after = retry_after(self.headers)
        raise problem


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by the Retry-After header, which has seconds or a date (RFC 9110, 10.2.3), or by the finer
    `retry-after-ms` of some model endpoints; None where neither can be read."""
    for name, unit in (("retry-after-ms", 1000), ("Retry-After", 1)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        until = parsedate_to_datetime(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return max(0.0, (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() - time.time())


class HttpClient:
    """One pooled aiohttp session without a cookie jar; make one a process and pass it down.

    A connection that fails, and answers 429/502/503/504, are tried `TRIES` times with exponential backoff and jitter
    (Retry-After is honoured while it fits the deadline), but only where a repeat is safe: say `retry=False` for a
    call that must not run twice.
    """

    def __init__(self, *, connections: int = 4096) -> None:
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._sockets = SocketSessions(lambda address: self._open(aiohttp.UnixConnector(address, limit=256)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; safe to call twice."""
        await self._sockets.close()
        if self._session is not None:
            await self._session.close()
        self._session = None

    @property
    def in_use(self) -> bool:
        """Whether it was asked for something over TCP, and not closed since."""
        return self._session is not None

    async def session(self, socket: str | None = None) -> aiohttp.ClientSession:
        """The shared session, or the one whose every connection goes to the unix socket that is at this path now.

        Raises:
            Unavailable: there is no socket at that path.
        """
        if socket is not None:
            return await self._sockets.of(socket)
        if self._session is None:
            self._session = self._open(aiohttp.TCPConnector(limit=self._connections, limit_per_host=0))
        return self._session

    async def forget(self, socket: str) -> None:
        """Close the session of a unix socket that is no more."""
        await self._sockets.forget(socket)

    @staticmethod
    def _open(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
        # no jar: cookies of one rollout must never reach another; no total timeout: each call brings its deadline
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
            auto_decompress=True,
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        timeout: float = 60,
        retry: bool = True,
        socket: str | None = None,
        most: int | None = None,
    ) -> Answer:
        """The answer, whatever its status (`Answer.raise_for_status` turns it into a Problem).

        Args:
            timeout: seconds for everything, retries included.
            socket: path of a unix socket to go through; the host in `url` then only fills the Host header.
            most: bytes that the body may have, where who answers is not trusted; None: any number.

        Raises:
            TimedOut: no answer within `timeout`.
            Unavailable: no connection, or it broke off, `TRIES` times; or the body is larger than `most`.
        """
        pause = FIRST_PAUSE
        tries = TRIES if retry else 1
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                for attempt in range(1, tries + 1):
                    wait: float | None = None
                    try:
                        session = await self.session(socket)
                        async with session.request(
                            method, url, json=json, data=data, headers=headers, params=params
                        ) as response:
                            answer = Answer(response.status, response.headers, await _body(response, most), url)
                        if answer.status not in RETRY_STATUS or attempt == tries:
                            return answer
                        wait = retry_after(answer.headers)
                        if wait is not None and wait > deadline - asyncio.get_running_loop().time():
                            return answer
                    except (aiohttp.ClientError, ConnectionError, OSError) as error:
                        if attempt == tries:
                            raise Unavailable(f"{method} {url}: {type(error).__name__}: {error}") from error
                    await asyncio.sleep(wait if wait is not None else pause * random.uniform(0.75, 1.25))
                    pause *= 2
        except TimeoutError as error:
            raise TimedOut(f"{method} {url} did not answer within {timeout:g} s") from error
        raise AssertionError("unreachable")

    async def json(self, method: str, url: str, **options: Any) -> Any:
        """The decoded JSON body of a good answer.

        Raises:
            Problem: the kind that a bad answer describes; see `request` for the rest.
        """
        answer = (await self.request(method, url, **options)).raise_for_status()
        return answer.json() if answer.body else None

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, idle: float, socket: str | None = None, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer whose body is read as it comes; leaving the block closes the connection.

        Args:
            idle: seconds for which nothing may come.

        Raises:
            Problem: the kind that a bad answer describes. What the block itself raises passes as it is.
            TimedOut: nothing came for `idle` seconds.
            Unavailable: no connection.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=idle)
        handed = False
        try:
            session = await self.session(socket)
            async with session.request(method, url, timeout=timeout, **options) as response:
                if response.status >= 400:
                    Answer(response.status, response.headers, await response.read(), url).raise_for_status()
                handed = True
                yield response
        except Problem:
            raise
        except aiohttp.SocketTimeoutError as error:
            raise TimedOut(f"{method} {url}: nothing came for {idle:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            if handed and not isinstance(error, aiohttp.ClientError):
                raise  # of a pipe or a socket of the block's own: aiohttp's errors are all of the first kind by then
            raise Unavailable(f"{method} {url}: {type(error).__name__}: {error}") from error


async def _body(response: aiohttp.ClientResponse, most: int | None) -> bytes:
    """
    Raises:
        Unavailable: it has more bytes than that; the rest is not read.
    """
    if most is None:
        return await response.read()
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > most:
            raise Unavailable(f"{response.url} answered {response.status} with more than {most} bytes")
    return bytes(body)
