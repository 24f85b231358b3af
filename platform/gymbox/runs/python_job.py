"""Python job: a job whose rows come from a Python program, and whose results go there."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymbox.config import Settings
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.plan import Plan
from gymbox.results import RunFolder
from gymbox.run_manifest import RunManifest
from gymbox.runner import Feed
from gymbox.runs.job import Job, check_judge
from gymbox.runs.memory_folder import MemoryFolder
from gymbox.runs.pace import Pace, PacedFeed
from gymbox.runs.places import Places
from gymbox.runs.policy import PolicyModel
from gymbox.runs.row_stream import Rows, StreamedPlan, written_rows
from gymbox.runs.sandbox_source import SandboxSource


class PythonJob(Job):
    """A job for given environments or rows, and for results that need no folder.

    Args:
        scratch: a folder of this job's own, there from its beginning to its end.
    """

    def __init__(
        self,
        settings: Settings,
        places: Places,
        *,
        environments: Sequence[Environment],
        rows: Rows | None,
        ahead: int,
        scratch: Path,
    ) -> None:
        self.in_memory = settings.runner.output is None
        # in memory there is no folder that others could follow
        super().__init__(settings, places, announce=(lambda id, folder: nullcontext()) if self.in_memory else None)
        self.pace = Pace(ahead)
        self.model = self.policy = PolicyModel.of(settings.model)
        if self.in_memory:
            self.output = scratch
        self._given = environments
        self._rows = rows
        self._scratch = scratch

    @property
    def streams(self) -> bool:
        """Whether its rows come while it goes on."""
        return self._rows is not None and not isinstance(self._rows, Sized)

    def _environments(self) -> list[Environment]:
        found = list(self._given)
        check_judge(found, self.settings)
        if self._rows is not None:
            if len(found) != 1:
                raise ConfigError(f"rows= are for one environment, and this run has {len(found)}")
            if self.streams and self.settings.runner.resume:
                raise ConfigError("a run of rows from an iterator cannot be gone on with: give them as a list")
            if self.streams and (self.settings.runner.shard or self.settings.runner.order != "dataset"):
                raise ConfigError("rows from an iterator come in their own order: shard and order need a list")
            if not self.streams:
                path = self._scratch / "rows.jsonl"
                written_rows(self._rows, path)  # type: ignore[arg-type]
                found = [replace(found[0], manifest=found[0].manifest.model_copy(update={"dataset": str(path)}))]
        return self._of_sessions(found)

    def _plan(self, environments: Sequence[Environment]) -> Plan:
        if self.streams:
            assert self._rows is not None
            return StreamedPlan(environments[0], self.settings.runner, self._rows, self.control, self.settings.agents)
        if self._rows is None:
            return super()._plan(environments)
        try:
            return Plan(environments, self.settings.runner, agents=self.settings.agents)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(environments[0].dataset), "rows")) from None

    def _before(self, inputs: dict[str, Any]) -> RunManifest | None:
        return None if self.in_memory else super()._before(inputs)

    def _folder(self, inputs: dict[str, Any], source: SandboxSource, *, planned: int) -> RunFolder:
        if not self.in_memory:
            return super()._folder(inputs, source, planned=planned)
        return MemoryFolder(self.output, inputs=inputs, settings=self.settings.record(), planned=planned)

    def _feed(self, plan: Plan, folder: RunFolder) -> Feed:
        feed = plan if isinstance(plan, StreamedPlan) else super()._feed(plan, folder)
        return PacedFeed(feed, self.pace, self.control)

    def _notes(self, attempt: str) -> dict[str, Any]:
        return self.policy.notes(attempt)
