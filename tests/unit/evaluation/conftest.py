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


def ours(task: str, index: int, repeat: int = 0, reward: float | None = None, **more: Any) -> dict[str, Any]:
    """A line with all that the runner writes."""
    usage = {"input_tokens": 10 * (index + 1), "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 0}}
    told = {
        "id": task,
        "_ng_task_index": index,
        "_ng_rollout_index": repeat,
        "agent_ref": {"type": "responses_api_agents", "name": "ToolLoop"},
        "response": {"output": [], "usage": usage},
        "usage": usage,
        "mask_sample": False,
        "mask_reason": None,
        "attempts": 1,
        "failed_attempts": [],
    }
    return line(task, repeat, reward, **{**told, **more})


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


@pytest.fixture
def mixed(run: Callable[..., Path]) -> Path:
    """Two environments and one agent; repeats with different rewards, one failed rollout and one failed attempt."""
    failed = {"stage": "agent", "kind": "model_timed_out", "detail": "slow", "retryable": True, "logs": ""}
    return run(
        ours("a", 0, 0, 1.0, metrics={"steps": 3.0, "reward": 9.0}, expected=4),
        ours("a", 0, 1, 0.25, metrics={"steps": 5.0}, reward_components={"form": 0.5}),
        ours("b", 1, 0, 0.0, attempts=2, failed_attempts=[{"error": failed, "timings": {"total": 1.0}}]),
        ours("b", 1, 1),
        ours("x", 0, 0, 1.0, environment="weather"),
        ours("x", 0, 1, 1.0, environment="weather", mask_sample=True, calls={"count": 2}),
        rows=2,
        repeats=2,
    )
