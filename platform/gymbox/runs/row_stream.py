"""Row stream: a plan whose rows come while the run goes on, from whoever feeds it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from gymbox.dataset import Row
from gymbox.datasets.templates import Prompt
from gymbox.environment import Environment
from gymbox.errors import ConfigError, nearest
from gymbox.plan import Plan, Slot
from gymbox.row_check import RowCheck, agent_named
from gymbox.run_control import RunControl
from gymbox.runner_settings import RunnerSettings

_NONE: Any = object()
"""No row; not None, which a faulty iterable may yield as one."""
Rows = Iterable[dict[str, Any]] | AsyncIterable[dict[str, Any]]


class StreamedPlan(Plan):
    """The rows of an iterable, each checked as it comes; all repeats of one are given out before the next is taken.
    Also a run's `Feed`. Its length is the number of rollouts given out so far.

    Args:
        rows: a plain iterable is asked in the event loop, so it must not block.
        control: once it is stopped, no further row is waited for.
    """

    def __init__(
        self,
        environment: Environment,
        settings: RunnerSettings,
        rows: Rows,
        control: RunControl,
        agents: Collection[str] = (),
    ) -> None:
        self._set_up([environment], settings, agents)
        self._datasets = []
        self._environment = environment
        self._rows = aiter(rows) if isinstance(rows, AsyncIterable) else _async(rows)
        self._control = control
        self._turn = asyncio.Lock()
        self._given = self._taken = 0
        self._left: Iterator[Slot] = iter(())
        """Of the row that was taken last."""
        self.ended = False

    def __len__(self) -> int:
        return self._given

    def sizes(self) -> dict[str, int]:
        return {self._environment.name: self._given}

    @property
    def uses_default_agent(self) -> bool:
        crossed, named = self.settings.cross_agents, self.settings.agent_for(self._environment.name)
        return not self.agents or not (crossed or named)  # the rows that come may name none

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
            while (slot := next(self._left, None)) is None:
                row = await self._next_row()
                if row is None:
                    return None
                self._left = self._slots_of(self._environment, row)
            self._given += 1
            return slot

    async def _next_row(self) -> Row | None:
        limit = self.settings.limit_of(self._environment.name)
        if self.ended or (limit is not None and self._taken >= limit):
            self.ended = True
            return None
        fields = await self._or_stopped()
        if fields is _NONE:
            return None
        index, self._taken = self._taken, self._taken + 1
        return checked_row(fields, index, self._environment, self._prompts[self._environment.name], self.agents)

    async def _or_stopped(self) -> Any:
        """The next row's fields; `_NONE` where there is none, or the run was stopped while it was waited for."""
        coming = asyncio.ensure_future(anext(self._rows, _NONE))
        stopped = asyncio.create_task(self._control.stopped.wait())
        try:
            await asyncio.wait({coming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return _NONE
            fields = coming.result()
            self.ended = fields is _NONE
            return fields
        finally:
            for task in (coming, stopped):
                task.cancel()
            await asyncio.gather(coming, stopped, return_exceptions=True)


def checked_row(
    fields: dict[str, Any],
    index: int,
    environment: Environment,
    prompt: Prompt | None = None,
    agents: Collection[str] = (),
) -> Row:
    """The row with these fields; without an `id` of its own it is called by its number.

    Args:
        prompt: the template that will fill it in.
        agents: names of those that it may choose from; with none, what it says of agents does not count.

    Raises:
        ConfigError: it is faulty, with every fault.
    """
    try:
        line = json.dumps(fields).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rows[{index}] cannot be written as JSON: {error}") from error
    if faults := RowCheck(Path("rows"), environment.manifest.hidden_fields, prompt).row(index, line):
        told = "\n".join(f"  rows[{index}]: {fault.field}: {fault.reason}; {fault.remedy}" for fault in faults)
        raise ConfigError(f"a row cannot be run:\n{told}")
    if agents and (name := agent_named(fields)) and name not in agents:
        raise ConfigError(f"rows[{index}] chooses agent {name!r}; {nearest(name, list(agents))}")
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
