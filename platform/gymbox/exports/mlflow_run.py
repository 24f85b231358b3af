"""MLflow run: a run of gymbox as one on an MLflow tracking server, by MLflow's own client, which knows the token.

run         found again by its tag `gymbox.run`, so that a second export, or one after a resume, updates it
params      the inputs with their digests, which a resume cannot change
tags        versions, environments, status, and what is given
metrics     the figures; `@` is told as `_at_`, `^` as `_all_`, since MLflow's names have neither
artifacts   rollouts.jsonl, manifest.json (with all settings, secrets as stars), metrics.json; `rollouts.json`, the
            table of the first rollouts
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gymbox.datasets.sources import needed
from gymbox.errors import ConfigError, Unavailable, first_line
from gymbox.exports.tracked_run import TABLE, TrackedRun

RUN_TAG = "gymbox.run"
TABLE_FILE = "rollouts.json"
_PARAM = 6_000
"""Characters that a param may have."""
_PARAMS, _METRICS = 100, 1_000
"""How many a request may bring."""
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}


@dataclass(frozen=True, slots=True)
class MlflowPlace:
    """Where it goes, and what it is called there."""

    tracking_uri: str | None = None
    """Address of the server; None: as the client's own settings say."""
    experiment: str = "gymbox"
    """Made if there is none."""
    name: str | None = None
    """Of the run; None: the folder's."""
    tags: Mapping[str, str] = field(default_factory=dict)


def export_mlflow(run: TrackedRun, place: MlflowPlace | None = None, *, table: int = 1_000, files: bool = True) -> str:
    """Make or update the run there; its id on that server.

    Args:
        table: the table has at most so many rollouts; 0: there is none.
        files: with rollouts, manifest and metrics. Rollouts hold what only the verifier may see.

    Raises:
        ConfigError: the client is not installed, or the server refuses it or a name.
        Unavailable: the server does not answer.
    """
    place = place or MlflowPlace()
    mlflow = needed("mlflow", "mlflow")
    with _translated(mlflow, place.tracking_uri):
        client = mlflow.MlflowClient(tracking_uri=place.tracking_uri)
        experiment = _experiment(client, place.experiment)
        there = _run(client, experiment, run, place)
        id = str(there.info.run_id)
        _tell(client, mlflow.entities, id, run, place, dict(there.data.params))
        _artifacts(client, id, run, table=table, files=files)
        if run.status != "running":
            status = _STATUS.get(run.status or "finished")
            client.set_terminated(id, status=status, end_time=_milliseconds(run.ended_at))
        return id


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage != "active":
        raise ConfigError(f"MLflow's experiment {name!r} is deleted; restore it, or name another with --experiment")
    return str(found.experiment_id)


def _run(client: Any, experiment: str, run: TrackedRun, place: MlflowPlace) -> Any:
    """The one that was exported before, or a new one."""
    found = client.search_runs([experiment], filter_string=f"tags.`{RUN_TAG}` = '{run.id}'", max_results=1)
    name = place.name or run.name
    if not found:
        return client.create_run(
            experiment, start_time=_milliseconds(run.started_at), tags={RUN_TAG: run.id}, run_name=name
        )
    client.update_run(found[0].info.run_id, status="RUNNING", name=name)
    return found[0]


def _tell(client: Any, entities: Any, id: str, run: TrackedRun, place: MlflowPlace, before: Mapping[str, str]) -> None:
    """Params, tags and metrics."""
    params = {_name(name): value[:_PARAM] for name, value in run.inputs.items()}
    # a param that is there can never be another: what an export before has told stays
    new = [entities.Param(name, value) for name, value in params.items() if name not in before]
    tags = {
        "gymbox.environments": ", ".join(run.environments),
        "gymbox.status": run.status or "unknown",
        **{f"gymbox.version.{name}": version for name, version in run.versions.items()},
        **place.tags,
    }
    # always the same time and step: what is told twice is one point, and after a resume a new one
    at = _milliseconds(run.told_at)
    metrics = [entities.Metric(_name(name), value, at, 0) for name, value in run.figures.items()]
    for some in batched(new, _PARAMS):
        client.log_batch(id, params=some)
    for some in batched([entities.RunTag(_name(name), value) for name, value in tags.items()], _PARAMS):
        client.log_batch(id, tags=some)
    for some in batched(metrics, _METRICS):
        client.log_batch(id, metrics=some)


def _artifacts(client: Any, id: str, run: TrackedRun, *, table: int, files: bool) -> None:
    for file in run.files if files else ():
        client.log_artifact(id, str(file))
    if table:
        with TemporaryDirectory() as folder:
            path = Path(folder) / TABLE_FILE
            path.write_text(json.dumps({"columns": list(TABLE), "data": run.table(table)}))
            client.log_artifact(id, str(path))
        client.set_tag(id, "mlflow.loggedArtifacts", json.dumps([{"path": TABLE_FILE, "type": "table"}]))


def _name(name: str) -> str:
    """As MLflow takes names."""
    told = name.replace("@", "_at_").replace("^", "_all_")
    return re.sub(r"[^\w\-. :/]", "_", told)[:250]


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)


@contextmanager
def _translated(mlflow: Any, address: str | None) -> Iterator[None]:
    where = f"MLflow at {address}" if address else "MLflow"
    try:
        yield
    except mlflow.exceptions.MlflowException as error:
        said = first_line(error)
        if isinstance(error.__cause__, OSError) or "Max retries exceeded" in str(error):
            hint = "check the network and --tracking-uri (MLFLOW_TRACKING_URI)"
            raise Unavailable(f"{where} cannot be reached: {said}; {hint}") from error
        hint = "check the names, and MLFLOW_TRACKING_TOKEN"
        raise ConfigError(f"{where} refuses this: {said}; {hint}") from error
    except OSError as error:
        # artifacts go past the client's own errors
        if not type(error).__module__.startswith("requests."):
            raise
        raise Unavailable(f"{where} does not take the files: {first_line(error)}; see its log") from error
