"""Rollout table: the rollouts of some runs as Parquet, a row each, in batches of bounded size.

    run, environment, task, rollout             names; `run` is the id that the manifest has, else the file's name
    task_index, repeat, attempts                int64
    reward                                      float64, null where it is unknown
    reward_components, metrics                  JSON objects of numbers
    error, error_stage, error_detail            why there is no reward
    stop_reason                                 why the agent ended
    input_tokens, output_tokens, turns,
    tool_calls, tool_errors                     int64
    cost, seconds                               float64
    timings                                     JSON object: seconds of each stage
    agent, model                                names
    mask_sample, mask_reason                    not to be trained on, and why
    question, answer                            text: the last message of the user; the last of the model
    request, response                           JSON: `responses_create_params`; the trajectory
    row                                         JSON: the other fields of the task's row, the verifier's among them

Null is unknown. JSON columns: see `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gymbox.datasets.files import Written, digest_of, new_file
from gymbox.errors import ConfigError
from gymbox.evaluation.line_identity import row_of
from gymbox.evaluation.line_shape import object_in
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.exports.columns import JSON, json_text, plain_text, write_parquet
from gymbox.row_check import PARAMS

BATCH_ROWS = 1_000
BATCH_BYTES = 16 * 1024 * 1024
"""Of text: with either of these a batch is full."""
COLUMNS = {
    **dict.fromkeys(("run", "environment", "task", "rollout"), "string"),
    **dict.fromkeys(("task_index", "repeat", "attempts"), "int64"),
    "reward": "float64",
    **dict.fromkeys(("reward_components", "metrics"), JSON),
    **dict.fromkeys(("error", "error_stage", "error_detail", "stop_reason"), "string"),
    **dict.fromkeys(("input_tokens", "output_tokens", "turns", "tool_calls", "tool_errors"), "int64"),
    **dict.fromkeys(("cost", "seconds"), "float64"),
    "timings": JSON,
    **dict.fromkeys(("agent", "model"), "string"),
    "mask_sample": "bool",
    **dict.fromkeys(("mask_reason", "question", "answer"), "string"),
    **dict.fromkeys(("request", "response", "row"), JSON),
}
"""Their kinds; see `columns`."""


def export_parquet(runs: Sequence[RunReader], output: Path, *, rows: bool = True, force: bool = False) -> Written:
    """Write the rollouts of some runs to one file.

    Args:
        rows: with the column `row`. What the verifier alone may see is in there: leave it out of what is published.

    Raises:
        ConfigError: a run is damaged or holds no rollouts, or the output is there already; nothing is half written.
    """
    if output.suffix.lower() != ".parquet":
        raise ConfigError(f"{output}: the table is written to a .parquet file; name the output so")
    with new_file(output, force=force) as beside:
        count = write_table(runs, beside, rows=rows)
        return Written(output, count, digest_of(beside))


def write_table(runs: Sequence[RunReader], target: Path, *, rows: bool) -> int:
    """Write the rollouts to a new file; how many there were.

    Raises:
        ConfigError: see `export_parquet`; or a rollout has a value that there is no place for.
    """
    columns = {name: kind for name, kind in COLUMNS.items() if rows or name != "row"}
    try:
        count = write_parquet(_batches(_records(runs)), columns, target)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"a rollout has a value that its column cannot hold, in {error}") from error
    if not count:
        raise ConfigError(f"{', '.join(str(run.path) for run in runs)}: there are no rollouts")
    return count


def record_of(rollout: Rollout, run: str) -> dict[str, Any]:
    """One row of the table, with Python objects in its JSON columns."""
    line = rollout.line
    error, response = object_in(line, "error"), object_in(line, "response")
    row = row_of(line)
    request = row.pop(PARAMS, None)
    return {
        "run": run,
        "environment": rollout.environment,
        "task": rollout.task,
        "rollout": rollout.id,
        "task_index": rollout.index,
        "repeat": rollout.repeat,
        "attempts": rollout.attempts,
        "reward": rollout.reward,
        "reward_components": rollout.components,
        "metrics": rollout.metrics,
        "error": rollout.error,
        "error_stage": error.get("stage"),
        "error_detail": plain_text(rollout.detail) or None,
        "stop_reason": rollout.stop_reason,
        "input_tokens": rollout.input_tokens,
        "output_tokens": rollout.output_tokens,
        "turns": rollout.turns,
        "tool_calls": rollout.tool_calls,
        "tool_errors": rollout.tool_errors,
        "cost": rollout.cost,
        "seconds": rollout.seconds,
        "timings": line.get("timings"),
        "agent": (line.get("agent_ref") or {}).get("name"),
        "model": response.get("model"),
        "mask_sample": line.get("mask_sample"),
        "mask_reason": line.get("mask_reason"),
        "question": _last_text((request or {}).get("input"), "user"),
        "answer": _last_text(response.get("output"), "assistant"),
        "request": request,
        "response": line.get("response"),
        "row": row,
    }


def run_name(run: RunReader) -> str:
    """What tells its rollouts from those of others."""
    return run.manifest.run if run.manifest else run.name


def _records(runs: Sequence[RunReader]) -> Iterator[dict[str, Any]]:
    for run in runs:
        name = run_name(run)
        for rollout in run:
            record = record_of(rollout, name)
            try:
                yield record | {each: json_text(record[each]) for each in _LARGE if record[each] is not None}
            except ValueError as error:
                raise ConfigError(f"{run.file}: rollout {rollout.id} has what JSON has not: {error}") from error


_LARGE = ("request", "response", "row")


def _batches(records: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for record in records:
        batch.append(record)
        size += sum(len(record[name] or "") for name in _LARGE)
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _last_text(items: Any, role: str) -> str | None:
    """Of the last message of a role; None where there is none."""
    if isinstance(items, str):
        return plain_text(items)
    for item in reversed(items if isinstance(items, list) else []):
        if isinstance(item, dict) and item.get("role") == role:
            content = item.get("content")
            if isinstance(content, list):
                content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
            return plain_text(content) if isinstance(content, str) else None
    return None
