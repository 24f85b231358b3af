"""`gymbox eval metrics` and `profile`: what they print, and how they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from gymbox.cli import main

from tests.unit.evaluation.conftest import line

Run = Callable[..., Path]


def ended(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["eval", *map(str, arguments)])
    return int(caught.value.code or 0)


@pytest.fixture
def mixed(run: Run) -> Path:
    output = [{"type": "message", "role": "assistant", "content": "4"}]
    usage = {"input_tokens": 5, "output_tokens": 3}
    lines = [
        line("a", 0, 1.0, metrics={"steps": 2}, reward_components={"form": 0.5}, answer="4"),
        line("a", 1, 0.0, response={"output": output}, usage=usage, answer=None),
        line("b", 0, 1.0, answer="5"),
        line("b", 1),
    ]
    return run(*lines, rows=3, repeats=2)


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    folder = tmp_path / "environments" / "counter"
    folder.mkdir(parents=True)
    told = {"description": "x", "key_metrics": ["steps", "longest", "form", "nothing"]}
    (folder / "environment.yaml").write_text(yaml.safe_dump(told))
    (folder / "metrics.py").write_text(
        "def compute_metrics(rollouts):\n    return {'longest': max(len(each['task_id']) for each in rollouts)}\n"
    )
    return folder.parent


def test_figures_are_printed(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (mixed / "rollouts.jsonl").open("a") as file:
        file.write('{"torn')
    assert ended("metrics", mixed, "--tasks", "--by", "task_id", "--answer", "answer") == 0
    said = capsys.readouterr().out
    for part in (
        "counter: 3 tasks, 4 of 6 rollouts, 3 with a reward",
        "without a reward      3, left out (agent_failed 1)",
        "tasks without reward  1",
        "torn last line        6 bytes, left out",
        "mean reward           0.6667 ± ",
        "mean over tasks       0.75",
        "spread                0.5774, from 0 to 1, median 1",
        "1: 0.75 (1 tasks with fewer tries left out)  2: 1 (2 tasks with fewer tries left out)",
        "majority@k",
        "no answer             0.3333",
        "  component form        0.5 each, of 1 rollout\n",
        "  metric steps          2 each, of 1 rollout\n",
        "input tokens          5 each, 5 in all",
        "counter, by task_id",
        "successes",
    ):
        assert part in said, part


def test_figures_are_json_with_the_policy_named(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("metrics", mixed, "--missing", "as_failure", "--k", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["missing_policy"] == "as_failure"
    assert found["total"]["mean"] == pytest.approx(2 / 6)
    assert found["total"]["pass_at"] == {"2": {"value": pytest.approx(2 / 3), "tasks": 3, "left_out": 0}}
    assert found["total"]["cost"] == {"mean": None, "total": 0.0, "count": 0}
    assert ended("metrics", mixed, "--missing", "as_failure") == 0
    assert "counted as failures" in capsys.readouterr().out


def test_an_environments_own_metrics_are_computed_by_choice_only(
    mixed: Path, environments: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("metrics", mixed, "-f", environments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["own_metrics"] == {}
    assert found["key_metrics"]["counter"] == {"steps": 2.0, "longest": None, "form": 0.5, "nothing": None}
    assert ended("metrics", mixed, "-f", environments, "--own") == 0
    said = capsys.readouterr().out
    assert "  longest               1\n" in said
    assert "  own longest           1\n" in said


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (None, "has a metrics.py"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("x = 1", "has no function compute_metrics"),
        ("def compute_metrics(rollouts):\n    return 1 / 0", "failed: ZeroDivisionError"),
        ("def compute_metrics(rollouts):\n    return [1]", "returned list, not a dict"),
        ("def compute_metrics(rollouts):\n    return {'x': float('nan')}", "failed: ValueError"),
    ],
)
def test_own_metrics_that_fail_are_named(
    mixed: Path, environments: Path, code: str | None, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = environments / "counter" / "metrics.py"
    path.unlink() if code is None else path.write_text(code)
    assert ended("metrics", mixed, "-f", environments, "--own") == 2
    assert fault in capsys.readouterr().err


def test_own_metrics_that_find_a_damaged_line_say_so(
    mixed: Path, environments: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gymbox.environment import Environment
    from gymbox.errors import ConfigError
    from gymbox.evaluation.own_metrics import own_metrics
    from gymbox.evaluation.rollouts import RunReader

    environment = Environment.load(environments / "counter")
    reader = RunReader(mixed)
    (mixed / "rollouts.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="is no rollout"):
        own_metrics(environment, reader)
    (environments / "counter" / "metrics.py").unlink()
    with pytest.raises(ConfigError, match="has no metrics.py"):
        own_metrics(environment, reader)


def test_a_profile_is_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line(f"t{number}", repeat, 1.0) for number in range(12) for repeat in range(2)]
    folder = run(*lines, line("u", 0, 0.0), line("u", 1, 1.0))
    assert ended("profile", folder) == 0
    said = capsys.readouterr().out
    assert "too easy: 12 (nearly every try succeeds)" in said
    assert "and 2 more" in said
    assert "unstable: 1" in said
    assert ended("profile", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"too_easy": 12, "unstable": 1}


def test_a_mistyped_answer_is_refused_with_the_field_that_was_meant(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("metrics", mixed, "--answer", "anser") == 2
    assert f"no rollout of {mixed} with a reward has a field anser for its answer; did you mean 'answer'?" in (
        capsys.readouterr().err
    )


def test_a_policy_that_is_none_is_refused(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("metrics", mixed, "--missing", "as_failur") == 2
    assert "as_failure" in capsys.readouterr().err


def test_what_cannot_be_scored_anew_is_refused_before_anything_starts(
    mixed: Path, environments: Path, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "again"
    for arguments, fault in (
        ((mixed, "-f", environments), "neither `reverify: stateless` nor `reverify: artifacts`"),
        ((mixed, "-f", environments, "--only", "judge_fail"), "judge_failed"),
        ((run(name="none"), "-f", environments), "has no rollouts"),
        ((run(line("a", environment="gone"), name="gone"), "-f", environments), "no environment 'gone'"),
        ((mixed, "-f", environments, "--environment", "countr"), "did you mean 'counter'?"),
        (
            (mixed, "environment=unit_tests"),
            "environment= has no effect on scoring anew: the run has its environments",
        ),
        ((mixed, "model=openai"), "no agent and no model is asked"),
        ((mixed, "model.name=x"), "model.name= has no effect"),
        ((mixed, "++models.big=openai"), "models.big= has no effect"),
        ((mixed, "runner.repeats=2"), "of runner it takes runner.concurrency"),
    ):
        assert ended("reverify", *arguments, "-o", output) == 2
        assert fault in capsys.readouterr().err
    assert not output.exists()
