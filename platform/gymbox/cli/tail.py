"""Tail: the results of a run, printed as they come."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gymbox.cli.output import say, say_json
from gymbox.printable import printable
from gymbox.results import ROLLOUTS

if TYPE_CHECKING:
    from gymbox.runs.client import RunsClient

LOOK = 0.2
"""Seconds between two looks at the file."""


class Results:
    """The lines of a `rollouts.jsonl` that is being written, each once, though a resume may put another file in its
    place."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROLLOUTS
        self._file: BinaryIO | None = None
        self._seen: set[int] = set()

    def __iter__(self) -> Iterator[bytes]:
        """The whole lines that are new since the last time."""
        yield from self._rest()
        if self._file is not None and self._is_replaced(self._file):
            self._file.seek(0)
            self._seen |= {hash(line) for line in self._file}  # those that the new file has, too
            self.close()
            yield from self._rest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _rest(self) -> Iterator[bytes]:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except OSError:
                return  # there is none yet
        while True:
            place = self._file.tell()
            line = self._file.readline()
            if not line.endswith(b"\n"):
                self._file.seek(place)  # torn, or still being written
                return
            if not self._seen or hash(line) not in self._seen:
                yield line

    def _is_replaced(self, file: BinaryIO) -> bool:
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except OSError:
            return False


def follow_folder(
    folder: Path, goes_on: Callable[[], bool], lines: int, *, failed: bool, follow: bool, as_json: bool
) -> None:
    """Print the last `lines` results, then each as it comes, until the run ends."""
    results = Results(folder)
    wanted = _only(results, failed)
    for line in deque(wanted, maxlen=lines):
        _print(line, as_json)
    while follow:
        last = not goes_on()  # asked before: what was written until then is read below
        for line in _only(results, failed):
            _print(line, as_json)
        if last:
            break
        time.sleep(LOOK)
    results.close()


async def follow_stream(client: RunsClient, id: str, lines: int, failed: bool, follow: bool, as_json: bool) -> None:
    """The same of a controller's run, by its events."""
    before: deque[dict[str, Any]] = deque(maxlen=lines)
    there = (await client.get(id)).done
    if not there and not follow:
        return  # its events would only end with the run
    async for name, data in client.events(id):
        if name != "rollout":
            continue
        there -= 1
        if there >= 0:
            if not failed or data["error"]:
                before.append(data)
            if there == 0:
                for each in before:
                    _say(each, as_json)
                if not follow:
                    return
        elif not failed or data["error"]:
            _say(data, as_json)


def _say(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(json.dumps(record))
    else:
        say(told(record))


def _only(lines: Iterable[bytes], failed: bool) -> Iterator[bytes]:
    for line in lines:
        if not failed or _record(line).get("error"):
            yield line


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _print(line: bytes, as_json: bool) -> None:
    if as_json:
        say_json(line.decode(errors="replace"), nl=False)
    elif record := _record(line):
        say(told(record))


def told(record: dict[str, Any]) -> str:
    """One result on one line."""
    where = f"{record.get('environment')} {printable(str(record.get('task_id')), 60)}"
    repeat = record.get("_ng_rollout_index", record.get("repeat"))
    seconds = (record.get("timings") or {}).get("total")
    spent = f"  {seconds:.1f} s" if isinstance(seconds, int | float) else ""
    if error := record.get("error"):
        return f"{where} #{repeat}  {error['kind']} ({error['stage']}): {printable(error['detail'])}{spent}"
    return f"{where} #{repeat}  reward {record.get('reward')}{spent}"
