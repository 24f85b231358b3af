"""Readiness: whether a run's models answer at all, asked before anything starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gymbox.errors import ConfigError, Problem
from gymbox.http import HttpClient
from gymbox.models import Model


def check_models(models: Iterable[Model | None]) -> list[Model]:
    """Those that there are.

    Raises:
        ConfigError: one cannot be asked as it is set (see `Model.check`).
    """
    asked = [model for model in models if model is not None]
    for model in asked:
        model.check()
    return asked


async def until_ready(models: Iterable[Model | None], http: HttpClient, timeout: float) -> None:
    """Return once these models answer; None needs no waiting for, nor does any where `timeout` is 0.

    Raises:
        ConfigError: one does not, for `timeout` seconds, or cannot be asked as it is set (see `Model.check`).
    """
    asked = check_models(models)
    if not timeout:
        return
    tasks = [asyncio.create_task(model.ready(http, timeout)) for model in asked]
    try:
        await asyncio.gather(*tasks)
    except Problem as error:
        raise ConfigError(error.detail) from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
