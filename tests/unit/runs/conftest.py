"""A run's folder, filled as the runner fills it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.results import RunFolder


def line(number: int, reward: float | None = 1.0, environment: str = "counter") -> dict[str, Any]:
    error = None
    if reward is None:
        error = {"stage": "agent", "kind": "agent_failed", "detail": "boom", "logs": ""}
    return {
        "rollout_id": f"r-{environment}-{number}-0",
        "task_id": f"t{number}",
        "environment": environment,
        "reward": reward,
        "error": error,
        "timings": {"total": 1.5},
        "usage": {"input_tokens": 10, "output_tokens": 2},
        "attempts": 1,
        "_ng_task_index": number,
        "_ng_rollout_index": 0,
    }


Open = Callable[..., RunFolder]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def open(**more: Any) -> RunFolder:
        fields = {"inputs": {}, "settings": {"runner": {"priority": "high", "share": 2.0}}, "planned": 4}
        return RunFolder.open(tmp_path / "out", **{**fields, "resume": False, **more})

    return open
