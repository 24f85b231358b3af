"""Sandbox calls: what is sent to one sandbox's server, how often it is tried, and why it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from gymbox_sandbox.lifecycle import ROLLOUT_HEADER, Ended, SandboxView

from gymbox.errors import ErrorKind, Gone, Invalid, NotFound, Problem, SandboxEnded, Unavailable
from gymbox.http import Answer, HttpClient

TRIES = 3
PAUSE = 0.2
"""Seconds before the second try; doubled for each further one."""
ENDED_WAIT = 3.0
"""Seconds that the cause of a lost connection may take to reach the controller."""

IDLE = 300.0
"""Seconds for which nothing of a download may come."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How calls get to a sandbox's server: through the proxy with tokens, or straight to its socket."""

    base: str
    socket: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tools_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For what the agent calls."""
    check: Callable[[], None] | None = None
    """Raises while nothing in the sandbox can be called; None: whoever forwards knows."""

    @classmethod
    def through_proxy(cls, view: SandboxView, proxy_url: str | None, token: str) -> Reach:
        """As the controller tells of it.

        Args:
            proxy_url: where the proxy is reached; None: where the controller says.
            token: for a sandbox of which it tells no tokens.

        Raises:
            Invalid: it tells no address, since it knows of no proxy.
        """
        if view.url is None:
            raise Invalid(f"the controller told no address for sandbox {view.id}")
        control, tools = (view.tokens.control, view.tokens.tools) if view.tokens else (token, token)
        return cls(
            base=view.url if proxy_url is None else f"{proxy_url}/sandboxes/{view.id}",
            headers={"Authorization": f"Bearer {control}", ROLLOUT_HEADER: view.id},
            tools_headers={"Authorization": f"Bearer {tools}", ROLLOUT_HEADER: view.id},
        )


Why = Callable[[], Awaitable[Ended | None]]
"""Asks the controller why a sandbox does not answer; None: it knows nothing of an end."""


class SandboxCalls:
    """To one sandbox, by the one way on which it is reached."""

    def __init__(self, sandbox: str, http: HttpClient, reach: Reach, why: Why) -> None:
        self._sandbox = sandbox
        self._http = http
        self._reach = reach
        self._why = why

    async def send(
        self,
        method: str,
        path: str,
        data: Any = None,
        *,
        timeout: float,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer:
        """One call, with its answer; a `repeatable` one is sent again if a connection breaks.

        Args:
            data: the body: bytes, or what they are read from.
            timeout: seconds for each try.
            headers: in place of those of its `Reach`.

        Raises:
            SandboxEnded: it is no more.
            SandboxPaused: it stands still.
            Unavailable: it does not answer (`rollout_kind` is sandbox_unreachable).
            Problem: what the server says is wrong.
        """
        reach = self._reach
        headers = reach.headers if headers is None else headers
        if reach.check is not None:
            reach.check()
        for attempt in range(1, TRIES + 1):
            try:
                answer = await self._http.request(
                    method,
                    reach.base + path,
                    data=data,
                    headers=headers,
                    params=params,
                    timeout=timeout,
                    retry=False,
                    socket=reach.socket,
                )
                return answer.raise_for_status()
            except (Unavailable, Gone, NotFound) as error:
                await self._explain(error)
                if attempt == TRIES or not (repeatable or _was_not_sent(error)):
                    raise _unreachable(self._sandbox, error) from error
            await asyncio.sleep(PAUSE * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def stream(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """One call whose answer is read as it comes, sent once; `options` are those of `HttpClient.stream`.

        Raises:
            Problem: as `send`, also while it is read.
        """
        options["headers"] = {**self._reach.headers, **options.get("headers", {})}
        url, socket = self._reach.base + path, self._reach.socket
        if self._reach.check is not None:
            self._reach.check()
        try:
            async with self._http.stream(method, url, socket=socket, **options) as answer:
                yield answer
        except (Unavailable, Gone, NotFound) as error:
            await self._explain(error)
            raise _unreachable(self._sandbox, error) from error

    async def tell(self, timeout: float, path: str, body: bytes, params: Mapping[str, str] | None = None) -> None:
        """Post to a path, once only. Raises as `send`."""
        await self.send("POST", path, body, params=params, timeout=timeout, repeatable=False)

    async def _explain(self, error: Problem) -> None:
        """
        Raises:
            SandboxEnded: that is why it does not answer.
            Problem: it did answer; this one is its own.
        """
        told = error.extra.get("ended")
        if told is None and self._is_its_own(error):
            raise error
        ended = await self._why()
        if ended is None and isinstance(told, dict):
            ended = Ended.model_validate(told)  # as the proxy knows it: without logs
        if ended is not None:
            raise SandboxEnded(ended) from error

    def _is_its_own(self, error: Problem) -> bool:
        """Whether the server inside has said this: its author's code, or that a file is missing. The proxy names the
        sandbox that it does not find."""
        if isinstance(error, Gone) and "cause" in error.extra:  # of a shell or a job
            return True
        return "rollout_kind" in error.extra or (
            isinstance(error, NotFound) and error.extra.get("sandbox") != self._sandbox
        )


def _was_not_sent(error: Problem) -> bool:
    return isinstance(error, NotFound) or isinstance(error.__cause__, aiohttp.ClientConnectorError)


def _unreachable(id: str, error: Problem) -> Unavailable:
    return Unavailable(
        f"sandbox {id} does not answer: {error.detail}",
        retry_after=error.retry_after,
        **error.extra,
        rollout_kind=ErrorKind.SANDBOX_UNREACHABLE.value,
    )
