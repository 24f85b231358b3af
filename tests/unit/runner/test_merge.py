"""Merge: shards of a run become the whole, or an error that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.artifacts import ArtifactStore
from gymbox.cli import main
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.http import HttpClient
from gymbox.merge import merged
from gymbox.plan import Plan
from gymbox.players import Player
from gymbox.results import RunFolder
from gymbox.runner import run
from gymbox.runner_settings import RunnerSettings

from .conftest import CountingAgent, MemoryController, SilentModel, row

Make = Callable[..., Environment]


async def shard(environment: Environment, path: Path, **settings: Any) -> Path:
    with Plan([environment], RunnerSettings(**settings)) as plan:
        inputs = plan.inputs()
        folder = RunFolder.open(path, inputs=inputs, settings={}, planned=len(plan), resume=False)
        async with HttpClient() as http:
            await run(plan, {None: Player(CountingAgent(), SilentModel())}, MemoryController(), http, folder)
    return path


@pytest.fixture
def counter(environment: Make) -> Environment:
    return environment(*[row(id=f"task-{number}") for number in range(5)], row(id="crash", crash="boom"))


@pytest.fixture
async def shards(counter: Environment, tmp_path: Path) -> list[Path]:
    return [await shard(counter, tmp_path / f"part-{part}", shard=f"{part}/2", repeats=2) for part in (1, 2)]


def test_shards_become_one_run(shards: list[Path], tmp_path: Path) -> None:
    (shards[0] / "calls").mkdir()
    (shards[0] / "calls" / "one.jsonl").write_text("{}\n")
    (shards[1] / "judge" / "calls").mkdir(parents=True)
    (shards[1] / "judge" / "calls" / "one.jsonl").write_text('{"judge": 1}\n')
    (shards[1] / "failures.jsonl").write_text('{"a": 1}\n')
    digests = ["1" * 64, "2" * 64]
    for path, digest in zip(shards, digests, strict=True):
        kept = ArtifactStore(path).path(digest)
        kept.parent.mkdir(parents=True)
        kept.write_text(digest)

    merged(shards[::-1], tmp_path / "whole")

    whole = tmp_path / "whole"
    lines = [json.loads(line) for line in (whole / "rollouts.jsonl").read_text().splitlines()]
    assert sorted((line["task_id"], line["_ng_rollout_index"]) for line in lines) == sorted(
        (task, repeat) for task in (*(f"task-{number}" for number in range(5)), "crash") for repeat in (0, 1)
    )
    assert [ArtifactStore(whole).path(digest).read_text() for digest in digests] == digests
    manifest = json.loads((whole / "manifest.json").read_text())
    assert (manifest["status"], manifest["planned"], manifest["done"], manifest["scored"]) == ("finished", 12, 12, 10)
    assert manifest["inputs"]["runner"]["shard"] is None and len(manifest["shards"]) == 2
    parts = [json.loads((path / "manifest.json").read_text())["used"]["seconds"] for path in shards]
    assert manifest["used"]["seconds"] == pytest.approx(sum(parts)) and manifest["stopped_by"] is None
    metrics = json.loads((whole / "metrics.json").read_text())
    assert metrics["total"]["mean/reward"] == 1.0 and metrics["environments"]["counter"]["rollouts"] == 12
    assert [path.read_text() for path in (whole / "calls").iterdir()] == ["{}\n"]
    assert [path.read_text() for path in (whole / "judge" / "calls").iterdir()] == ['{"judge": 1}\n']
    assert (whole / "failures.jsonl").read_text() == '{"a": 1}\n'


def test_a_merged_run_is_not_gone_on_with(shards: list[Path], tmp_path: Path) -> None:
    merged(shards, tmp_path / "whole")

    with pytest.raises(ConfigError, match="was merged from shards"):
        RunFolder.check(tmp_path / "whole", inputs={}, resume=True)


async def test_a_shard_that_is_missing_twice_there_or_of_another_run_is_named(
    counter: Environment, shards: list[Path], tmp_path: Path
) -> None:
    other = await shard(counter, tmp_path / "other", shard="2/2", repeats=3)
    third = await shard(counter, tmp_path / "third", shard="1/3", repeats=2)
    alone = await shard(counter, tmp_path / "alone")
    whole = tmp_path / "whole"
    for paths, said in (
        (shards[:1], "shards are missing: 2/2"),
        ([shards[0], shards[0]], "shard 1/2 is given twice"),
        ([shards[0], other], "of another run.*runner differ"),
        ([shards[0], third], "one of 2 shards.*one of 3"),
        ([alone], "is no shard"),
        ([tmp_path], "holds no run"),
    ):
        with pytest.raises(ConfigError, match=said):
            merged(paths, whole)
        assert not whole.exists()
    with pytest.raises(ConfigError, match="is there already"):
        merged(shards, shards[0])


def test_what_is_there_can_be_merged_and_is_not_called_finished(shards: list[Path], tmp_path: Path) -> None:
    manifest = merged(shards[:1], tmp_path / "whole", partial=True)

    assert manifest.status == "interrupted" and manifest.done == 6


def test_a_damaged_or_unfinished_shard_leaves_nothing_behind(shards: list[Path], tmp_path: Path) -> None:
    rows = shards[1] / "rollouts.jsonl"
    good = rows.read_bytes()
    for content, said in (
        (good[:-3], "middle of a line"),
        (good + b"{\n", r"jsonl:7 is damaged"),
        (good + b"{}\n", r"jsonl:7 is damaged: it has no 'reward'"),
        (good + b"[]\n", r"jsonl:7 is damaged"),
    ):
        rows.write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            merged(shards, tmp_path / "whole")
    rows.write_bytes(good)
    manifest = shards[1] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"finished"', '"interrupted"'))
    with pytest.raises(ConfigError, match="is interrupted"):
        merged(shards, tmp_path / "whole")
    manifest.write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        merged(shards, tmp_path / "whole")

    assert not [path for path in tmp_path.iterdir() if "whole" in path.name]


def test_the_command_says_what_it_made(shards: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["merge", *map(str, shards), "-o", str(tmp_path / "whole")])

    assert end.value.code == 0
    assert "12 of 12 rollouts, 10 with a reward" in capsys.readouterr().out
