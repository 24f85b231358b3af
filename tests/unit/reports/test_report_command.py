"""`gymbox eval report`: what it writes where, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.cli import main

from tests.unit.reports.conftest import line, trajectories

Run = Callable[..., Path]


def ended(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["eval", "report", *map(str, arguments)])
    return int(caught.value.code or 0)


def test_the_page_is_put_into_the_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(line("a", 0, 1.0))
    assert ended(folder) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_all_formats_are_written_beside_one_another(run: Run, tmp_path: Path) -> None:
    folder = run(line("a", 0, 1.0))
    assert ended(folder, "--format", "all") == 0
    assert {path.name for path in folder.glob("report.*")} == {"report.html", "report.md", "report.json"}
    assert ended(folder, "--format", "all", "-o", tmp_path / "mine") == 0
    assert {path.name for path in tmp_path.glob("mine.*")} == {"mine.html", "mine.md", "mine.json"}


def test_the_name_or_the_option_tells_the_format(run: Run, tmp_path: Path) -> None:
    folder = run(line("a", 0, 1.0))
    assert ended(folder, "-o", tmp_path / "x.json") == 0
    assert json.loads((tmp_path / "x.json").read_text())["format"] == 2
    assert ended(folder, "--format", "md") == 0
    assert (folder / "report.md").is_file()
    assert ended(folder, "--format", "md", "-o", tmp_path / "x.txt") == 0
    assert (tmp_path / "x.txt").read_text().startswith("# run\n")
    (tmp_path / "into").mkdir()
    assert ended(folder, "-o", tmp_path / "into") == 0
    assert (tmp_path / "into" / "report.html").is_file()


def test_a_file_of_rollouts_gets_its_report_beside_it(run: Run) -> None:
    path = run(line("a", 0, 1.0)) / "rollouts.jsonl"
    assert ended(path) == 0
    assert path.with_suffix(".report.html").is_file()


def test_runs_are_compared_in_a_file_of_its_own(run: Run) -> None:
    first, second = run(line("a", 0, 0.0), name="first"), run(line("a", 0, 1.0), name="second")
    assert ended(first, second) == 0
    assert (first / "comparison.html").is_file()


def test_agents_of_a_run_are_compared_all_or_by_name(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line("a", 0, 1.0, agent_ref={"name": agent}, rollout_id=agent) for agent in ("x", "y", "z")]
    folder = run(*lines, agents=["x", "y", "z"], crossed=True)
    for arguments, names in (
        ([folder, "--agents"], ["run:x", "run:y", "run:z"]),
        ([f"{folder}:z", f"{folder}:x"], ["run:z", "run:x"]),
    ):
        assert ended(*arguments, "--format", "json") == 0
        told = json.loads((folder / "comparison.json").read_text())
        assert [each["name"] for each in told["runs"]] == names
    assert ended(f"{folder}:y") == 0
    assert (folder / "report-y.html").is_file() and not (folder / "report.html").exists()
    capsys.readouterr()
    assert ended(f"{folder}:w") == 2
    assert f"{folder} has no agent 'w'" in capsys.readouterr().err
    assert ended(folder, folder, "--agents") == 2
    assert "--agents compares the agents of one run" in capsys.readouterr().err
    assert ended(run(line("a", 0, 1.0), name="single"), "--agents") == 2
    assert "one alone only where it has several agents" in capsys.readouterr().err


def test_answers_can_be_kept_out(run: Run) -> None:
    folder = run(line("a", 0, 1.0, verifier_metadata={"answer": "secret"}))
    for option, shown in (("--answers", 1), ("--no-answers", 0)):
        assert ended(folder, option) == 0
        [told] = trajectories((folder / "report.html").read_text()).values()
        assert len(told["hidden"]) == shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "htm"], "--format htm: did you mean"),
        (["-o", "x.pdf"], "--output x.pdf: end its name with .html, .md, .json, or say --format"),
        (["-o", "x.md", "--format", "html"], "--output x.md is no name for --format html"),
        (["--missing", "no"], "--missing no: "),
        (["-o", "nowhere/x.html"], "cannot write nowhere/x.html: No such file or directory"),
    ],
)
def test_what_cannot_be_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert ended(run(line("a", 0, 1.0)), *arguments) == 2
    assert said in capsys.readouterr().err
