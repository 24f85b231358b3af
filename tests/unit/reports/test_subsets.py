"""Subsets and environments' own metrics in reports: in their model, in Markdown and JSON, and by the command."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from gymbox.cli import main
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary
from gymbox.reports.report import Report

from tests.unit.reports.conftest import line

Run = Callable[..., Path]
Reported = Callable[..., tuple[Report, str]]


def ended(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["eval", "report", *map(str, arguments)])
    return int(caught.value.code or 0)


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    folder = tmp_path / "environments" / "counter"
    folder.mkdir(parents=True)
    told = {"description": "x", "key_metrics": ["steps", "longest"]}
    (folder / "environment.yaml").write_text(yaml.safe_dump(told))
    (folder / "metrics.py").write_text(
        "def compute_metrics(rollouts):\n    tasks = [len(each['task_id']) for each in rollouts]\n"
        "    return {'longest': max(tasks), 1: {2: [3]}}\n"
    )
    return folder.parent


@pytest.fixture
def levels(run: Run) -> Path:
    return run(
        line("a", 0, 1.0, level=1, metrics={"steps": 2}),
        line("b", 0, 0.0, level=1, metrics={"steps": 4}),
        line("c", 0, 0.5, level=2),
        line("d", 0),
        line("e", 0, 1.0, environment="weather", level=2),
    )


def test_subsets_are_those_of_the_evaluation(levels: Path, reported: Reported) -> None:
    report, _ = reported(levels, by="level")
    assert report.by == "level"
    assert report.runs[0].summary == summary(RunReader(levels), by="level", tasks=True)
    assert {name: list(found) for name, found in report.runs[0].summary.subsets.items()} == {
        "counter": ["(none)", "1", "2"],
        "weather": ["2"],
    }


def test_a_field_that_no_rollout_has_is_refused(levels: Path, reported: Reported) -> None:
    with pytest.raises(ConfigError, match=r"has a field verifier_metadata.levle; known: "):
        reported(levels, by="verifier_metadata.levle")


def test_the_differences_of_subsets_are_paired_by_task(run: Run, reported: Reported) -> None:
    before = {"a": 0.0, "b": 0.25, "c": 1.0, "d": 0.5}
    after = {"a": 1.0, "b": 0.75, "c": 0.0, "d": None}
    level = {"a": "easy", "b": "easy", "c": "hard", "d": "easy"}
    runs = [
        run(*(line(task, 0, reward, level=level[task]) for task, reward in rewards.items()), name=name)
        for name, rewards in (("before", before), ("after", after))
    ]
    report, _ = reported(*runs, by="level")
    assert report.comparison is not None
    easy, hard = report.comparison.subsets
    assert (easy.subset, easy.first, easy.second, easy.paired, easy.left_out) == ("easy", "before", "after", 2, 1)
    assert [task.task for task in easy.better] == ["a", "b"] and easy.worse == []
    assert easy.difference == pytest.approx(statistics.mean([1.0 - 0.0, 0.75 - 0.25]))
    assert (easy.first_mean, easy.second_mean) == (0.125, 0.875)
    assert easy.interval == (0.5, 1.0)
    assert (hard.subset, hard.difference, len(hard.worse)) == ("hard", -1.0, 1)
    assert reported(*runs)[0].comparison.subsets == []  # type: ignore[union-attr]


def test_the_command_tells_subsets_and_metrics_in_all_formats(levels: Path, environments: Path) -> None:
    assert ended(levels, "--format", "all", "--by", "level", "-f", environments) == 0
    told = json.loads((levels / "report.json").read_text())
    assert told["runs"][0]["key_metrics"] == {"counter": {"steps": 3.0, "longest": None}}
    assert told["runs"][0]["own_metrics"] == {}
    text = (levels / "report.md").read_text()
    assert "| counter | longest | unknown |" in text
    assert "### By level" in text
    assert "| counter | 1 | 2 | 2 | 0 | 0.5 |" in text
    assert "own metrics" not in text


def test_own_metrics_are_computed_by_choice_only(levels: Path, environments: Path) -> None:
    weather = environments / "weather"
    weather.mkdir()
    (weather / "environment.yaml").write_text("description: x\n")
    assert ended(levels, "--format", "all", "--own", "-f", environments) == 0
    told = json.loads((levels / "report.json").read_text())
    assert told["runs"][0]["own_metrics"] == {"counter": {"longest": 1, "1": {"2": [3]}}}
    assert told["runs"][0]["key_metrics"]["counter"]["longest"] == 1
    text = (levels / "report.md").read_text()
    assert "### The environments' own metrics" in text
    assert "| counter | longest | 1 |" in text
    assert '| counter | 1 | \\{"2": \\[3\\]\\} |' in text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda folder: (folder / "counter" / "metrics.py").unlink(), "has a metrics.py"),
        (lambda folder: (folder / "counter" / "metrics.py").write_text("x = 1"), "has no function compute_metrics"),
    ],
)
def test_own_metrics_that_cannot_be_had_leave_no_report(
    run: Run, environments: Path, change: Callable[[Path], object], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(line("a", 0, 1.0))
    change(environments)
    assert ended(folder, "--own", "-f", environments) == 2
    assert fault in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_a_comparison_has_the_metrics_of_each_run(run: Run, environments: Path, tmp_path: Path) -> None:
    first = run(line("a", 0, 0.0, level=1, metrics={"steps": 2}), name="first")
    second = run(line("a", 0, 1.0, level=1, metrics={"steps": 5}), name="second")
    output = tmp_path / "c.html"
    assert ended(first, second, "--own", "--by", "level", "-f", environments, "--format", "all", "-o", output) == 0
    told = json.loads(output.with_suffix(".json").read_text())
    assert [each["key_metrics"]["counter"]["steps"] for each in told["runs"]] == [2.0, 5.0]
    assert [each["own_metrics"]["counter"]["longest"] for each in told["runs"]] == [1, 1]
    text = output.with_suffix(".md").read_text()
    assert "By level, adjusted for all subsets:" in text
    assert "| counter | 1 | second | no difference shown | 1 |" in text
