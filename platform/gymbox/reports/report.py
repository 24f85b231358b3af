"""Report: all that is said of a run, or of several beside one another; page, Markdown and JSON are written from it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gymbox.evaluation.compare import Comparison
from gymbox.evaluation.summary import Summary
from gymbox.reports.plots import Plots

ALL = ""
"""The name under which the plots of all environments stand."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunReport(_Frozen):
    """Of one run."""

    name: str
    agent: str | None = None
    """Whose rollouts alone these are; None where they are all that the run has."""
    status: str | None
    """How it ended; None, as the three below, where it has no manifest."""
    started_at: datetime | None
    ended_at: datetime | None
    facts: dict[str, str]
    """What was run: settings without secrets, digests and versions, by dotted name."""
    summary: Summary
    plots: dict[str, Plots]
    """By environment; under "" of them all."""
    agent_plots: dict[str, dict[str, Plots]] = Field(default_factory=dict)
    """By agent, where the run has several; then as `plots`."""
    agents: Comparison | None = None
    """Of its agents to the first of them, where each was to do every task."""
    key_metrics: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By environment, where its manifest is at hand: what it wants to be seen first; null is what the run does not
    tell."""
    own_metrics: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By environment: what its own `compute_metrics` made of the run, where that was asked for."""
    set_aside: int
    """Lines of `failures.jsonl`: earlier attempts, which no figure counts."""


class Report(_Frozen):
    """Of a run, or of several and how they compare with the first."""

    format: Literal[2] = 2
    """Of this model; another number where a field means something else, or is gone."""
    title: str
    made_at: datetime
    gymbox: str
    """The version that made it."""
    by: str | None = None
    """The field whose values tell apart the subsets of the runs' summaries."""
    runs: list[RunReport] = Field(min_length=1)
    comparison: Comparison | None = None
    """None of a single run."""

    def dumped(self, indent: int | None = None) -> bytes:
        """As JSON, in ASCII: names may hold half of a character, which no other encoding takes."""
        return json.dumps(self.model_dump(mode="json"), indent=indent, allow_nan=False).encode()
