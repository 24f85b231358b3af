"""Held sandbox: one that is asked for until it is there, renewed while its holder lives, and deleted at the end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Protocol

from gymbox_sandbox.lifecycle import CreateSandbox, SandboxView

from gymbox.errors import AtCapacity, Gone, NotFound, Problem, StartFailed, Unavailable
from gymbox.sandbox_calls import PAUSE, TRIES

log = logging.getLogger(__name__)

LONGEST_LINE = 300.0
"""Seconds that one request stands in line; what forwards HTTP may end those that are silent for longer."""


class Controller(Protocol):
    """What it takes of a ControllerClient to hold a sandbox."""

    async def create(self, request: CreateSandbox) -> SandboxView: ...

    async def renew(self, id: str, lease: float | None = None) -> SandboxView: ...

    async def delete(self, id: str) -> None: ...


class HeldSandbox:
    """Held from when this is made until it is let go.

    Args:
        request: what is asked for, under an id.
        lease: seconds for which it outlives its holder; it is renewed three times as often.
        turns: of those who ask for sandboxes at once.
    """

    def __init__(self, controller: Controller, request: CreateSandbox, lease: float, turns: asyncio.Semaphore) -> None:
        self._controller = controller
        self._request = request
        self._lease = lease
        self._turns = turns
        self._id = str(request.id)
        """Under which it may exist from now on."""
        self._renewing = asyncio.create_task(self._renew_forever())

    async def created(self, patience: float) -> SandboxView:
        """The sandbox, asked for as often as it takes and may help; an id that is used up gets an ending.

        Args:
            patience: seconds to wait for a place.

        Raises:
            Problem: see `ControllerClient.create`.
        """
        request = self._request
        deadline = asyncio.get_running_loop().time() + patience
        sent, failures = False, 0
        while True:
            standing = 0.0
            try:
                async with self._turns:
                    left = max(0.0, deadline - asyncio.get_running_loop().time())
                    standing = min(left, LONGEST_LINE)
                    return await self._controller.create(request.model_copy(update={"patience": standing}))
            except Gone:
                if sent:
                    raise
                request = request.model_copy(update={"id": f"{str(request.id)[:90]}.{secrets.token_hex(3)}"})
                self._id = str(request.id)
            except AtCapacity as error:
                pause = error.retry_after or 1.0
                if standing == LONGEST_LINE:  # it has stood in line, and goes on standing there
                    pause = min(pause, 1.0)
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
            except StartFailed:
                raise
            except Unavailable as error:
                sent, failures = True, failures + 1
                if failures == TRIES:
                    raise
                await asyncio.sleep(error.retry_after or PAUSE * 2**failures)

    def let_go(self) -> asyncio.Task[None]:
        """Renew it no more. Returns: its deletion, under way."""
        self._renewing.cancel()
        return asyncio.create_task(delete_quietly(self._controller, self._id))

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            id = self._id
            try:
                await self._controller.renew(id, self._lease)
            except Gone:
                return
            except Problem as error:
                log.warning("cannot renew sandbox %s: %s", id, error)


async def delete_quietly(controller: Controller, id: str) -> None:
    """Delete a sandbox; what cannot be deleted is left to its lease, and logged."""
    try:
        await controller.delete(id)
    except NotFound:
        pass
    except Exception as error:
        log.warning("cannot delete sandbox %s, which is left to its lease: %s", id, error)
