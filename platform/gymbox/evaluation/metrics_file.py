"""Metrics file: what an evaluation adds to the `metrics.json` of a run that has ended."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import Figures, summary
from gymbox.results import METRICS, written

log = logging.getLogger(__name__)


def complete_metrics(folder: Path) -> None:
    """Add error bars, pass@k and what is missing to the scores of a run; those that are there stay as they are. What
    cannot be read or written is logged: the rollouts are safe in any case."""
    path = folder / METRICS
    try:
        found = summary(RunReader(folder))
        content = json.loads(path.read_text())
        content["total"] |= _added(found.total)
        for name, figures in found.environments.items():
            content["environments"][name] = content["environments"].get(name, {}) | _added(figures)
        for name, agents in found.agents.items():
            told = content["environments"][name].setdefault("agents", {})
            told |= {agent: told.get(agent, {}) | _added(figures) for agent, figures in agents.items()}
        content["policy"] = {"missing": found.missing_policy, "success": found.success, "level": found.level}
        written(path, content)
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        log.warning("could not complete %s: %s", path, error)


def _added(figures: Figures) -> dict[str, Any]:
    return {
        "tasks": figures.tasks,
        "missing": figures.missing,
        "tasks_without_reward": figures.tasks_without_reward,
        "std_err/reward": figures.standard_error,
        "interval/reward": figures.interval,
        **{f"pass@{k}": at.value for k, at in figures.pass_at.items()},
        **{f"pass^{k}": at.value for k, at in figures.pass_all.items()},
        "cost": figures.cost.total if figures.cost.count else None,
    }
