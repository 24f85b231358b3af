"""Log: the rollouts of a run in the order in which they ended, to be read from any place on.

A place is named by a cursor: where the last line that was read begins and ends, and its checksum. A file that a resume
has rewritten (`runner.retry_failed`) may have other lines there; then the cursor fits no more, and that is told rather
than a line left out.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gymbox.errors import Conflict
from gymbox.results import ROLLOUTS

AT_ONCE = 1024 * 1024
"""Bytes after which a read ends, with the line that it is in."""
_CURSOR = re.compile(r"([0-9]{1,15})-([0-9]{1,15})-([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and where it stands."""

    start: int
    content: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.content)

    @property
    def cursor(self) -> str:
        """The place after it."""
        return f"{self.start}-{self.end}-{zlib.crc32(self.content):08x}"


class RunLog:
    """`rollouts.jsonl` of one run. Its methods read the disk: call them in a thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROLLOUTS

    def place(self, cursor: str) -> int:
        """The byte after the line that a cursor names; 0 for an empty one.

        Raises:
            Conflict: no such line stands there (any more).
        """
        if not cursor:
            return 0
        found = _CURSOR.fullmatch(cursor)
        if found is not None:
            start, end = int(found[1]), int(found[2])
            try:
                with self._path.open("rb") as file:
                    if end <= os.fstat(file.fileno()).st_size and start < end:
                        file.seek(start)
                        if Line(start, file.read(end - start)).cursor == cursor:
                            return end
            except OSError:
                pass  # there is no file: there is no such line either
        raise Conflict("the run's results were rewritten since this cursor, or it is none of theirs: begin anew")

    def read(self, start: int, size: int | None = None, at_once: int = AT_ONCE) -> list[Line]:
        """Whole lines from there on: about `at_once` bytes of them, none that goes beyond byte `size`."""
        found, length = [], 0
        for line in self._lines(start, size):
            found.append(line)
            length += len(line.content)
            if length >= at_once:
                break
        return found

    def end_of(self, start: int, size: int | None, lines: int) -> Line | None:
        """The last of so many lines from there on; None: there is none."""
        last = None
        for _, line in zip(range(lines), self._lines(start, size), strict=False):
            last = line
        return last

    def part(self, start: int, end: int) -> bytes:
        """The bytes from one place to another, at most `AT_ONCE`."""
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(min(end - start, AT_ONCE))

    def _lines(self, start: int, size: int | None) -> Iterator[Line]:
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                for content in file:
                    if not content.endswith(b"\n") or (size is not None and start + len(content) > size):
                        return  # it is still being written
                    yield Line(start, content)
                    start += len(content)
        except FileNotFoundError:
            return
