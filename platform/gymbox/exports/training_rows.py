"""Training rows: what rollouts become, kept on disk until it is known which of them are wanted, then written whole.

A .jsonl file has each row as it is, a .parquet file as `columns` says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Any, BinaryIO

from gymbox.datasets.files import Written, digest_of, json_line, new_file
from gymbox.datasets.sources import needed
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.exports.columns import Columns, write_parquet
from gymbox.exports.left_out import LeftOut, Reason, Unfit

GROUP = 1_000
"""Rows of a Parquet row group."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rollout that can be in the set."""

    number: int
    """In the order in which they were read."""
    rollout: str
    task: tuple[str, str]
    """Environment and task."""
    reward: float
    prompt: bytes
    """The same where rollouts were asked the very same."""
    rows: tuple[tuple[int, int], ...]
    """Where its parts stand in the store."""
    digest: bytes
    """The same where the rows are."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a rollout gives: rows, or halves of pairs."""

    prompt: Any
    """JSON that two rollouts share where they were asked the very same."""
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Exported:
    """A training set that was written."""

    written: Written
    rollouts: int
    """That were read."""
    used: int
    """That are in some row."""
    left_out: LeftOut

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.written.path),
            "rows": self.written.rows,
            "sha256": self.written.sha256,
            "rollouts": self.rollouts,
            "used": self.used,
            "left_out": {reason.value: count for reason, count in self.left_out.counts.most_common()},
            "examples": {reason.value: text for reason, text in self.left_out.examples.items()},
        }


class Store:
    """JSON values in a file, each to be had again by its place."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0

    def add(self, value: dict[str, Any]) -> tuple[int, int]:
        """Its place.

        Raises:
            ValueError: JSON has no such value.
        """
        line = json_line(value)
        self._file.seek(self._end)
        self._file.write(line)
        place = (self._end, len(line))
        self._end += len(line)
        return place

    def at(self, place: tuple[int, int]) -> dict[str, Any]:
        offset, length = place
        self._file.seek(offset)
        found: dict[str, Any] = json.loads(self._file.read(length))
        return found


@dataclass
class TrainingSet:
    """A set in the making: `read` the rollouts, choose among the candidates, `write` the rows."""

    output: Path
    beside: Path
    """Takes the name `output` at the end."""
    store: Store
    left_out: LeftOut = field(default_factory=LeftOut)
    rollouts: int = 0

    def read(
        self, readers: Sequence[RunReader], parts: Callable[[RunReader], Callable[[Rollout], Parts]], *, cut_off: bool
    ) -> list[Candidate]:
        """Those that can be in the set; the others are counted.

        Args:
            parts: gives, for a run, what makes parts of its rollouts, and raises `Unfit` for those of which none
                can be made.
            cut_off: whether an incomplete answer counts.
        """
        candidates: list[Candidate] = []
        for reader in readers:
            parts_of = parts(reader)
            for rollout in reader:
                self.rollouts += 1
                try:
                    reward = _worth(rollout, cut_off=cut_off)
                    made = parts_of(rollout)
                    rows = tuple(self.store.add(row) for row in made.rows)
                except Unfit as why:
                    self.left_out.add(rollout.id, why)
                except ValueError as error:
                    self.left_out.add(rollout.id, Unfit(Reason.NOT_TEXT, str(error)))
                else:
                    task = (rollout.environment, rollout.task)
                    whole = [made.prompt, [_without_origin(row) for row in made.rows]]
                    digests = _digest(made.prompt), _digest(whole)
                    found = Candidate(len(candidates), rollout.id, task, reward, digests[0], rows, digests[1])
                    candidates.append(found)
        return candidates

    def write(self, rows: Iterable[dict[str, Any]], columns: Columns, *, used: int) -> Exported:
        """Write them.

        Raises:
            ConfigError: there are none; then nothing is written.
        """
        if not used:
            examples = "".join(f"\n  {reason.value}: {text}" for reason, text in self.left_out.examples.items())
            told = f"of {self.rollouts} rollouts all are left out: {self.left_out}{examples}"
            raise ConfigError(f"{self.output} would be empty: {told if self.rollouts else 'there are no rollouts'}")
        if self.output.suffix.lower() == ".parquet":
            count = write_parquet(batched(rows, GROUP), columns, self.beside)
        else:
            count = 0
            with self.beside.open("xb") as file:
                for row in rows:
                    file.write(json_line({name: row.get(name) for name in columns}))
                    count += 1
        written = Written(self.output, count, digest_of(self.beside))
        return Exported(written, self.rollouts, used, self.left_out)


@contextmanager
def training_set(output: Path, *, force: bool) -> Iterator[TrainingSet]:
    """A set that takes the name `output` once the body has ended without an error.

    Raises:
        ConfigError: it is named neither .jsonl nor .parquet, is there already, or cannot be written.
    """
    if output.suffix.lower() not in (".jsonl", ".parquet"):
        raise ConfigError(f"{output}: training sets are written to .jsonl or .parquet; name the output so")
    if output.suffix.lower() == ".parquet":
        needed("pyarrow")
    with new_file(output, force=force) as beside:
        store = beside.with_name(f"{beside.name}.parts")
        try:
            with store.open("x+b") as file:
                yield TrainingSet(output, beside, Store(file))
        finally:
            store.unlink(missing_ok=True)


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """By reward; those alike in the order in which they were read."""
    return sorted(candidates, key=lambda each: (-each.reward, each.number))


def by_task(candidates: Iterable[Candidate]) -> dict[tuple[str, str], list[Candidate]]:
    """Of each task, its own."""
    tasks: dict[tuple[str, str], list[Candidate]] = {}
    for each in candidates:
        tasks.setdefault(each.task, []).append(each)
    return tasks


ORIGIN = ("environment", "task", "rollout", "reward")
"""Fields of a row that tell where it comes from."""


def origin_of(rollout: Rollout) -> dict[str, Any]:
    """These fields."""
    return {
        "environment": rollout.environment,
        "task": rollout.task,
        "rollout": rollout.id,
        "reward": rollout.reward,
    }


def _without_origin(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ORIGIN}


def refuse_masked(rollout: Rollout, masked: bool) -> None:
    """
    Raises:
        Unfit: it has `mask_sample`, and such are not wanted.
    """
    if rollout.line.get("mask_sample") and not masked:
        raise Unfit(Reason.MASKED, str(rollout.line.get("mask_reason") or "mask_sample"))


def _worth(rollout: Rollout, *, cut_off: bool) -> float:
    """Its reward, where it has one and an answer."""
    if rollout.error is not None:
        raise Unfit(Reason.ERROR, f"{rollout.error}: {rollout.detail}" if rollout.detail else rollout.error)
    if rollout.reward is None:
        raise Unfit(Reason.NO_REWARD)
    response = rollout.line.get("response")
    if not isinstance(response, dict) or not response.get("output"):
        raise Unfit(Reason.NO_ANSWER)
    if response.get("status") == "incomplete" and not cut_off:
        raise Unfit(Reason.CUT_OFF, str((response.get("incomplete_details") or {}).get("reason") or "incomplete"))
    return rollout.reward


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).digest()
