"""Author: an author's code, run within its time, whose failures say what went wrong and where."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from errno import EDQUOT, ENOSPC
from typing import Any

from pydantic import ValidationError

from gymbox_sandbox.problems import Internal, Invalid, Problem, TimedOut, faults
from gymbox_sandbox.tasks import Task, Verdict

log = logging.getLogger(__name__)
LOG_LINES = 30
"""Of a traceback, in a problem's `log`."""


def task_of(row: dict[str, Any]) -> Task:
    """
    Raises:
        Invalid: the row is no task.
    """
    try:
        return Task.model_validate(row)
    except ValidationError as error:
        raise Invalid(f"the task is wrong: {faults(error)}", rollout_kind="invalid_task") from error


@asynccontextmanager
async def deadline(seconds: float, name: str, begun: float | None = None) -> AsyncIterator[None]:
    """Time for what the block does.

    Args:
        begun: when the seconds began, on the loop's clock; None for now.

    Raises:
        TimedOut: the seconds are over.
    """
    begun = asyncio.get_running_loop().time() if begun is None else begun
    try:
        async with asyncio.timeout_at(begun + seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimedOut(f"{name} did not finish within {seconds:g} s", rollout_kind="timed_out") from error


@asynccontextmanager
async def failing_as(kind: str, name: str) -> AsyncIterator[None]:
    """Turn what the author's code raises into a problem that says what and where.

    Raises:
        Internal: it raised; `rollout_kind` is `kind`, unless the reason is known better.
        Problem: it raised this one.
    """
    try:
        yield
    except Problem as problem:
        problem.extra.setdefault("rollout_kind", kind)  # its own kind alone would say that the sandbox failed
        raise
    except Exception as error:
        log.warning("%s raised", name, exc_info=True)
        # a Verdict that was given a NaN is refused while it is made, inside verify
        if isinstance(error, ValidationError) and error.title == Verdict.__name__:
            kind = "bad_verdict"
        elif isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
            kind = "disk_full"
        lines = "".join(traceback.format_exception(error)).splitlines()[-LOG_LINES:]
        raise Internal(
            f"{name} raised {type(error).__name__}: {error}", rollout_kind=kind, log="\n".join(lines)
        ) from error
