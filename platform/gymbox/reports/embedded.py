"""Embedded: trajectories inside a page, packed so that ten thousand of them are some megabytes and none is read before
it is opened."""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from gymbox.reports.judgements import judgements
from gymbox.reports.sources import Source
from gymbox.reports.trajectories import Room, trajectory

CHUNK = 384 * 1024
"""Bytes of JSON that are packed together: enough to pack well, few enough to be read between two frames."""


class Embedded:
    """Packed trajectories, in a file that is gone when this is closed."""

    def __init__(self, budget: int) -> None:
        """
        Args:
            budget: bytes that they may take in the page.
        """
        self.left = budget
        self.chunks = 0
        self.full = False
        """Whether some had no room."""
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close closes it

    def close(self) -> None:
        """Give the file up."""
        self._file.close()

    def add(self, source: Source, rows: Sequence[int], *, room: Room, answers: bool) -> list[tuple[int, int] | None]:
        """Pack the trajectories of these rows of a run, until there is no more room; of each of its rows, the chunk it
        is in and its place there, or None. Of all that is read, one chunk is in memory at a time.

        Raises:
            ConfigError: the run has changed since its rows were read, or what is recorded of its judge is damaged.
        """
        places: list[tuple[int, int] | None] = [None] * len(source.rows)
        waiting: list[bytes] = []
        numbers: list[int] = []
        for row, rollout, file in source.lines(rows):
            recorded = source.recorded.of(rollout.line.get("sandbox"))
            left = Room(room.text, room.whole)
            told = trajectory(rollout, file, room=left, answers=answers, recorded=recorded)
            # what a judge is asked holds what only the verifier knows
            if answers and (calls := source.judged.of(_scored_in(rollout.line))):
                told["judged"] = judgements(calls, left)
            waiting.append(json.dumps(told, separators=(",", ":")).encode())
            numbers.append(row)
            if sum(map(len, waiting)) >= CHUNK:
                self._pack(waiting, numbers, places)
                if self.full:
                    break
        self._pack(waiting, numbers, places)
        return places

    def packed(self) -> Iterator[bytes]:
        """The chunks as they stand in the page, one after the other."""
        self._file.seek(0)
        yield from (line.rstrip(b"\n") for line in self._file)

    def _pack(self, waiting: list[bytes], numbers: list[int], places: list[tuple[int, int] | None]) -> None:
        if waiting and not self.full:
            chunk = pack(b"[" + b",".join(waiting) + b"]")
            if len(chunk) > self.left:
                self.full = True
            else:
                for place, row in enumerate(numbers):
                    places[row] = (self.chunks, place)
                self._file.write(chunk + b"\n")
                self.left -= len(chunk)
                self.chunks += 1
        waiting.clear()
        numbers.clear()


def pack(content: bytes) -> bytes:
    """As a browser's DecompressionStream and atob read it; the same for the same content."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0))


def _scored_in(line: Mapping[str, Any]) -> Any:
    """The sandbox that has given its reward: another than the agent had, where it was scored anew."""
    again = line.get("reverified")
    return again.get("sandbox") if isinstance(again, dict) else line.get("sandbox")
