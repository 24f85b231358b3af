"""Row stream: a plan whose rows come while the run goes on, from whoever feeds it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from gymbox.dataset import Row
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.plan import Plan, RunnerSettings, Slot
from gymbox.row_check import RowCheck
from gymbox.runs.control import RunControl

Rows = Iterable[dict[str, Any]] | AsyncIterable[dict[str, Any]]


class StreamedPlan(Plan):
    """The rows of an iterable, each checked as it comes; all repeats of one are given out before the next is taken.
    Also a run's `Feed`. Its length is the number of rollouts given out so far.

    Args:
        rows: a plain iterable is asked in the event loop, so it must not block.
        control: once it is stopped, no further row is waited for.
    """

    def __init__(self, environment: Environment, settings: RunnerSettings, rows: Rows, control: RunControl) -> None:
        self.settings = settings
        self.environments = [environment]
        self._datasets = []
        self._environment = environment
        self._rows = aiter(rows) if isinstance(rows, AsyncIterable) else _async(rows)
        self._control = control
        self._turn = asyncio.Lock()
        self._given = self._taken = 0
        self._row: Row | None = None
        self._repeat = 0
        self.ended = False

    def __len__(self) -> int:
        return self._given

    def sizes(self) -> dict[str, int]:
        return {self._environment.name: self._given}

    def inputs(self) -> dict[str, Any]:
        told = {"digest": self._environment.digest, "dataset": None, "rows": None}
        return {"runner": self.settings.inputs(), "environments": {self._environment.name: told}}

    async def next(self) -> Slot | None:
        """
        Raises:
            ConfigError: a row is faulty, with every fault.
            Exception: what the iterable raises.
        """
        async with self._turn:
            if self._row is None or self._repeat == self.settings.repeats_of(self._environment.name):
                self._row, self._repeat = await self._next_row(), 0
            if self._row is None:
                return None
            slot = Slot(self._environment, self._asked(self._row, self._repeat), self._repeat)
            self._repeat += 1
            self._given += 1
            return slot

    async def _next_row(self) -> Row | None:
        limit = self.settings.limit_of(self._environment.name)
        if self.ended or (limit is not None and self._taken >= limit):
            self.ended = True
            return None
        fields = await self._or_stopped()
        if fields is None:
            return None
        index, self._taken = self._taken, self._taken + 1
        return checked_row(fields, index, self._environment)

    async def _or_stopped(self) -> dict[str, Any] | None:
        """The next row's fields; None where there is none, or the run was stopped while it was waited for."""
        coming = asyncio.ensure_future(anext(self._rows, None))
        stopped = asyncio.create_task(self._control.stopped.wait())
        try:
            await asyncio.wait({coming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return None
            fields = coming.result()
            self.ended = fields is None
            return fields
        finally:
            for task in (coming, stopped):
                task.cancel()
            await asyncio.gather(coming, stopped, return_exceptions=True)


def checked_row(fields: dict[str, Any], index: int, environment: Environment) -> Row:
    """The row with these fields; without an `id` of its own it is called by its number.

    Raises:
        ConfigError: it is faulty, with every fault.
    """
    try:
        line = json.dumps(fields).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rows[{index}] cannot be written as JSON: {error}") from error
    if faults := RowCheck(Path("rows"), environment.manifest.hidden_fields).row(index, line):
        told = "\n".join(f"  rows[{index}]: {fault.field}: {fault.reason}; {fault.remedy}" for fault in faults)
        raise ConfigError(f"a row cannot be run:\n{told}")
    id = str(fields.get("id", index))
    return Row(index, id, {**fields, "id": id})


def written_rows(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows as a dataset's file.

    Raises:
        ConfigError: one cannot be written as JSON.
    """
    with path.open("w") as file:
        for index, fields in enumerate(rows):
            try:
                file.write(json.dumps(fields) + "\n")
            except (TypeError, ValueError) as error:
                raise ConfigError(f"rows[{index}] cannot be written as JSON: {error}") from error


async def _async(rows: Iterable[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for row in rows:
        yield row
