"""Dataset: a JSONL file of tasks, checked whole before anything starts, then read row by row.

A row ends at the newline byte and nowhere else: U+2028 and its kin are text. Memory is constant but for 8 bytes a row,
for where it begins.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from gymbox.dataset_index import index_of, stamp_of
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.row_check import Fault, Faults


@dataclass(frozen=True, slots=True)
class Row:
    """One task: `fields` as in the file, with `id` as text."""

    index: int
    """Position among the rows of its file, from 0."""
    id: str
    fields: dict[str, Any]


class Dataset:
    """The rows of one file, by position. Close it when done; reading after the file has changed raises."""

    def __init__(self, path: Path, file: BinaryIO, offsets: array[int], sha256: str) -> None:
        self.path = path
        self.sha256 = sha256
        """Hex digest of the file's bytes."""
        self._file = file
        self._offsets = offsets
        self._stamp = stamp_of(file)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Row:
        """
        Raises:
            ConfigError: the file is no longer the one that was checked.
        """
        if stamp_of(self._file) != self._stamp:
            raise ConfigError(f"{self.path} was changed while it was in use; start again with the file at rest")
        self._file.seek(self._offsets[index])
        line = self._file.readline()
        fields: dict[str, Any] = from_json(line)
        id = str(fields.get("id", _id_of(line, index)))
        return Row(index, id, {**fields, "id": id})

    def close(self) -> None:
        self._file.close()


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a JSONL file that are not blank, each with its number from 1.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"the dataset {path} cannot be read: {error.strerror}") from error


def open_datasets(environments: Sequence[Environment], cache: Path | None = None) -> list[Dataset]:
    """The datasets of some environments, every row of each checked.

    Args:
        cache: folder that remembers which large files were found right, so that they are not read again.

    Raises:
        ConfigError: with every fault of every row, or because a file cannot be read. Nothing stays open.
    """
    faults = Faults()
    datasets: list[Dataset] = []
    try:
        for environment in environments:
            datasets.append(_open(environment, faults, cache))
        if faults.count:
            raise ConfigError(str(faults))
    except BaseException:
        for dataset in datasets:
            dataset.close()
        raise
    return datasets


def _open(environment: Environment, faults: Faults, cache: Path | None) -> Dataset:
    path = environment.dataset
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"environment {environment.name!r}: cannot read its dataset {path}: {error.strerror}; "
            "the manifest's `dataset` names it"
        ) from error
    try:
        index = index_of(path, file, environment.manifest.hidden_fields, cache)
    except BaseException:
        file.close()
        raise
    faults.join(index.faults, 0)
    if not index.offsets:
        faults.add([Fault(path, 1, "(file)", "holds no rows", "write one JSON object a line")])
    return Dataset(path, file, index.offsets, index.sha256)


def _id_of(line: bytes, index: int) -> str:
    # with the index, because a row that stands twice in the file is two tasks
    return f"{hashlib.sha256(line.strip()).hexdigest()[:12]}-{index}"
