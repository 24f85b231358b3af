"""NeMo Gym's layout: what the files of its rollouts are called, and a line of ours as one of theirs and back.

    NAME.jsonl                        one line a rollout that has a reward, in the order in which they ended
    NAME_materialized_inputs.jsonl    one line a rollout that there should be: its row
    NAME_failures.jsonl               one line a failed attempt, with its `_ng_failure_class`
    NAME_aggregate_metrics.json       figures by agent and by task

A line says which row (`_ng_task_index`) and which repeat (`_ng_rollout_index`) it is of; the two name a rollout within
its file. What a line of ours has beyond NeMo Gym's keys stands in its field `_gymbox`, so that it is had back whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymbox.errors import ConfigError
from gymbox.results import FAILURES
from gymbox.run_manifest import MANIFEST

INPUTS_SUFFIX, FAILURES_SUFFIX, AGGREGATES_SUFFIX = (
    "_materialized_inputs.jsonl",
    "_failures.jsonl",
    "_aggregate_metrics",
)
TASK, REPEAT, ATTEMPT, ROLLOUT_ID = "_ng_task_index", "_ng_rollout_index", "_ng_attempt_index", "_ng_rollout_id"
FAILURE, TERMINAL, JUDGE_ERROR = "_ng_failure_class", "_ng_failure_terminal", "_ng_failure_judge_error"
OWN = "_gymbox"
"""Field of a line in NeMo Gym's layout that has what it has no key for."""
BESIDE = ("_reward_profiling.jsonl", INPUTS_SUFFIX, FAILURES_SUFFIX)
"""How JSONL files end that NeMo Gym writes beside rollouts."""
_KEPT_APART = frozenset(
    {
        *("rollout_id", "task_id", "environment", "metrics", "error", "sandbox", "timings", "mask_reason", "usage"),
        *("calls", "attempts", "failed_attempts", "reverified", "kept_artifacts"),
    }
)
"""Keys of a line of ours for which NeMo Gym has none, or another meaning."""


@dataclass(frozen=True, slots=True)
class NemoFiles:
    """Where the files of one collection of rollouts are, or would be."""

    rollouts: Path

    @property
    def inputs(self) -> Path:
        return self.rollouts.with_name(self.rollouts.stem + INPUTS_SUFFIX)

    @property
    def failures(self) -> Path:
        return self.rollouts.with_name(self.rollouts.stem + FAILURES_SUFFIX)

    @property
    def aggregates(self) -> Path:
        return self.rollouts.with_name(f"{self.rollouts.stem}{AGGREGATES_SUFFIX}.json")


def nemo_files(path: Path) -> NemoFiles | None:
    """Those in a folder, or those that belong to a JSONL file; None where there is no sign of NeMo Gym's layout.

    Raises:
        ConfigError: the folder holds the rollouts of several collections.
    """
    if not path.is_dir():
        files = NemoFiles(path)
        return files if files.inputs.is_file() or files.failures.is_file() else None
    if (path / MANIFEST).exists() or not any(path.glob(f"*{INPUTS_SUFFIX}")):
        return None
    found = sorted(
        each
        for each in path.glob("*.jsonl")
        if not each.name.endswith(BESIDE) and each.name != FAILURES and NemoFiles(each).inputs.is_file()
    )
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"{path} holds the rollouts of several collections; give the file of one: {names}")
    return NemoFiles(found[0]) if found else None


@dataclass(slots=True)
class Numbering:
    """What makes the lines of a run with several environments those of one file: NeMo Gym numbers the rows of a file
    through, and knows environments by their agent's name alone. To it a task that several agents do is one of each."""

    offsets: Mapping[tuple[str, str | None], int] = field(default_factory=dict)
    """By environment, and where each of several agents did all tasks by agent, the number of its first row."""
    crossed: bool = False
    """Whether each agent did all tasks."""
    shared_agents: frozenset[str] = frozenset()
    """Names of agents that more than one environment has."""

    def task(self, environment: str, agent: Mapping[str, Any] | None, index: int) -> int:
        name = (agent or {}).get("name") if self.crossed else None
        return self.offsets.get((environment, name), 0) + index

    def agent(self, environment: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The `agent_ref` of a line."""
        told = {"type": "responses_api_agents", "name": environment, **(given or {})}
        return {**told, "name": f"{environment}_{told['name']}"} if told["name"] in self.shared_agents else told


def to_nemo(line: Mapping[str, Any], numbering: Numbering) -> dict[str, Any]:
    """A line of a run of ours as NeMo Gym has it: numbers that `verify` returned stand at the top, where it looks for
    them; without a reward it is that of a failure."""
    own = {name: value for name, value in line.items() if name in _KEPT_APART}
    found = {name: value for name, value in line.items() if name not in _KEPT_APART}
    environment = str(line["environment"])
    for name, value in (
        (TASK, numbering.task(environment, line.get("agent_ref"), line[TASK])),
        ("agent_ref", numbering.agent(environment, line.get("agent_ref"))),
        ("response", line.get("response") or {}),
    ):
        if name in found and found[name] != value:
            own[name] = found[name]
        found[name] = value
    told = {**(line.get("reward_components") or {}), **(line.get("metrics") or {})}
    lifted = [name for name in told if name not in found and name != OWN]
    found |= {name: told[name] for name in lifted}
    found |= {ROLLOUT_ID: line["rollout_id"], OWN: {**own, "lifted": lifted}}
    if error := line.get("error"):
        found |= failure(error)
    return found


def failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The keys by which NeMo Gym knows a failed attempt. There is no reward: nobody has measured one."""
    judged = {JUDGE_ERROR: error["detail"]} if error["kind"] == "judge_failed" else {}
    return {"reward": None, FAILURE: error["kind"], TERMINAL: not error.get("retryable", True), **judged}


def from_nemo(line: dict[str, Any]) -> dict[str, Any]:
    """The line of ours that one in NeMo Gym's layout was made from; any other as it is."""
    own = line.get(OWN)
    if not isinstance(own, dict) or "rollout_id" not in own:
        return line
    made = {*own.get("lifted", ()), OWN, ROLLOUT_ID, ATTEMPT, FAILURE, TERMINAL, JUDGE_ERROR}
    kept = {name: value for name, value in line.items() if name not in made}
    return kept | {name: value for name, value in own.items() if name != "lifted"}
