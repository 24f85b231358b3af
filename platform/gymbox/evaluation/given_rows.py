"""Given rows: what NeMo Gym sent its agents, from the file that it keeps beside its rollouts. Its verifiers drop the
fields that they do not declare, so a line of its rollouts does not have them all."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gymbox.errors import ConfigError
from gymbox.evaluation.nemo_layout import REPEAT, TASK

Place = tuple[int | None, int | None]
"""Task and repeat, which name a rollout within a file of NeMo Gym's; None where a line does not say."""


def place_of(line: dict[str, Any]) -> Place:
    """Which rollout of its file a line is of."""
    return line.get(TASK), line.get(REPEAT)


class GivenRows:
    """By task and repeat; what is in memory is where each row begins."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            ConfigError: the file cannot be read, or a line of it is no row.
        """
        self.path = path
        self._offsets: dict[Place, int] = {}
        self.repeats: Counter[int | None] = Counter()
        """By task, the rollouts there should be."""
        try:
            self._file = path.open("rb")
            weakref.finalize(self, self._file.close)
            offset = 0
            for number, line in enumerate(self._file, 1):
                if line.strip():
                    self._enter(number, line, offset)
                offset += len(line)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error

    def _enter(self, number: int, line: bytes, offset: int) -> None:
        try:
            row = from_json(line)
            key = row[TASK], row[REPEAT]
        except (ValueError, KeyError, TypeError) as error:
            told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"{self.path}:{number} is no row that NeMo Gym gave an agent: {told}") from error
        self.repeats[key[0]] += key not in self._offsets
        self._offsets[key] = offset

    def __contains__(self, key: Place) -> bool:
        return key in self._offsets

    def __getitem__(self, key: Place) -> dict[str, Any]:
        self._file.seek(self._offsets[key])
        row: dict[str, Any] = from_json(self._file.readline())
        return row

    def first_of_each_task(self) -> list[dict[str, Any]]:
        """A row of each task, whichever repeat it is of."""
        return [self[key] for key in {key[0]: key for key in self._offsets}.values()]
