"""Client: the runs of another process, over its socket or a controller's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from gymbox.errors import TimedOut, Unavailable
from gymbox.http import HttpClient
from gymbox.models.sse import events_of
from gymbox.requests import address, in_path
from gymbox.runs.register import HOST
from gymbox.runs.view import RunView

IDLE = 45.0
"""Seconds of silence after which a stream is dead: three of its heartbeats."""
TRIES = 5
"""Connections that may break one after the other before a stream is given up."""


class RunsClient:
    """Calls of `/v1/runs`, as methods. Whatever is called, Unavailable is raised where nobody answers, TimedOut where
    that takes more than a minute, Unauthorized where the token is not known, and Invalid for an id that is none.

    Args:
        url: of a controller; leave it out with `socket`.
        socket: of a process that does runs.

    Raises:
        ConfigError: the URL is none.
    """

    def __init__(self, http: HttpClient, *, url: str = f"http://{HOST}", token: str = "", socket: str | None = None):
        self._http = http
        self._url = f"{address(url, 'controller')}/v1/runs"
        self._socket = socket
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @classmethod
    def at(cls, http: HttpClient, socket: Path | str) -> RunsClient:
        """For the process that listens there."""
        return cls(http, socket=str(socket))

    async def all(self) -> list[RunView]:
        """Those that it does or remembers."""
        return [RunView.model_validate(each) for each in await self._json("GET", "")]

    async def get(self, id: str) -> RunView:
        """
        Raises:
            NotFound: there is none of that id.
        """
        return RunView.model_validate(await self._json("GET", _run(id)))

    async def create(self, overrides: list[str], *, id: str | None = None) -> RunView:
        """Have a run done; with an id of the caller's it may be asked again and is begun once.

        Raises:
            Invalid: these settings make no run.
            Conflict: the id is that of a run with other settings.
            AtCapacity: as many runs are live as may be.
        """
        return RunView.model_validate(await self._json("POST", "", json={"id": id, "overrides": overrides}))

    async def pause(self, id: str) -> RunView:
        """Start no further rollout until it is resumed.

        Raises:
            NotFound: there is none of that id.
            Conflict: it is not under way.
        """
        return RunView.model_validate(await self._json("POST", _run(id, "/pause")))

    async def resume(self, id: str, overrides: Sequence[str] = ()) -> RunView:
        """Go on with what was paused, interrupted or stopped by its budget.

        Raises:
            NotFound: there is none of that id.
            Conflict: it goes on already, is stopping, or has finished.
            Invalid: these settings may not be given for it, or a secret of its own is missing.
            AtCapacity: as many runs are live as may be.
        """
        asked = {"json": {"overrides": list(overrides)}} if overrides else {}
        return RunView.model_validate(await self._json("POST", _run(id, "/resume"), **asked))

    async def cancel(self, id: str, *, now: bool = False) -> RunView:
        """Stop it softly, or `now`, which drops what is under way.

        Raises:
            NotFound: there is none of that id.
            Conflict: it is not live.
        """
        return RunView.model_validate(await self._json("POST", _run(id, "/cancel"), json={"now": now}))

    async def events(self, id: str, after: str = "") -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Names and data of what happens, to the end; where the connection breaks, it goes on from there.

        Raises:
            Unavailable, TimedOut: it broke again and again.
        """
        failures = 0
        while True:
            try:
                headers = {**self._headers, **({"Last-Event-ID": after} if after else {})}
                async with self._http.stream(
                    "GET", self._url + _run(id, "/events"), idle=IDLE, socket=self._socket, headers=headers
                ) as answer:
                    if answer.status == 204:
                        return
                    async with aclosing(cast(Any, events_of(answer))) as found:
                        async for event in found:
                            failures, after = 0, event.id
                            yield event.event, json.loads(event.data)
                            if event.event == "end":
                                return
                raise Unavailable(f"the stream of run {id} ended before the run")
            except (Unavailable, TimedOut):
                failures += 1
                if failures == TRIES:
                    raise
                await asyncio.sleep(0.2 * 2**failures)

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        return await self._http.json(
            method, self._url + path, headers=self._headers, socket=self._socket, timeout=60, **options
        )


def _run(id: str, what: str = "") -> str:
    return f"/{in_path(id, 'run')}{what}"
