"""Runs on disk, as the runner writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gymbox.results import RunFolder


def line(task: str, repeat: int = 0, reward: float | None = None, **more: Any) -> dict[str, Any]:
    """One line; without a reward it has an error."""
    error = {"stage": "agent", "kind": "agent_failed", "detail": "it fell", "retryable": False, "logs": ""}
    return {
        "responses_create_params": {"input": f"do {task}"},
        "rollout_id": f"{more.get('environment', 'counter')}-{task}-{repeat}",
        "task_id": task,
        "environment": "counter",
        "reward": reward,
        "error": error if reward is None else None,
        "metrics": {},
        "reward_components": {},
        "response": None,
        "usage": None,
        "timings": {"total": 2.0},
        **more,
    }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run of these lines."""

    def make(
        *lines: dict[str, Any],
        name: str = "run",
        rows: int | None = None,
        repeats: int = 1,
        dataset: str = "d1",
        agents: Sequence[str] = (),
        crossed: bool = False,
    ) -> Path:
        environments = sorted({each["environment"] for each in lines}) or ["counter"]
        count = rows if rows is not None else len({each["task_id"] for each in lines})
        told = {each: {"digest": "e1", "dataset": dataset, "rows": count} for each in environments}
        runner = {"limit": None, "repeats": repeats, "shard": None, **({"cross_agents": True} if crossed else {})}
        inputs: dict[str, Any] = {"runner": runner, "environments": told}
        if agents:
            inputs["agents"] = {agent: {} for agent in agents if agent != "agent"}
            inputs |= {"agent": {}} if "agent" in agents else {}

        async def write() -> None:
            folder = RunFolder.open(tmp_path / name, inputs=inputs, settings={}, planned=count * repeats, resume=False)
            for each in lines:
                await folder.add(each)
            await folder.close("finished")

        with ThreadPoolExecutor() as thread:  # of its own: a browser's driver may have a loop in this one
            thread.submit(asyncio.run, write()).result()
        return tmp_path / name

    return make
