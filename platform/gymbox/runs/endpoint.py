"""Endpoint: where a process that does runs is asked about them, a unix socket that only its user can reach."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from fastapi import FastAPI

from gymbox.errors import ConfigError
from gymbox.guard import Guard
from gymbox.runs.app import Runs, add_runs
from gymbox.runs.register import HOST, Register
from gymbox.serving import Listener, new_app

log = logging.getLogger(__name__)

Announce = Callable[[str, Path], AbstractContextManager[None]]
"""Puts a run (its id and folder) into the register for as long as the block lasts."""


@asynccontextmanager
async def endpoint(runs: Runs, state: Path) -> AsyncIterator[Announce]:
    """Serve `/v1/runs` of this process. Where that cannot be, a warning says so and the runs go on without.

    Args:
        state: this user's state folder.
    """
    register = Register(state)
    app: FastAPI = new_app("gymbox run", description="The runs of one process.")
    add_runs(app, runs)
    try:
        register.live()  # which removes what killed processes left
        path = register.new_socket()
        listener = Listener(app, Guard(hosts=(HOST,)), unix=path)
    except (ConfigError, OSError) as error:
        log.warning("this run cannot be asked for its status, paused or cancelled from outside: %s", error)
        yield lambda id, folder: nullcontext()
        return
    async with listener:
        yield lambda id, folder: register.entered(id, folder, path)
