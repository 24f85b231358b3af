"""NeMo Gym writer: a run of ours as the files that NeMo Gym's tools read."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from gymbox.errors import ConfigError
from gymbox.evaluation.line_identity import agent_of, row_of
from gymbox.evaluation.nemo_aggregates import Aggregates
from gymbox.evaluation.nemo_layout import (
    ATTEMPT,
    OWN,
    REPEAT,
    ROLLOUT_ID,
    TASK,
    NemoFiles,
    Numbering,
    failure,
    to_nemo,
)
from gymbox.evaluation.parts import planned_of
from gymbox.evaluation.rollouts import RunReader, rollout_of
from gymbox.plan import Slot
from gymbox.results import FAILURES, sync
from gymbox.runner_settings import DEFAULT_AGENT

NEMO_FOLDER = "nemo_gym"
"""Folder in a run's for its files in NeMo Gym's layout."""


@dataclass(slots=True)
class NemoWritten:
    """What was written."""

    files: NemoFiles
    rollouts: int = 0
    """With a reward."""
    failures: int = 0
    """Failed attempts."""
    inputs: int = 0
    """Rows, one a rollout."""
    unknown: int = 0
    """Rollouts that were planned and have no line: a run's folder alone does not have their rows."""


def write_nemo(
    reader: RunReader, output: Path, *, slots: Iterable[Slot] | None = None, replace: bool = False
) -> NemoWritten:
    """Write NeMo Gym's files, each whole or not at all. Memory grows with the numbers in the lines.

    Args:
        output: the file of rollouts; the others go beside it.
        slots: what was planned; without them, the rows of what was done are written as inputs.
        replace: over files that are there.

    Raises:
        ConfigError: what is read is none of our runs, or damaged; or the output is there, or cannot be written.
    """
    files = NemoFiles(output)
    listed = (files.inputs, files.failures, files.aggregates, files.rollouts)
    if not replace and (there := next((path for path in listed if path.exists()), None)):
        raise ConfigError(f"{there} is there already; give another --output")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            inputs, failures, aggregates, rollouts = (stack.enter_context(_NewFile(path)) for path in listed)
            return _Writing(reader, _numbering(reader), NemoWritten(files)).all(
                inputs.file, failures.file, rollouts.file, aggregates.file, slots
            )
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    except ValueError as error:  # the reader lets a number pass that only its figures leave out
        raise ConfigError(f"{reader.path} has what JSON has not, so it cannot be written: {error}") from error


def _numbering(reader: RunReader) -> Numbering:
    """
    Raises:
        ConfigError: a line is damaged, or not of a run of ours.
    """
    highest: dict[str, int] = {}
    agents: dict[str, set[str]] = {}
    for rollout in reader:
        if not {"rollout_id", "environment", REPEAT} <= rollout.line.keys() or rollout.index is None:
            raise ConfigError(f"{reader.path} is no run of gymbox, so there is nothing to convert")
        highest[rollout.environment] = max(highest.get(rollout.environment, -1), rollout.index)
        agents.setdefault(rollout.agent or rollout.environment, set()).add(rollout.environment)
    told = reader.inputs.get("environments") or {}
    rows = {name: (told.get(name) or {}).get("rows") for name in {**told, **highest}}
    for agent in reader.agents:  # also of what it has not come to yet, so that names stay as they are
        agents.setdefault(agent, set()).update(rows)
    crossed = reader.crossed and bool(reader.agents)
    everyone: list[str | None] = [*reader.agents] if crossed else [None]
    offsets, next_one = {}, 0
    for name, count in rows.items():
        for one in everyone:
            offsets[name, one] = next_one
            next_one += count if count is not None else highest.get(name, -1) + 1
    return Numbering(offsets, crossed, frozenset(name for name, having in agents.items() if len(having) > 1))


@dataclass(slots=True)
class _Writing:
    reader: RunReader
    numbering: Numbering
    written: NemoWritten
    attempts: Counter[str] = field(default_factory=Counter)
    """Failed ones so far, by rollout."""
    expected: Counter[int] = field(default_factory=Counter)
    """Rollouts there should be, by task."""

    def all(
        self,
        inputs: IO[str],
        failures: IO[str],
        rollouts: IO[str],
        aggregates: IO[str],
        slots: Iterable[Slot] | None,
    ) -> NemoWritten:
        found = Aggregates()
        for line in self._set_aside():
            self._fail(failures, line)
        agents: dict[str, Any] = {}
        for rollout in self.reader:
            line = rollout.line
            agents.setdefault(rollout.environment, line.get("agent_ref"))
            if slots is None:
                self._give(inputs, rollout.environment, row_of(line), line[TASK], line[REPEAT], line.get("agent_ref"))
            if rollout.reward is None:
                self._fail(failures, line)
                continue
            self._earlier(failures, line)
            told = to_nemo(line, self.numbering) | self._attempt(line)
            found.add(told)
            _put(rollouts, told)
            self.written.rollouts += 1
        for slot in slots or ():
            name, row = slot.environment.name, slot.row
            if self.reader.agents:
                agent: Any = {"name": slot.agent or DEFAULT_AGENT}
            else:
                agent = row.fields.get("agent_ref") or agents.get(name)
            self._give(inputs, name, row.fields, row.index, slot.repeat, agent)
        self.written.unknown = max(0, self._planned() - self.written.inputs)
        found.write(aggregates, self.expected)
        return self.written

    def _planned(self) -> int:
        """Rollouts there should be, as far as that is known."""
        if self.reader.agent is not None:
            return sum(each.rollouts for each in planned_of(self.reader).values())
        return self.reader.manifest.planned if self.reader.manifest else 0

    def _give(
        self, file: IO[str], environment: str, row: Mapping[str, Any], index: int, repeat: int, agent: Any
    ) -> None:
        task = self.numbering.task(environment, agent, index)
        told = {TASK: task, REPEAT: repeat, "agent_ref": self.numbering.agent(environment, agent)}
        _put(file, {**row, **told, OWN: {"environment": environment}})
        self.expected[task] += 1
        self.written.inputs += 1

    def _set_aside(self) -> Iterator[dict[str, Any]]:
        """Lines that were done again; each once, though one may stand there twice."""
        path, seen = self.reader.path / FAILURES, set()
        if not path.is_file():
            return
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                digest = blake2b(text, digest_size=16).digest()
                if text.endswith(b"\n") and digest not in seen:
                    seen.add(digest)
                    line = _failed_line(text, f"{path}:{number}")
                    if self.reader.agent in (None, agent_of(line)):
                        yield line

    def _fail(self, file: IO[str], line: Mapping[str, Any]) -> None:
        self._earlier(file, line)
        self._put_failure(file, line, to_nemo(line, self.numbering))

    def _earlier(self, file: IO[str], line: Mapping[str, Any]) -> None:
        """The attempts before the one whose line this is: a row and an error."""
        for attempt in line.get("failed_attempts") or ():
            told = to_nemo({**row_of(dict(line)), **_named(line)}, self.numbering)
            self._put_failure(
                file, line, told | failure(attempt["error"]) | {OWN: {"environment": line["environment"]}}
            )

    def _put_failure(self, file: IO[str], line: Mapping[str, Any], told: dict[str, Any]) -> None:
        _put(file, told | {ATTEMPT: self.attempts[line["rollout_id"]]})
        self.attempts[line["rollout_id"]] += 1
        self.written.failures += 1

    def _attempt(self, line: Mapping[str, Any]) -> dict[str, int]:
        before = self.attempts[line["rollout_id"]]
        return {ATTEMPT: before} if before else {}


def _failed_line(text: bytes, place: str) -> dict[str, Any]:
    """
    Raises:
        ConfigError: it is no line of ours.
    """
    try:
        line: dict[str, Any] = json.loads(text)
        rollout_of(line)
        if missing := [name for name in ("rollout_id", "environment", TASK) if line.get(name) is None]:
            raise ValueError(f"it has no {missing[0]}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{place} is no rollout: {error}; mend or remove it") from error
    return line


def _named(line: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("rollout_id", "environment", "agent_ref", TASK, REPEAT, ROLLOUT_ID)
    return {name: line[name] for name in kept if name in line}


def _put(file: IO[str], line: Mapping[str, Any]) -> None:
    file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")


class _NewFile:
    """A file that takes its place when all of it is on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.new")
        # NeMo Gym's reader refuses half a surrogate pair, which a model may well emit
        self.file = self._new.open("w", encoding="utf-8", errors="replace", newline="\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.file.close()
            self._new.unlink(missing_ok=True)
            return
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._new.replace(self._path)
        sync(self._path.parent)
