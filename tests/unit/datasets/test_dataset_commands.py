from __future__ import annotations

import json
from pathlib import Path

import pytest
from gymbox.cli import main

from tests.unit.datasets.conftest import Rows, read, task


def gymbox(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["dataset", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_validate_tells_digest_and_license(rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows(task("a"), task("b"))
    assert gymbox("validate", path) == 0
    assert "2 rows, sha256 " in (out := capsys.readouterr().out) and "license unknown" in out
    assert gymbox("validate", path, "--require-license") == 1
    assert "(license): is not told" in capsys.readouterr().err
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert gymbox("validate", path, "--require-license", "--json") == 0
    [report] = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["license"], report["faults"]) == (2, "mit", 0)


def test_validate_tells_line_field_reason_and_remedy(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows(task("a"), b"", {"response_create_params": {}}, *([b"{"] * 30))
    assert gymbox("validate", path) == 1
    said = capsys.readouterr().err
    assert f"{path}:3: response_create_params: unknown field; did you mean 'responses_create_params'?" in said
    assert said.startswith("31 faults:") and "… and 11 more" in said
    assert gymbox("validate", rows(b"")) == 1
    assert "holds no rows" in capsys.readouterr().err


def test_validate_knows_environments(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("validate", "-e", "counter") == 0
    assert "counter/data/example.jsonl" in capsys.readouterr().out
    assert gymbox("validate") == 2
    assert "name a file of rows" in capsys.readouterr().err


def test_validate_wants_task_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    assert gymbox("validate", tmp_path / "rows.csv") == 2
    assert "see: gymbox dataset convert" in capsys.readouterr().err
    assert gymbox("validate", tmp_path / "none.jsonl") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_rows_go_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = "".join(f"what is {number} + 1?,{number + 1}\n" for number in range(20))
    (tmp_path / "rows.csv").write_text(f"q,answer\n{questions}")
    (tmp_path / "template.yaml").write_text("system: Answer with a number.\nuser: 'Q: {q}'\n")
    tasks, splits, whole = tmp_path / "tasks.jsonl", tmp_path / "splits", tmp_path / "whole"
    rendered = ("render", tmp_path / "rows.csv", "-t", tmp_path / "template.yaml", "-o", tasks, "--hide", "answer")
    assert gymbox(*rendered) == 0
    assert gymbox(*rendered) == 2  # it is there
    assert gymbox(*rendered, "--force") == 0
    assert gymbox("split", tasks, "-o", splits, "--into", "train=0.8", "--into", "test=0.2") == 0
    sources = (f"train={splits / 'train.jsonl'}", f"test={splits / 'test.jsonl'}")
    assert gymbox("collate", *sources, "-o", whole, "--license", "MIT", "--agent", "tool_loop") == 0
    assert gymbox("validate", whole / "train.jsonl", whole / "test.jsonl", "--require-license") == 0
    assert gymbox("convert", whole / "test.jsonl", "-o", tmp_path / "chat.jsonl", "--to", "chat") == 0
    [system, user] = read(tmp_path / "chat.jsonl")[0]["messages"]
    assert system["content"] == "Answer with a number." and user["content"].startswith("Q: what is")
    said = capsys.readouterr().out
    assert f"{whole}: license MIT" in said and "test by train: " in said


def test_shares_that_cannot_be_read_are_told(rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows(task("a"))
    assert gymbox("split", path, "-o", tmp_path / "out", "--into", "train") == 2
    assert "--into train: write NAME=SHARE" in capsys.readouterr().err
    assert gymbox("split", path, "-o", tmp_path / "out", "--into", "a=0.5", "--into", "a=0.5") == 2
    assert "the split 'a' is there already" in capsys.readouterr().err


def test_collate_tells_what_it_leaves_out(rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows(task("a"), task("a"))
    arguments = ("collate", path, "-o", tmp_path / "out", "--license", "MIT", "--duplicates", "drop-exact")
    assert gymbox(*arguments) == 0
    assert "1 duplicates left out" in capsys.readouterr().out


def test_stats_tell_of_rows_and_contamination(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = rows(task("a"), task("A"), name="train.jsonl"), rows(task("a", agent_ref={"name": "x"}))
    assert gymbox("stats", train, test) == 0
    said = capsys.readouterr().out
    assert f"{test} by {train}: 1 of 1 rows contaminated" in said and f"{test}:1: 100%" in said
    assert f"{train}:2 = {train}:1" in said and "license: unknown" in said and "agents: x 1" in said
    assert gymbox("stats", train, test, "--json", "--fail-if-contaminated") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["contamination"][0]["contaminated"] == 1
    assert report["sources"][str(train)]["duplicates"]["normalised"]["rows"] == 1
    assert gymbox("stats", rows(b"{")) == 2
    assert "there is what cannot be read, 1 fault" in capsys.readouterr().err


def test_upload_wants_a_license(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("huggingface_hub")
    assert gymbox("upload", rows(task("a")), "me/tasks") == 2
    assert "its license is not known" in capsys.readouterr().err
