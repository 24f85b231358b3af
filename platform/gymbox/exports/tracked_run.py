"""Tracked run: what an experiment tracker is told of a run, whichever it is.

Figures are those of `gymbox.evaluation.summary` under the names of `metrics.json`; what only `metrics.json` has is
taken from there. Those of one environment begin with its name and a slash. A figure that is not known is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import Figures, summary
from gymbox.evaluation.tallies import Latency, Spread
from gymbox.exports.rollout_table import record_of, run_name
from gymbox.results import METRICS
from gymbox.run_manifest import MANIFEST, Status

TEXT = 2_000
"""Characters of a text in the table; of a longer one, what follows is cut off."""
TABLE = (
    *("rollout", "environment", "task", "repeat", "reward", "error", "error_detail", "stop_reason", "question"),
    *("answer", "turns", "tool_calls", "input_tokens", "output_tokens", "cost", "seconds"),
)
"""Columns of the table of rollouts; see `rollout_table`."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run, as trackers take it."""

    id: str
    """The same whenever this run is exported, also after it was resumed."""
    name: str
    status: Status | None
    """None where no manifest tells."""
    started_at: datetime | None
    ended_at: datetime | None
    told_at: datetime
    """When it had these figures: its end, or while it goes on the time of its last line."""
    environments: tuple[str, ...]
    inputs: dict[str, str]
    """What the results depend on, one name each (`model.name`): a resume cannot change it."""
    versions: dict[str, str]
    settings: dict[str, Any]
    """As the manifest has them, secrets replaced by stars."""
    figures: dict[str, float]
    files: tuple[Path, ...]
    """Rollouts, manifest and metrics."""
    reader: RunReader

    def table(self, limit: int) -> list[list[Any]]:
        """The first rollouts, a value for each column of `TABLE`."""
        records = (record_of(rollout, self.id) for rollout in islice(self.reader, limit))
        return [[_short(record[name]) for name in TABLE] for record in records]


def tracked_run(path: Path) -> TrackedRun:
    """The run in a folder, or of a JSONL file of rollouts.

    Raises:
        ConfigError: it is none, is damaged, or has no rollouts.
    """
    reader = RunReader(path)
    manifest, found = reader.manifest, summary(reader)
    if not found.total.rollouts:
        raise ConfigError(f"{path}: there are no rollouts yet")
    figures = {
        **_recorded(path / METRICS, manifest is not None and manifest.status != "running"),
        **_named(found.total),
        **{f"{name}/{key}": value for name, each in found.environments.items() for key, value in _named(each).items()},
    }
    beside = (path / MANIFEST, path / METRICS) if path.is_dir() else ()
    return TrackedRun(
        id=run_name(reader) if manifest else _id_of(reader.file),
        name=reader.name,
        status=manifest.status if manifest else None,
        started_at=manifest.started_at if manifest else None,
        ended_at=manifest.ended_at if manifest else None,
        told_at=(manifest and manifest.ended_at) or datetime.fromtimestamp(reader.file.stat().st_mtime, UTC),
        environments=tuple(found.environments),
        inputs=dict(_flat(manifest.inputs)) if manifest else {},
        versions=manifest.versions if manifest else {},
        settings=_settings(manifest.model_dump(mode="json")) if manifest else {},
        figures=figures,
        files=(reader.file, *(file for file in beside if file.is_file())),
        reader=reader,
    )


def _settings(manifest: dict[str, Any]) -> dict[str, Any]:
    kept = ("settings", "inputs", "versions", "images", "provider", "starts", "shards", "status", "planned")
    return {name: manifest[name] for name in kept}


def _id_of(file: Path) -> str:
    """Of a file without a manifest: a digest of its first line, which stays where lines are added."""
    with file.open("rb") as lines:
        return hashlib.sha256(lines.readline()).hexdigest()[:16]


def _named(figures: Figures) -> dict[str, float]:
    """Those that are known, one name each."""
    low, high = figures.interval or (None, None)
    told: dict[str, float | None] = {
        "mean/reward": figures.mean,
        "task_mean/reward": figures.task_mean,
        "std_err/reward": figures.standard_error,
        "std_dev/reward": figures.deviation,
        "median/reward": figures.median,
        "min/reward": figures.smallest,
        "max/reward": figures.largest,
        "interval/reward/low": low,
        "interval/reward/high": high,
        "solved": figures.solved,
        **{
            name: getattr(figures, name)
            for name in ("tasks", "rollouts", "planned", "scored", "missing", "tasks_without_reward")
        },
        **{f"errors/{kind}": count for kind, count in figures.errors.items()},
        **{f"stop_reasons/{reason}": count for reason, count in figures.stop_reasons.items()},
        **{f"pass@{k}": at.value for k, at in figures.pass_at.items()},
        **{f"pass^{k}": at.value for k, at in figures.pass_all.items()},
        **{f"best@{k}": at.value for k, at in figures.best_of.items()},
        **{f"components/{name}": spread.mean for name, spread in figures.components.items()},
        **{f"metrics/{name}": spread.mean for name, spread in figures.metrics.items()},
        **_spread("input_tokens", figures.input_tokens),
        **_spread("output_tokens", figures.output_tokens),
        **_spread("cost", figures.cost),
        **_spread("seconds", figures.seconds),
        **_latency(figures.latency),
        **{f"mean/{name}": getattr(figures, name).mean for name in ("turns", "tool_calls", "tool_errors")},
    }
    return {name: float(value) for name, value in told.items() if value is not None}


def _spread(name: str, spread: Spread) -> dict[str, float | None]:
    """Sum and mean; where nothing is counted, neither is known."""
    return {name: spread.total if spread.count else None, f"mean/{name}": spread.mean}


def _latency(latency: Latency | None) -> dict[str, float]:
    return {f"latency/{name}": value for name, value in latency.model_dump().items()} if latency else {}


def _recorded(path: Path, ended: bool) -> dict[str, float]:
    """The numbers of `metrics.json`, which is out of date while the run goes on."""
    if not ended or not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
        environments = dict(content["environments"])
        return {**_numbers(content["total"]), **_numbers(environments)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({type(error).__name__}: {error}); mend or remove it") from error


def _numbers(content: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = float(value)
    return found


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{name}.")
        elif inner is not None:
            yield f"{prefix}{name}", inner if isinstance(inner, str) else json.dumps(inner)


def _short(value: Any) -> Any:
    return f"{value[:TEXT]}…" if isinstance(value, str) and len(value) > TEXT else value
