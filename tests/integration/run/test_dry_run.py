"""`gymbox run --dry-run`: all that a run checks before it starts, and nothing else."""

from __future__ import annotations

import json

from .conftest import Gymbox


async def test_a_dry_run_checks_everything_and_starts_nothing(gymbox: Gymbox) -> None:
    settings = ("environment=counter,weather", "model=scripted", "runner.limit=5", "runner.repeats=2")
    no_engine = ("provider=docker", "provider.host=unix:///no/engine/here")
    ended = await gymbox.run(*settings, *no_engine, "runner.output=out", "--dry-run")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[:2] == ["counter: 10 rollouts", "weather: 10 rollouts"]
    assert "all settings and rows are right" in ended.out and not (gymbox.folder / "out").exists()
    ended = await gymbox.run(*settings, *no_engine, "--dry-run", "--json")
    assert json.loads(ended.out) == {"planned": 20, "environments": {"counter": 10, "weather": 10}}
    assert not (gymbox.folder / "runs").exists()
    ended = await gymbox.run(*settings, "runner.prompt=nowhere.yaml", "--dry-run")
    assert ended.code == 2 and "nowhere.yaml" in ended.err
    openai = ("model=openai", "model.name=x")
    ended = await gymbox.run("environment=counter", *openai, "--dry-run")
    assert ended.code == 2 and "OPENAI_API_KEY" in ended.err
