"""What experiment trackers are told of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.errors import ConfigError
from gymbox.evaluation.metrics_file import complete_metrics
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary
from gymbox.exports.tracked_run import TABLE, tracked_run

from tests.unit.exports.conftest import answered, said

Run = Callable[..., Path]


@pytest.fixture
def ended(run: Run) -> Path:
    lines = [
        answered("a", 0, 1.0, said("x"), metrics={"steps": 2}, reward_components={"form": 0.5}),
        answered("a", 1, 0.0, said("y"), calls={"cost": 0.5}),
        answered("b", 0, 1.0, said("z" * 3_000), environment="weather"),
        answered("b", 1, None, environment="weather"),
    ]
    folder = run(*lines, repeats=2)
    complete_metrics(folder)
    return folder


def test_figures_are_those_of_the_evaluation_and_of_metrics_json(ended: Path) -> None:
    found, told = summary(RunReader(ended)), tracked_run(ended)
    assert told.figures["mean/reward"] == found.total.mean
    assert told.figures["weather/missing"] == found.environments["weather"].missing
    assert told.figures["counter/pass@1"] == found.environments["counter"].pass_at[1].value
    assert told.figures["counter/components/form"] == 0.5 and told.figures["counter/metrics/steps"] == 2
    assert told.figures["weather/errors/agent_failed"] == 1 and told.figures["cost"] == 0.5
    assert "weather/cost" not in told.figures  # unknown, which is not 0
    recorded = json.loads((ended / "metrics.json").read_text())
    assert recorded["total"].keys() - {"interval/reward", "errors", "examples", "cost"} <= told.figures.keys()
    assert all(told.figures[name] == value for name, value in recorded["total"].items() if name in told.figures)


def test_it_knows_its_run_and_what_that_was_made_of(ended: Path) -> None:
    told = tracked_run(ended)
    manifest = json.loads((ended / "manifest.json").read_text())
    assert told.id == manifest["run"] and told.name == "run" and told.status == "finished"
    assert told.environments == ("counter", "weather") and told.versions["gymbox"]
    assert told.inputs["environments.counter.dataset"] == "d1" and told.inputs["runner.repeats"] == "2"
    assert [file.name for file in told.files] == ["rollouts.jsonl", "manifest.json", "metrics.json"]
    assert told.told_at == told.ended_at


def test_metrics_json_of_a_run_that_goes_on_is_out_of_date(ended: Path) -> None:
    path = ended / "manifest.json"
    path.write_text(path.read_text().replace('"status": "finished"', '"status": "running"'))
    metrics = json.loads((ended / "metrics.json").read_text())
    (ended / "metrics.json").write_text(json.dumps(metrics | {"total": metrics["total"] | {"own": 3}}))
    assert "own" not in tracked_run(ended).figures
    path.write_text(path.read_text().replace('"status": "running"', '"status": "finished"'))
    assert tracked_run(ended).figures["own"] == 3


def test_the_table_has_the_first_rollouts_with_long_texts_cut(ended: Path) -> None:
    rows = tracked_run(ended).table(3)
    assert len(rows) == 3
    first, _, third = (dict(zip(TABLE, row, strict=True)) for row in rows)
    assert (first["task"], first["reward"], first["answer"]) == ("a", 1.0, "x")
    assert third["answer"] == "z" * 2_000 + "…"


def test_a_file_without_a_manifest_keeps_its_id_as_it_grows(ended: Path, tmp_path: Path) -> None:
    lines = (ended / "rollouts.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "nemo.jsonl"
    path.write_text(lines[0])
    before = tracked_run(path)
    path.write_text("".join(lines))
    after = tracked_run(path)
    assert before.id == after.id and after.figures["rollouts"] == 4
    assert after.status is None and after.settings == {} and after.files == (path,)


def test_a_run_without_rollouts_or_with_damaged_metrics_is_refused(ended: Path, run: Run) -> None:
    (ended / "metrics.json").write_text("{")
    with pytest.raises(ConfigError, match=r"metrics\.json is damaged"):
        tracked_run(ended)
    with pytest.raises(ConfigError, match="no rollouts yet"):
        tracked_run(run(name="empty", rows=1))
