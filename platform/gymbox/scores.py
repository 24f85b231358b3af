"""Scores: how many rollouts of a run have ended, and how, added up as they do."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import BaseModel, Field


class Score(BaseModel):
    """Totals over some rollouts."""

    rollouts: int = 0
    scored: int = 0
    """Rollouts with a reward; the others have an error."""
    reward_sum: float = 0.0
    errors: Counter[str] = Field(default_factory=Counter)
    """How often each error kind occurred."""
    examples: dict[str, str] = Field(default_factory=dict)
    """The first task of each error kind, with its detail."""
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """Time spent in rollouts, added up; with concurrency, more than the clock showed."""

    @property
    def mean_reward(self) -> float | None:
        """Mean over the scored rollouts; None if there is none."""
        return self.reward_sum / self.scored if self.scored else None

    def add(self, record: dict[str, Any]) -> None:
        """Count one line of `rollouts.jsonl`."""
        self.rollouts += 1
        if record["reward"] is not None:
            self.scored += 1
            self.reward_sum += record["reward"]
        if error := record["error"]:
            self.errors[error["kind"]] += 1
            self.examples.setdefault(error["kind"], f"{record['task_id']}: {error['detail']}")
        usage = record.get("usage") or {}
        self.input_tokens += usage.get("input_tokens") or 0
        self.output_tokens += usage.get("output_tokens") or 0
        self.seconds += record["timings"].get("total") or 0

    def metrics(self) -> dict[str, Any]:
        """As `metrics.json` has it; names as NeMo Gym's where it has them."""
        fields = self.model_dump(exclude={"reward_sum"})
        return {"mean/reward": self.mean_reward, **fields}


class Scores:
    """Totals of a run, of its environments, and of its agents where it has several."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        """`inputs`: those of its manifest."""
        self.total = Score()
        self.environments: dict[str, Score] = {}
        self.agents: dict[str, dict[str, Score]] = {}
        """By environment and agent."""
        self._several = bool(inputs.get("agents"))

    def add(self, record: dict[str, Any]) -> None:
        """Count one line of `rollouts.jsonl`."""
        self.total.add(record)
        environment = record["environment"]
        self.environments.setdefault(environment, Score()).add(record)
        if self._several:
            self.agents.setdefault(environment, {}).setdefault(record["agent_ref"]["name"], Score()).add(record)

    def metrics(self) -> dict[str, Any]:
        """The content of `metrics.json`."""
        found = {name: score.metrics() for name, score in sorted(self.environments.items())}
        for name, scores in self.agents.items():
            found[name]["agents"] = {agent: score.metrics() for agent, score in sorted(scores.items())}
        return {"total": self.total.metrics(), "environments": found}
