"""Readiness: whether a run's models answer at all, asked before anything starts."""

from __future__ import annotations

import asyncio

from gymbox.config import Settings
from gymbox.errors import ConfigError, Problem
from gymbox.http import HttpClient


async def until_ready(settings: Settings, http: HttpClient, *, only_judge: bool = False) -> None:
    """Return once the model and the judge answer.

    Raises:
        ConfigError: one does not, for `runner.ready_timeout` seconds.
    """
    timeout = settings.runner.ready_timeout
    models = [settings.judge, None if only_judge else settings.model]
    if not timeout:
        return
    tasks = [asyncio.create_task(model.ready(http, timeout)) for model in models if model is not None]
    try:
        await asyncio.gather(*tasks)
    except Problem as error:
        raise ConfigError(error.detail) from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
