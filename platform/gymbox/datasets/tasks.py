"""Tasks: a JSONL file of task rows in the making, checked whole before it has its name."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymbox.dataset_index import Index, KeyedPrompt, index_of
from gymbox.datasets.files import Written, new_file
from gymbox.datasets.shapes import Misfit
from gymbox.datasets.sources import Source, SourceRow, rows_of
from gymbox.errors import ConfigError
from gymbox.faults import Fault, Faults


def checked(path: Path, hidden_fields: Sequence[str] = (), prompt: KeyedPrompt | None = None) -> Index:
    """Every row of a JSONL file, checked as a run would check it; one with that prompt, where it is given.

    Raises:
        ConfigError: it cannot be read, or was changed meanwhile.
    """
    try:
        with path.open("rb") as file:
            index = index_of(path, file, hidden_fields, prompt=prompt)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if not index.offsets:
        index.faults.add([Fault(path, 1, "(file)", "holds no rows", "write one JSON object a line")])
    return index


def told(faults: Faults) -> str:
    """All faults, those that are shown and how many more there are."""
    said = "1 fault" if faults.count == 1 else f"{faults.count} faults"
    more = f"\n  … and {faults.count - len(faults.shown)} more" if faults.count > len(faults.shown) else ""
    return f"{said}:\n" + "\n".join(f"  {fault}" for fault in faults.shown) + more


class TaskFile:
    """Rows that are being written to a file, each with the place that it came from."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.path = path
        self.faults = faults
        self.rows = 0
        self._file = path.open("xb")
        self._names: list[str] = []
        self._sources, self._lines = array("I"), array("Q")

    def add(self, source: Source, row: SourceRow, fields: dict[str, Any]) -> None:
        """Write one row; as the bytes that it was read from, where `fields` are those of `row` itself."""
        try:
            line = row.as_line(fields)
        except ValueError as error:
            self.faults.add([Fault(Path(source.name), row.line, "(row)", str(error), "JSON has no such value")])
            return
        if not self._names or self._names[-1] != source.name:
            self._names.append(source.name)
        self._sources.append(len(self._names) - 1)
        self._lines.append(row.line)
        self._file.write(line)
        self.rows += 1

    def close(self) -> None:
        self._file.close()

    def finish(self, hidden_fields: Sequence[str] = ()) -> Index:
        """Close and check it.

        Raises:
            ConfigError: with every fault of every row, told by the place the row came from.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        index = checked(self.path, hidden_fields)
        if not self.faults.count:  # else rows are missing, and nothing is written anyway
            self.faults.add(map(self._at_its_source, index.faults.shown))
            self.faults.count += index.faults.count - len(index.faults.shown)
        refuse(self.faults)
        return index

    def _at_its_source(self, fault: Fault) -> Fault:
        if not self.rows:
            return fault
        path, line = self._place(fault.line)
        reason = fault.reason
        if fault.earlier is not None:
            reason = f"stands in {':'.join(map(str, self._place(fault.earlier)))} already"
        return replace(fault, path=path, line=line, reason=reason)

    def _place(self, line: int) -> tuple[Path, int]:
        return Path(self._names[self._sources[line - 1]]), self._lines[line - 1]


def refuse(faults: Faults) -> None:
    """
    Raises:
        ConfigError: there are faults.
    """
    if faults.count:
        raise ConfigError(f"nothing was written, for there {'is' if faults.count == 1 else 'are'} {told(faults)}")


@contextmanager
def task_file(path: Path, faults: Faults) -> Iterator[TaskFile]:
    """A `TaskFile` that is closed at the end, whatever happens."""
    file = TaskFile(path, faults)
    try:
        yield file
    finally:
        file.close()


def changed_rows(
    source: Source, change: Callable[[dict[str, Any]], dict[str, Any]], faults: Faults
) -> Iterator[tuple[SourceRow, dict[str, Any]]]:
    """Each row and what `change` makes of it; a `Misfit` that it raises goes to `faults`."""
    for row in rows_of(source, faults):
        try:
            yield row, change(row.fields)
        except Misfit as error:
            faults.add([Fault(Path(source.name), row.line, error.field, error.reason, error.remedy)])


def write_tasks(
    sources: Iterable[Source],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    output: Path,
    *,
    hidden_fields: Sequence[str] = (),
    force: bool = False,
) -> Written:
    """Change every row of some sources and write them, one after another, as checked task rows.

    Raises:
        ConfigError: with every fault; then nothing was written.
    """
    faults = Faults()
    with new_file(output, force=force) as beside, task_file(beside, faults) as file:
        for source in sources:
            for row, fields in changed_rows(source, change, faults):
                file.add(source, row, fields)
        index = file.finish(hidden_fields)
        return Written(output, file.rows, index.sha256)
