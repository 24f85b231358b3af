"""Rollouts: the lines of a run, gymbox's or NeMo Gym's, one after the other as records of what counts in them."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymbox.errors import ConfigError, nearest
from gymbox.plan import DEFAULT_AGENT
from gymbox.results import ROLLOUTS, manifest_in
from gymbox.rollout import RolloutResult

OURS = frozenset(
    {
        *RolloutResult.model_fields,
        "agent_ref",
        "skills_ref",
        "usage",
        "calls",
        "attempts",
        "failed_attempts",
        "reverified",
    }
)
"""Keys of a line that are no part of its row, beside those that begin with `_ng_` or `ng_`."""


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
    """All of it."""
    number: int = field(default=0, compare=False)
    """Of its line in the file, from 1."""
    offset: int = field(default=0, compare=False)
    """Of its line in the file: bytes before it."""

    def at(self, path: str) -> Any:
        """What the line has at a dotted path (`verifier_metadata.subset`); None if nothing."""
        value: Any = self.line
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value


class RunReader:
    """Rollouts of a run's folder, or of a JSONL file; each iteration reads it anew and keeps one line in memory.

    After an iteration `torn` says how many bytes of an unfinished last line were left out.
    """

    def __init__(self, path: Path, agent: str | None = None) -> None:
        """
        Args:
            agent: of a run that has several, one: then only its rollouts are there.

        Raises:
            ConfigError: there is no such run or file, or its manifest is damaged; or the run has no such agent.
        """
        self.path = path
        self.agent = agent
        self.file = path / ROLLOUTS if path.is_dir() else path
        self.torn = 0
        if not self.file.is_file():
            raise ConfigError(f"{path} holds no rollouts: give the folder of a run, or a JSONL file of rollouts")
        self.manifest = manifest_in(path)
        if agent is not None and agent not in self._all_agents():
            raise ConfigError(f"{path} has no agent {agent!r}; {nearest(agent, self._all_agents())}")

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
        told = (self.manifest.inputs.get("environments") or {}) if self.manifest else {}
        return (told.get(environment) or {}).get("dataset")

    def __iter__(self) -> Iterator[Rollout]:
        """
        Raises:
            ConfigError: a line that is not the last is damaged, or none of a rollout.
        """
        self.torn = offset = 0
        try:
            with self.file.open("rb") as file:
                for number, line in enumerate(file, 1):
                    begins, offset = offset, offset + len(line)
                    if not line.strip():
                        continue
                    try:
                        rollout = rollout_of(json.loads(line), number, begins)
                        if self.agent is None or rollout.agent == self.agent:
                            yield rollout
                    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                        if not line.endswith(b"\n") and isinstance(error, ValueError):
                            self.torn = len(line)
                            return
                        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                        raise ConfigError(f"{self.file}:{number} is no rollout: {told}") from error
        except OSError as error:
            raise ConfigError(f"cannot read {self.file}: {error.strerror}") from error


def rollout_of(line: dict[str, Any], number: int = 0, offset: int = 0) -> Rollout:
    """The record of one line, which stands there in its file.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none of a rollout, or its reward is no number.
    """
    if "reward" not in line and "_ng_failure_class" not in line:
        raise KeyError("reward")
    failed = line.get("_ng_failure_class")  # NeMo Gym gives such rollouts a reward of 0, which nobody has measured
    error = line.get("error") or ({"kind": failed, "detail": line.get("_ng_failure_judge_error")} if failed else None)
    response, calls = line.get("response") or {}, line.get("calls") or {}
    usage = line.get("usage") or response.get("usage") or {}
    output, stop = response.get("output"), (response.get("metadata") or {}).get("stop_reason")
    results = [item for item in output or () if item.get("type") == "function_call_output"]
    agent = (line.get("agent_ref") or {}).get("name")
    environment = line.get("environment") or agent or "unknown"
    index, repeat = line.get("_ng_task_index"), line.get("_ng_rollout_index")
    return Rollout(
        environment=str(environment),
        agent=agent if isinstance(agent, str) else None,
        task=task_key(line),
        index=index,
        repeat=repeat,
        id=str(line.get("rollout_id") or line.get("_ng_rollout_id") or f"{index}:{repeat}"),
        reward=None if error else _reward(line.get("reward")),
        error=str(error["kind"]) if error else None,
        detail=str(error.get("detail") or "") if error else "",
        components=_numbers(line.get("reward_components")),
        metrics=_numbers(line.get("metrics")),
        input_tokens=_number(calls.get("input_tokens") or usage.get("input_tokens")),
        output_tokens=_number(calls.get("output_tokens") or usage.get("output_tokens")),
        cost=_number(calls.get("cost")),
        began=_number(line.get("began")),
        seconds=_number((line.get("timings") or {}).get("total")),
        turns=_number(calls.get("count")) or _turns(output),
        tool_calls=None if output is None else len([item for item in output if item.get("type") == "function_call"]),
        tool_errors=None if output is None else sum(_tells_of_error(item.get("output")) for item in results),
        stop_reason=stop if isinstance(stop, str) else None,
        attempts=_number(line.get("attempts")) or 1,
        line=line,
        number=number,
        offset=offset,
    )


def row_of(line: dict[str, Any]) -> dict[str, Any]:
    """The row that a line was made from; a field of the row that has the name of one of ours is lost."""
    return {name: value for name, value in line.items() if name not in OURS and not name.startswith(("_ng_", "ng_"))}


def task_key(line: dict[str, Any]) -> str:
    """The task's id, or else a digest of its row without what a run may set: sampling parameters, seeds.

    A line of NeMo Gym's without an id has the number of its row: the fields beside it are in part the verifier's.
    """
    for own in (line.get("task_id"), line.get("id")):
        if own is not None and own != "":
            return str(own)
    if "rollout_id" not in line and line.get("_ng_task_index") is not None:
        return f"row-{line['_ng_task_index']}"
    row = row_of(line)
    params = row.pop("responses_create_params", None) or {}
    kept = {name: params[name] for name in ("input", "instructions") if params.get(name) is not None}
    told = json.dumps([row, kept], sort_keys=True, separators=(",", ":"))
    return f"row-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if _number(value) is None:
        raise ValueError(f"its reward is {value!r}, not a finite number")
    return float(value)


def _number(value: Any) -> Any:
    """The number; None for what is none that can be counted with, which some agent or verifier has put there."""
    return value if isinstance(value, int | float) and abs(value) <= sys.float_info.max else None


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        return {}
    return {name: float(value) for name, value in values.items() if _number(value) is not None}


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
