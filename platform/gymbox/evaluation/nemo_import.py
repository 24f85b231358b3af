"""NeMo Gym's as ours: a collection of rollouts that NeMo Gym wrote, as a run's folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import file_digest
from itertools import islice
from pathlib import Path
from typing import Any

from gymbox.errors import RETRYABLE, ConfigError
from gymbox.evaluation.line_identity import OURS
from gymbox.evaluation.nemo_layout import OWN, REPEAT, TASK, TERMINAL
from gymbox.evaluation.rollouts import Rollout, RunReader, numbers_in
from gymbox.results import RunFolder
from gymbox.run_manifest import Status
from gymbox.runner_settings import DEFAULT

BATCH = 256
"""Lines that share one write to disk."""


def line_of(rollout: Rollout) -> dict[str, Any]:
    """The line of a run of ours that says what the rollout's does; numbers that its verifier returned are metrics, and
    what else it did stands in `_gymbox.verdict`."""
    line = rollout.line
    if "rollout_id" in line and "timings" in line:
        return {**line, "environment": rollout.environment}
    stage = "verify" if rollout.error == "judge_failed" else "agent"
    retryable = rollout.error in RETRYABLE if TERMINAL not in line else not line[TERMINAL]
    error = {"stage": stage, "kind": rollout.error, "detail": rollout.detail, "retryable": retryable, "logs": ""}
    row, response = rollout.row, line.get("response") or None
    told = {name: value for name, value in line.items() if name not in row and name not in OURS and name[:3] != "_ng"}
    metrics = numbers_in(told)
    verdict = {name: value for name, value in told.items() if name not in metrics and not name.startswith("ng_")}
    return {
        **row,
        **{name: value for name, value in line.items() if name.startswith(("_ng_", "ng_"))},
        TASK: rollout.index,
        REPEAT: rollout.repeat,
        "agent_ref": line.get("agent_ref"),
        **({"skills_ref": line["skills_ref"]} if "skills_ref" in line else {}),
        "rollout_id": rollout.id,
        "task_id": rollout.task,
        "environment": rollout.environment,
        "reward": rollout.reward,
        "metrics": metrics | rollout.metrics,
        "reward_components": rollout.components,
        "error": error if rollout.error else None,
        "response": response,
        "sandbox": None,
        "timings": {},
        "mask_sample": bool(line.get("mask_sample")),
        "mask_reason": None,
        "usage": (response or {}).get("usage"),
        "attempts": rollout.attempts,
        "failed_attempts": [],
        **({OWN: {"verdict": verdict}} if verdict else {}),
    }


async def write_run(reader: RunReader, output: Path) -> int:
    """Write the rollouts of a reader as a run's folder; how many there are.

    Raises:
        ConfigError: it is a run's folder already, or damaged; or the output is there.
        WriteFailed: a line could not be written.
    """
    if reader.manifest is not None:
        raise ConfigError(f"{reader.path} is the folder of a run already")
    planned = sum(1 for _ in reader)
    inputs = inputs_of(reader)
    told = inputs["environments"].values()
    whole = sum(each["rows"] * inputs["runner"]["repeats"][name] for name, each in inputs["environments"].items())
    folder = RunFolder.open(
        output, inputs=inputs, settings={}, planned=max(planned, whole) if told else planned, resume=False
    )
    status: Status = "failed"
    try:
        rollouts: Iterator[Rollout] = iter(reader)
        while batch := list(islice(rollouts, BATCH)):
            await asyncio.gather(*(folder.add(line_of(rollout)) for rollout in batch))
        status = "finished" if len(folder.done) == folder.manifest.planned else "interrupted"
    finally:
        await folder.close(status)
    return planned


def inputs_of(reader: RunReader) -> dict[str, Any]:
    """As a run's manifest has them, as far as the files tell: where all tasks of an environment have equally many
    repeats, its tasks and repeats."""
    with reader.file.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    rows, repeats = {}, {DEFAULT: 1}
    for name, tasks in reader.given().items():
        if len(counts := set(tasks.values())) == 1:
            rows[name], repeats[name] = {"rows": len(tasks)}, counts.pop()
    return {
        "nemo_gym": {"file": reader.file.name, "sha256": digest},
        "runner": {"limit": None, "repeats": repeats, "shard": None},
        "environments": rows,
    }
