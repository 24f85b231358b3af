"""Leases: a sandbox that nobody renews ends, and so does one that has lived for as long as its environment allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gymbox_sandbox.lifecycle import Ended

from gymbox.controller.sandbox import Sandbox


class Leases:
    """Those of one controller.

    Args:
        end: ends a sandbox whose time is over.
    """

    def __init__(self, end: Callable[[Sandbox, Ended], object]) -> None:
        self._end = end

    def renew(self, sandbox: Sandbox, lease: float) -> None:
        """Let it live for `lease` seconds from now, or from when it begins; never beyond its deadline."""
        self.stop(sandbox)
        now = time.monotonic()
        sandbox.lease, sandbox.expires = lease, min(now + lease, sandbox.deadline)
        if sandbox.routed is not None:  # what it waits in line does not count
            sandbox.timer = asyncio.get_running_loop().call_later(sandbox.expires - now, self._expire, sandbox)

    def begin(self, sandbox: Sandbox) -> None:
        """It is ready, and its time begins."""
        if (allowed := sandbox.environment.manifest.timeouts.task) is not None:
            sandbox.deadline = time.monotonic() + allowed - sandbox.container.age
        self.renew(sandbox, sandbox.lease)

    def stop(self, sandbox: Sandbox) -> None:
        """It ends for another reason; a second time is fine."""
        if sandbox.timer is not None:
            sandbox.timer.cancel()

    def _expire(self, sandbox: Sandbox) -> None:
        if sandbox.expires == sandbox.deadline:
            allowed = sandbox.environment.manifest.timeouts.task
            detail = f"sandbox {sandbox.id} has lived for the {allowed:g} s that it may (timeouts.task)"
            self._end(sandbox, Ended(cause="timeout", detail=detail))
        else:
            detail = f"nobody renewed sandbox {sandbox.id} for {sandbox.lease:g} s"
            self._end(sandbox, Ended(cause="expired", detail=detail))
