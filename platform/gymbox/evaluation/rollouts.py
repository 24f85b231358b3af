"""Rollouts: the lines of a run, gymbox's or NeMo Gym's, one after the other as records of what counts in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gymbox_sandbox.tasks import LARGEST

from gymbox.errors import ConfigError, nearest
from gymbox.evaluation.given_rows import GivenRows, Place, place_of
from gymbox.evaluation.line_identity import agent_of, environment_of, row_of, task_key
from gymbox.evaluation.line_shape import check_shape, object_in
from gymbox.evaluation.nemo_layout import (
    FAILURE,
    INPUTS_SUFFIX,
    JUDGE_ERROR,
    REPEAT,
    ROLLOUT_ID,
    TASK,
    from_nemo,
    nemo_files,
)
from gymbox.evaluation.renames import with_names
from gymbox.results import FAILURES, ROLLOUTS
from gymbox.run_manifest import manifest_in
from gymbox.runner_settings import DEFAULT_AGENT


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one line says. None is unknown."""

    environment: str
    agent: str | None
    """Name of the agent, or of its class."""
    task: str
    """The same in every run of the same task: its id, or else a digest of its row."""
    index: int | None
    repeat: int | None
    id: str
    reward: float | None
    error: str | None
    """Kind of error; None where there is a reward."""
    detail: str
    components: dict[str, float]
    metrics: dict[str, float]
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    began: float | None
    """Seconds since 1970."""
    seconds: float | None
    turns: int | None
    """Answers of the model."""
    tool_calls: int | None
    tool_errors: int | None
    """Tool results that tell of an error."""
    stop_reason: str | None
    attempts: int
    line: dict[str, Any] = field(repr=False, compare=False)
    """All of it; of NeMo Gym's, with what its row had more."""
    given: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    """The row as NeMo Gym's files have it; None where they do not."""
    number: int = field(default=0, compare=False)
    """Of its line in the file, from 1."""
    offset: int = field(default=0, compare=False)
    """Of its line in the file: bytes before it."""
    among_failures: bool = field(default=False, compare=False)
    """Whether that file is the one in which NeMo Gym keeps failures."""

    @property
    def row(self) -> dict[str, Any]:
        """What the rollout was made from."""
        return row_of(self.line if self.given is None else self.given)

    def at(self, path: str) -> Any:
        """What the line has at a dotted path (`verifier_metadata.subset`); None if nothing."""
        value: Any = self.line
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value


class RunReader:
    """Rollouts of a run's folder, of a folder of NeMo Gym's, or of a JSONL file with what NeMo Gym has beside it; each
    iteration reads it anew and keeps one line in memory.

    Of NeMo Gym's, a rollout that only its failures tell of has an error. After an iteration `torn` says how many bytes
    of an unfinished last line were left out.
    """

    def __init__(self, path: Path, agent: str | None = None, *, names: Mapping[str, str] | None = None) -> None:
        """
        Args:
            agent: of a run that has several, one: then only its rollouts are there.
            names: what to call an environment, by the name that it has there.

        Raises:
            ConfigError: there is no such run or file, or its manifest is damaged; or the run has no such agent; or two
                of its environments would have one name.
        """
        self.path = path
        self.agent = agent
        self.names = dict(names or {})
        self.nemo = nemo_files(path)
        self.file = self.nemo.rollouts if self.nemo else path / ROLLOUTS if path.is_dir() else path
        self.torn = 0
        if not self.file.is_file():
            raise ConfigError(f"{path} holds no rollouts: give the folder of a run, or a JSONL file of rollouts")
        if self.file.name.endswith(INPUTS_SUFFIX):
            raise ConfigError(f"{path} has the rows; the rollouts are in the file without {INPUTS_SUFFIX}")
        self.manifest = manifest_in(path)
        if agent is not None and agent not in self._all_agents():
            raise ConfigError(f"{path} has no agent {agent!r}; {nearest(agent, self._all_agents())}")
        try:
            self.inputs = with_names(self.manifest.inputs if self.manifest else {}, self.names)
            """The manifest's, its environments by the names that they have here; empty where there is none."""
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error

    @property
    def name(self) -> str:
        """For lists: the folder's name, or the file's, and the agent."""
        name = self.path.resolve().name
        return name if self.agent is None else f"{name}:{self.agent}"

    @property
    def agents(self) -> list[str]:
        """Names of the agents that are told apart here; none where there is but one."""
        return [] if self.agent is not None else self._all_agents()

    @property
    def share_of(self) -> str | None:
        """The agent whose rollouts alone are here, of a run that had several."""
        inputs = self.manifest.inputs if self.manifest else {}
        return self.agent or (inputs.get("reverified") or {}).get("agent")

    @property
    def crossed(self) -> bool:
        """Whether each agent of the run was to do every task."""
        return bool(self.manifest and (self.manifest.inputs.get("runner") or {}).get("cross_agents"))

    def _all_agents(self) -> list[str]:
        inputs = self.manifest.inputs if self.manifest else {}
        named = set(inputs.get("agents") or ())
        if named and "agent" in inputs:
            named.add(DEFAULT_AGENT)
        return sorted(named)

    def dataset_of(self, environment: str) -> str | None:
        """Digest of the tasks that an environment's rollouts were planned from; None where no manifest tells."""
        return ((self.inputs.get("environments") or {}).get(environment) or {}).get("dataset")

    def given(self) -> dict[str, Counter[str]]:
        """Of NeMo Gym's files: the rollouts there should be of each task, by environment; empty where they do not
        tell.

        Raises:
            ConfigError: a line of the rows is damaged.
        """
        found: dict[str, Counter[str]] = {}
        if self._rows:
            for row in self._rows.first_of_each_task():
                tasks = found.setdefault(self._called(environment_of(row)), Counter())
                tasks[task_key(row)] += self._rows.repeats[row[TASK]]
        return found

    def __iter__(self) -> Iterator[Rollout]:
        """
        Raises:
            ConfigError: a line that is not the last is damaged, or none of a rollout.
        """
        self.torn = 0
        failures = self.nemo.failures if self.nemo and self.nemo.failures.is_file() else None
        done: set[Place] = set()
        for place, rollout in self._read(self.file):
            if failures:
                done.add(place)
            if self.agent in (None, rollout.agent):
                yield rollout
        if failures:
            yield from self._failed(failures, done)

    def reread(self, offset: int, number: int = 0, *, among_failures: bool = False) -> Rollout:
        """The rollout whose line begins there.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: there is none.
            OSError: the file cannot be read.
        """
        path = self.nemo.failures if among_failures and self.nemo else self.file
        with path.open("rb") as file:
            file.seek(offset)
            return self._rollout(json.loads(file.readline()), number, offset, among_failures)

    def _failed(self, failures: Path, done: set[Place]) -> Iterator[Rollout]:
        """The last attempt at each rollout without a reward. Failures of other rows are of an earlier collection: NeMo
        Gym leaves them where they are."""
        last: dict[Place, tuple[int, int]] = {}
        attempts = Counter[Place]()
        for place, rollout in self._read(failures):
            if place not in done and (self._rows is None or rollout.given is not None or "rollout_id" in rollout.line):
                last[place] = rollout.offset, rollout.number
                attempts[place] += 1
        for place, (offset, number) in last.items():
            rollout = self.reread(offset, number, among_failures=True)
            yield rollout if "rollout_id" in rollout.line else replace(rollout, attempts=attempts[place])

    def _read(self, path: Path) -> Iterator[tuple[Place, Rollout]]:
        """The rollouts of a file, each with the numbers by which the file knows it."""
        offset, among_failures, known = 0, path != self.file, set[int]()
        repeated = among_failures or path.name == FAILURES  # there, each attempt at a rollout has its line
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    begins, offset = offset, offset + len(line)
                    if not line.strip():
                        continue
                    try:
                        read = json.loads(line)
                        check_shape(read)
                        if not repeated:
                            _check_new(read, known)
                        rollout = self._rollout(read, number, begins, among_failures)
                    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                        if not line.endswith(b"\n") and isinstance(error, ValueError):
                            self.torn += len(line)
                            return
                        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                        if isinstance(error, UnicodeDecodeError):
                            told = "it is not UTF-8 text"
                        raise ConfigError(f"{path}:{number} is no rollout: {told}") from error
                    yield place_of(read), rollout
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error

    def _rollout(self, read: dict[str, Any], number: int, offset: int, among_failures: bool) -> Rollout:
        line, given = from_nemo(read), None
        if line is read and self._rows is not None and (place := place_of(line)) in self._rows:
            given = self._rows[place]
            line = {**given, **line}
        rollout = replace(rollout_of(line, number, offset), among_failures=among_failures)
        if rollout.index is None and "rollout_id" not in line:  # as older versions of NeMo Gym had it
            rollout = replace(rollout, id=f"line-{number}")
        called = self._called(rollout.environment)
        if given is None and called == rollout.environment:
            return rollout
        return replace(rollout, given=given, environment=called)

    def _called(self, environment: str) -> str:
        return self.names.get(environment, environment)

    @cached_property
    def _rows(self) -> GivenRows | None:
        return GivenRows(self.nemo.inputs) if self.nemo and self.nemo.inputs.is_file() else None


def rollout_of(line: dict[str, Any], number: int = 0, offset: int = 0) -> Rollout:
    """The record of one line, which stands there in its file.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none of a rollout, or its reward is no number.
    """
    check_shape(line)
    if "reward" not in line and FAILURE not in line:
        raise KeyError("reward")
    failed = line.get(FAILURE)  # NeMo Gym gives such rollouts a reward of 0, which nobody has measured
    error = object_in(line, "error") or ({"kind": failed, "detail": line.get(JUDGE_ERROR)} if failed else None)
    response, calls = object_in(line, "response"), object_in(line, "calls")
    usage = object_in(line, "usage") or object_in(response, "usage")
    output, stop = response.get("output"), object_in(response, "metadata").get("stop_reason")
    results = [item for item in output or () if item.get("type") == "function_call_output"]
    index, repeat = line.get(TASK), line.get(REPEAT)
    return Rollout(
        environment=environment_of(line),
        agent=agent_of(line),
        task=task_key(line),
        index=index,
        repeat=repeat,
        id=str(line.get("rollout_id") or line.get(ROLLOUT_ID) or f"{index}-{repeat}"),
        reward=None if error else _reward(line.get("reward")),
        error=str(error["kind"]) if error else None,
        detail=str(error.get("detail") or "") if error else "",
        components=numbers_in(line.get("reward_components")),
        metrics=numbers_in(line.get("metrics")),
        input_tokens=countable(calls.get("input_tokens") or usage.get("input_tokens")),
        output_tokens=countable(calls.get("output_tokens") or usage.get("output_tokens")),
        cost=countable(calls.get("cost")),
        began=countable(line.get("began")),
        seconds=countable(object_in(line, "timings").get("total")),
        turns=countable(calls.get("count")) or _turns(output),
        tool_calls=None if output is None else len([item for item in output if item.get("type") == "function_call"]),
        tool_errors=None if output is None else sum(_tells_of_error(item.get("output")) for item in results),
        stop_reason=stop if isinstance(stop, str) else None,
        attempts=countable(line.get("attempts")) or 1,
        line=line,
        number=number,
        offset=offset,
    )


def _check_new(line: dict[str, Any], known: set[int]) -> None:
    """
    Args:
        known: hashes of the ids that were there so far; this one is added. Whole ids would not stay in memory.

    Raises:
        ValueError: a line of ours stands there a second time, and would count twice.
    """
    own = line.get("rollout_id")
    if own is None or FAILURE in line:  # of NeMo Gym's failures, each attempt has a line
        return
    if (mark := hash(str(own))) in known:
        raise ValueError(f"rollout {own} stands there twice; remove one of its lines")
    known.add(mark)


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if countable(value) is None:
        raise ValueError(f"its reward is {value!r:.40}, not a finite number that can be counted with")
    return float(value)


def countable(value: Any) -> Any:
    """The number; None for what is none that can be counted with, which some agent or verifier has put there."""
    return value if isinstance(value, int | float) and abs(value) <= LARGEST else None


def numbers_in(values: Any) -> dict[str, float]:
    """What of some values can be counted with."""
    if not isinstance(values, dict):
        return {}
    return {name: float(value) for name, value in values.items() if countable(value) is not None}


def _turns(output: list[dict[str, Any]] | None) -> int | None:
    """Answers of the model: each runs up to the results of its calls, or to the end."""
    if output is None:
        return None
    turns, answering = 0, False
    for item in output:
        mine = item.get("type") != "function_call_output" and item.get("role", "assistant") == "assistant"
        turns += mine and not answering
        answering = mine
    return turns


def _tells_of_error(output: Any) -> bool:
    return isinstance(output, str) and output.lstrip().lower().startswith(("error", '{"error"'))
