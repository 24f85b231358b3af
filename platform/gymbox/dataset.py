"""Dataset: a JSONL file of tasks, checked whole before anything starts, then read row by row.

A row ends at the newline byte and nowhere else: U+2028 and its kin are text. Memory is constant but for 8 bytes a row,
for where it begins.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from gymbox.dataset_index import Index, KeyedPrompt, index_of, stamp_of
from gymbox.environment import Environment
from gymbox.errors import ConfigError, nearest
from gymbox.faults import Fault, Faults


@dataclass(frozen=True, slots=True)
class Row:
    """One task: `fields` as in the file, with `id` as text."""

    index: int
    """Position among the rows of its file, from 0."""
    id: str
    fields: dict[str, Any]


class Dataset:
    """The rows of one file, by position. Close it when done; reading after the file has changed raises."""

    def __init__(self, path: Path, file: BinaryIO, index: Index) -> None:
        self.path = path
        self.sha256 = index.sha256
        """Hex digest of the file's bytes."""
        self.agents = frozenset(index.agents)
        """Names of agents that rows ask for."""
        self.unnamed = len(index.offsets) - sum(mentions.rows for mentions in index.agents.values())
        """Rows that ask for none."""
        self._file = file
        self._offsets: array[int] = index.offsets
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


def open_datasets(
    environments: Sequence[Environment],
    cache: Path | None = None,
    *,
    prompts: Mapping[str, KeyedPrompt | None] | None = None,
    agents: Collection[str] = (),
) -> list[Dataset]:
    """The datasets of some environments, every row of each checked.

    Args:
        cache: folder that remembers which large files were found right, so that they are not read again.
        prompts: by environment, what is to make the rows' inputs; a row that it cannot is faulty.
        agents: where there are any, a row that names another is faulty.

    Raises:
        ConfigError: with every fault of every row, or because a file cannot be read. Nothing stays open.
    """
    faults = Faults()
    datasets: list[Dataset] = []
    try:
        for environment in environments:
            datasets.append(_open(environment, faults, cache, (prompts or {}).get(environment.name), agents))
        if faults.count:
            raise ConfigError(str(faults))
    except BaseException:
        for dataset in datasets:
            dataset.close()
        raise
    return datasets


def _open(
    environment: Environment, faults: Faults, cache: Path | None, prompt: KeyedPrompt | None, agents: Collection[str]
) -> Dataset:
    path = environment.dataset
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"environment {environment.name!r}: cannot read its dataset {path}: {error.strerror}; "
            "the manifest's `dataset` names it"
        ) from error
    try:
        index = index_of(path, file, environment.manifest.hidden_fields, cache, prompt)
    except BaseException:
        file.close()
        raise
    faults.join(index.faults, 0)
    if not index.offsets:
        faults.add([Fault(path, 1, "(file)", "holds no rows", "write one JSON object a line")])
    faults.add(_of_others(path, index, agents))
    return Dataset(path, file, index)


def _of_others(path: Path, index: Index, agents: Collection[str]) -> Iterator[Fault]:
    """A fault for each agent that rows name and the run does not have."""
    for name, mentions in index.agents.items() if agents else ():
        if name not in agents:
            rows = f"; {mentions.rows} rows name it" if mentions.rows > 1 else ""
            reason = f"this run has no agent {name!r}{rows}"
            remedy = f"{nearest(name, sorted(agents))}; or add agents.{name}=…, or have each agent do every task"
            yield Fault(path, mentions.line, "agent_ref.name", reason, f"{remedy}: runner.cross_agents=true")


def _id_of(line: bytes, index: int) -> str:
    # with the index, because a row that stands twice in the file is two tasks
    return f"{hashlib.sha256(line.strip()).hexdigest()[:12]}-{index}"
