"""Resumed: a run that an older version of gymbox began is gone on with where nothing has changed that matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.config import compose
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.plan import Plan
from gymbox.runs.job import Job
from gymbox.runs.places import Places

ENVIRONMENTS = Path(__file__).parents[3] / "environments"
OLDER = Path(__file__).with_name("manifest_of_an_older_version.json")
SETTINGS = (
    "environment=counter",
    "model=openai",
    "model.name=gpt",
    "model.base_url=http://127.0.0.1:9/v1",
    "model.api_key=sk-something-long-enough",
    "model.deadline=1",
    "judge=chat",
    "judge.name=j",
    "judge.replicas=[{url: http://127.0.0.1:9/v1},{url: http://127.0.0.1:10/v1}]",
    "provider=process",
    "runner.limit=1",
)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The folder of a run that was begun before models had a `probe_interval`. Environments are as they are now."""
    manifest: dict[str, Any] = json.loads(OLDER.read_text())
    with Plan([Environment.load(ENVIRONMENTS / "counter")], compose(SETTINGS).runner) as plan:
        manifest["inputs"]["environments"] = plan.inputs()["environments"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path / "out"


def job(folder: Path, *overrides: str) -> Job:
    settings = compose([*SETTINGS, f"runner.output={folder / 'out'}", "runner.resume=true", *overrides])
    return Job(settings, Places((ENVIRONMENTS,), folder, folder / "cache", "token"))


def test_a_run_that_was_begun_before_there_was_a_field_goes_on(begun: Path, tmp_path: Path) -> None:
    assert "probe_interval" in compose(SETTINGS).record()["model"]
    assert "probe_interval" not in begun.joinpath("manifest.json").read_text()

    job(tmp_path).check()


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.probe_interval=7", "model.probe_interval: was None, is 7.0"),
        ("model.name=other", "model.name: was 'gpt', is 'other'"),
        ("runner.repeats=2", "runner.repeats: was 1, is 2"),
    ],
)
def test_a_real_change_is_named_alone(begun: Path, tmp_path: Path, override: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(tmp_path, override).check()

    assert [line.strip() for line in str(caught.value).splitlines()[1:-1]] == [named]
