"""Memory folder: a run whose results go to whoever takes them, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from gymbox.results import RunFolder
from gymbox.run_manifest import RunManifest, Status
from gymbox.scores import Scores


class MemoryFolder(RunFolder):
    """Counts what a `RunFolder` counts and writes nothing, so it does not grow with the number of rollouts.

    Args:
        path: where the run's model calls are recorded, if they are.
    """

    def __init__(self, path: Path, *, inputs: dict[str, Any], settings: dict[str, Any], planned: int) -> None:
        self.path = path
        self.manifest = RunManifest(
            run=token_hex(4),
            inputs=inputs,
            settings=settings,
            planned=planned,
            versions={},
            started_at=datetime.now(UTC),
        )
        self.done: set[str] = set()
        self._scores = Scores(inputs)
        self._size = 0

    async def add(self, record: Mapping[str, Any]) -> None:
        """Count a rollout."""
        self._scores.add(dict(record))

    async def save(self) -> None:
        """Nothing is kept."""

    async def close(self, status: Status) -> None:
        """Note how it ended."""
        self.manifest.status, self.manifest.ended_at = status, datetime.now(UTC)
        self.manifest.done, self.manifest.scored = self.total.rollouts, self.total.scored
