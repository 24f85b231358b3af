"""Own session: processes that no signal of our terminal reaches, from their first moment on."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

OF_A_TERMINAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP)
"""Signals that a terminal, or whoever ends or stops a job of its shell, sends to a whole group of processes."""


async def in_own_session(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process in a session of its own.

    A process leaves our group only after its fork, and a signal to the group in between would end it while we handle
    the same signal and go on. So it is born with such signals blocked, and has to unblock them to hear any.

    Args:
        options: those of `asyncio.create_subprocess_exec`.

    Raises:
        OSError: it cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_A_TERMINAL)
    try:
        # an eager task forks right here, so nothing else runs while this thread is deaf
        starting = asyncio.Task(
            asyncio.create_subprocess_exec(*command, start_new_session=True, **options),
            loop=asyncio.get_running_loop(),
            eager_start=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return await starting
