"""Runs in Weights & Biases, by its own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.exports.conftest import Export
from tests.integration.exports.wandb_file import OfflineRun
from tests.integration.models.vllm_double import vllm_double
from tests.integration.run.conftest import Gymbox
from tests.unit.exports.conftest import answered, said

Run = Callable[..., Path]
KEY = "0123456789" * 4
pytest.importorskip("wandb")


@pytest.fixture
def ended(run: Run) -> Path:
    return run(
        answered("a", 0, 1.0, said("four")), answered("b", 0, 0.0, said("x")), answered("b", 1, None), repeats=2
    )


def written(folder: Path) -> list[OfflineRun]:
    return [OfflineRun(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def test_an_offline_run_holds_figures_settings_and_rollouts(ended: Path, export: Export, tmp_path: Path) -> None:
    done = export("wandb", ended, "--project", "evals", "--offline", "-o", tmp_path / "w", "--tag", "mine")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((ended / "manifest.json").read_text())
    [found] = written(tmp_path / "w")
    assert str(tmp_path / "w") in done.stdout and manifest["run"] in done.stdout
    assert (found.id, found.name, found.project) == (manifest["run"], "run", "evals")
    assert found.tags == {"gymbox", "counter", "mine"}
    assert found.summary["mean/reward"] == 0.5 and found.summary["counter/errors/agent_failed"] == 1
    assert found.summary["counter/pass@1"] == 0.5
    assert found.config["inputs"] == manifest["inputs"] and found.config["versions"] == manifest["versions"]
    table_file = found.summary["rollouts_table"]
    assert (table_file["_type"], table_file["nrows"], found.summary["rollouts"]) == ("table-file", 3, 3)
    [table] = (tmp_path / "w").glob("wandb/offline-run-*/files/media/table/*.json")
    content = json.loads(table.read_text())
    answers = [row[content["columns"].index("answer")] for row in content["data"]]
    assert answers == ["four", "x", None]
    files = ["manifest.json", "metrics.json", "rollouts.jsonl"]
    assert found.artifacts[f"rollouts-{manifest['run']}"] == files


def test_a_second_export_goes_to_the_same_run(ended: Path, export: Export, tmp_path: Path) -> None:
    where = ("--project", "evals", "--offline", "-o", tmp_path / "w", "--no-files", "--table", "0")
    for _ in range(2):
        assert export("wandb", ended, *where).returncode == 0
    found = written(tmp_path / "w")
    assert len({each.id for each in found}) == 1
    assert all(each.artifacts == {} and "rollouts_table" not in each.summary for each in found)


def test_without_a_key_or_with_a_wrong_one_it_says_how_to_log_in(
    ended: Path, export: Export, refusing: str, tmp_path: Path
) -> None:
    done = export("wandb", ended, "--project", "evals", "-o", tmp_path / "w")
    assert done.returncode == 2 and "set WANDB_API_KEY" in done.stderr and "Traceback" not in done.stderr
    done = export("wandb", ended, "--project", "p", WANDB_API_KEY=KEY, WANDB_BASE_URL=refusing)
    assert done.returncode == 2 and "invalid api key" in done.stderr and "Traceback" not in done.stderr
    assert KEY not in done.stdout + done.stderr


def test_a_server_that_does_not_answer_is_told_of(ended: Path, export: Export) -> None:
    nobody = "http://127.0.0.1:9"
    done = export("wandb", ended, "--project", "p", "--timeout", "3", WANDB_API_KEY=KEY, WANDB_BASE_URL=nobody)
    assert done.returncode == 1 and "cannot be reached" in done.stderr and "--offline" in done.stderr
    assert "Traceback" not in done.stderr


async def test_no_secret_of_a_run_reaches_the_tracker(gymbox: Gymbox, export: Export, tmp_path: Path) -> None:
    secret = "sk-not-to-be-told-0123456789"
    async with vllm_double([{"content": "done"}]) as double:
        model = ("model=chat", "model.name=double", f"model.base_url={double.url}", f"model.api_key={secret}")
        ended = await gymbox.run(
            "environment=counter", "provider=process", *model, "runner.limit=1", "runner.output=r"
        )
    assert ended.code == 0, ended.err
    done = await asyncio.to_thread(export, "wandb", "r", "--project", "p", "--offline", "-o", "w")
    assert done.returncode == 0, done.stderr
    [found] = written(tmp_path / "w")
    assert found.config["settings"]["model"]["api_key"] == "**********"
    files = [path for path in (tmp_path / "w").rglob("*") if path.is_file()]
    assert len(files) > 3 and not [path for path in files if secret.encode() in path.read_bytes()]
