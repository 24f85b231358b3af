"""`gymbox export`: what it prints, and how it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.cli import main

from tests.unit.exports.conftest import answered, ids, lines_in, said

Run = Callable[..., Path]


def ended(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["export", *map(str, arguments)])
    return int(caught.value.code or 0)


@pytest.fixture
def graded(run: Run) -> Path:
    return run(
        answered("a", 0, 1.0, said("yes", **ids([1], 2))),
        answered("a", 1, 0.0, said("no", **ids([1], 3))),
        answered("a", 2, None),
        repeats=3,
    )


def test_sft_says_what_it_wrote_and_why_the_rest_is_left_out(
    graded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("sft", graded, "-o", tmp_path / "sft.jsonl") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path / 'sft.jsonl'}: 1 row, sha256 ")
    assert "from 1 of 3 rollouts; 2 left out: below_min_reward 1, error 1\n" in said
    assert "  error, for one: counter-a-2: agent_failed: it fell\n" in said
    assert ended("sft", graded, "-o", tmp_path / "sft.jsonl") == 2
    assert "there already" in capsys.readouterr().err
    assert ended("sft", graded, "-o", tmp_path / "sft.jsonl", "--force", "--json", "--min-reward", "0") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["used"], told["left_out"]) == (2, 2, {"error": 1})
    assert told["examples"]["error"].startswith("counter-a-2")


def test_sft_takes_every_choice(graded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choices = ["--format", "tokens", "--min-reward", "0", "--per-task", "1", "--choose", "first", "--dedup"]
    assert ended("sft", graded, "-o", tmp_path / "t.jsonl", *choices, "--no-branches", "--seed", "3") == 0
    assert "left out: error 1, beyond_per_task 1" in capsys.readouterr().out
    assert lines_in(tmp_path / "t.jsonl")[0]["labels"] == [-100, 2]


def test_dpo_writes_pairs(graded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("dpo", graded, "-o", tmp_path / "dpo.jsonl", "--format", "tokens", "--pairs", "all") == 0
    assert "from 2 of 3 rollouts; 1 left out: error 1" in capsys.readouterr().out
    [row] = lines_in(tmp_path / "dpo.jsonl")
    assert (row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]) == ([1], [2], [3])
    assert ended("dpo", graded, "-o", tmp_path / "none.jsonl", "--margin", "2") == 2
    assert "not_paired 2" in capsys.readouterr().err and not (tmp_path / "none.jsonl").exists()


def test_tables_and_folders_are_written(graded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("parquet", graded, "-o", tmp_path / "r.parquet") == 0
    assert ended("datasets", graded, "-o", tmp_path / "folder", "--license", "MIT") == 0
    said = capsys.readouterr().out
    assert (
        f"{tmp_path / 'r.parquet'}: 3 rows" in said and f"{tmp_path / 'folder' / 'rollouts.parquet'}: 3 rows" in said
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wandb"], "name the project"),
        (["mlflow"], "name the server"),
        (["mlflow", "--tracking-uri", "http://127.0.0.1:1", "--tag", "x"], "write KEY=VALUE"),
        (["wandb", "--project", "p", "--name", "one", "TWICE"], "2 runs cannot all have it"),
    ],
)
def test_trackers_want_to_know_where(
    graded: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    command, *more = [str(graded) if each == "TWICE" else each for each in arguments]
    assert ended(command, graded, *more) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("wandb", ["wandb", "--project", "p", "--offline"], "wandb"),
        ("mlflow", ["mlflow", "--tracking-uri", "http://127.0.0.1:1"], "mlflow"),
        ("pyarrow", ["parquet", "-o", "r.parquet"], "datasets"),
        ("pyarrow", ["sft", "-o", "s.parquet"], "datasets"),
    ],
)
def test_a_missing_extra_is_named(
    graded: Path,
    module: str,
    arguments: list[str],
    extra: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert ended(arguments[0], graded, *arguments[1:]) == 2
    assert f"pip install 'gymbox[{extra}]'" in capsys.readouterr().err
