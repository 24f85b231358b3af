"""Runs of several agents: figures of each, one compared with another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli import main
from gymbox.errors import ConfigError
from gymbox.evaluation.compare import comparison
from gymbox.evaluation.metrics_file import complete_metrics
from gymbox.evaluation.profile import profile
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary

from tests.unit.evaluation.conftest import line

Run = Callable[..., Path]


def by(agent: str, task: str, repeat: int = 0, reward: float | None = None, **more: Any) -> dict[str, Any]:
    """A line of one agent."""
    return line(
        task, repeat, reward, agent_ref={"name": agent}, rollout_id=f"{agent}-{task}-{repeat}-{sorted(more)}", **more
    )


@pytest.fixture
def crossed(run: Run) -> Path:
    """Two agents with two tries at each of three tasks; of c, one agent has but one, and the other none."""
    lines = [
        *(by("good", task, repeat, 1.0, level="x") for task in "ab" for repeat in (0, 1)),
        *(by("bad", task, repeat, 0.0, level="x") for task in "ab" for repeat in (0, 1)),
        by("good", "c", 0, level="x"),
    ]
    return run(*lines, rows=3, repeats=2, agents=["bad", "good"], crossed=True)


@pytest.fixture
def shared(run: Run) -> Path:
    """Rows chose: a and b are of one agent, c of what does the rest."""
    lines = by("one", "a", 0, 1.0), by("one", "b", 0, 0.0), by("agent", "c", 0, 1.0)
    return run(*lines, name="shared", agents=["one", "agent"])


def test_each_agent_has_figures_of_its_own(crossed: Path) -> None:
    found = summary(RunReader(crossed), by="level")

    good, bad = found.agents["counter"]["good"], found.agents["counter"]["bad"]
    assert (good.planned, good.scored, good.missing, good.mean, good.pass_at[2].value) == (6, 4, 2, 1.0, 1.0)
    assert (bad.planned, bad.scored, bad.missing, bad.tasks, bad.mean) == (6, 4, 2, 3, 0.0)
    whole = found.environments["counter"]
    assert (whole.planned, whole.scored, whole.missing, whole.tasks, whole.mean) == (12, 8, 4, 3, 0.5)
    assert found.subsets["counter"]["x"].mean == 0.5


def test_what_k_tries_of_different_agents_reach_is_not_told(crossed: Path, shared: Path) -> None:
    found = summary(RunReader(crossed))
    assert found.environments["counter"].pass_at == found.total.pass_all == {}
    assert summary(RunReader(shared)).total.pass_at[1].value == pytest.approx(2 / 3)


def test_an_agent_that_has_done_nothing_is_missing_all(run: Run) -> None:
    folder = run(by("one", "a", 0, 1.0), rows=2, agents=["one", "two"], crossed=True)
    found = summary(RunReader(folder), missing="as_failure").agents["counter"]
    assert (found["two"].rollouts, found["two"].missing, found["two"].mean) == (0, 2, 0.0)
    assert found["one"].mean == 0.5


def test_where_rows_chose_each_agent_is_told_of_what_it_did(shared: Path) -> None:
    found = summary(RunReader(shared)).agents["counter"]
    assert {agent: (each.tasks, each.mean, each.planned) for agent, each in found.items()} == {
        "one": (2, 0.5, None),
        "agent": (1, 1.0, None),
    }


def test_one_agent_of_a_run_is_like_a_run_of_its_own(crossed: Path) -> None:
    reader = RunReader(crossed, "good")
    found = summary(reader)
    assert (found.run, found.agents) == ("run:good", {})
    assert (found.total.planned, found.total.rollouts, found.total.mean) == (6, 5, 1.0)
    with pytest.raises(ConfigError, match="has no agent 'god'; did you mean 'good'"):
        RunReader(crossed, "god")


def test_tasks_are_profiled_for_each_agent(crossed: Path) -> None:
    kinds = {(task.figures.agent, task.figures.task): task.kind for task in profile(RunReader(crossed)).tasks}
    assert kinds == {
        ("good", "a"): "too_easy",
        ("good", "b"): "too_easy",
        ("good", "c"): "unknown",
        ("bad", "a"): "too_hard",
        ("bad", "b"): "too_hard",
    }


def test_the_agents_of_one_run_are_compared_task_by_task(run: Run) -> None:
    lines = [by(agent, str(task), 0, reward) for agent, reward in (("a", 0.0), ("b", 1.0)) for task in range(8)]
    found = comparison([RunReader(run(*lines, agents=["a", "b"], crossed=True))])

    [difference] = found.differences
    assert (difference.first, difference.second, difference.paired) == ("run:a", "run:b", 8)
    assert (difference.verdict, difference.difference, difference.test) == ("better", 1.0, "mcnemar")
    assert [(told.run, told.rollouts, told.missing) for told in found.runs] == [("run:a", 8, 0), ("run:b", 8, 0)]


def test_of_two_runs_with_the_same_agents_each_is_compared_with_itself(run: Run) -> None:
    folders = [
        run(by("a", "t", 0, 0.0), by("b", "t", 0, 1.0), name=name, agents=["a", "b"], crossed=True)
        for name in ("before", "after")
    ]
    found = comparison([RunReader(folder) for folder in folders])
    pairs = [(each.first, each.second, each.difference) for each in found.differences]
    assert pairs == [("before:a", "after:a", 0.0), ("before:b", "after:b", 0.0)]


def test_runs_of_different_agents_are_compared_only_by_name(crossed: Path, run: Run) -> None:
    single = run(line("a", 0, 1.0), line("b", 0, 0.0), line("c", 0, 0.0), name="single")
    with pytest.raises(ConfigError, match=r"have not the same agents; of one with several, compare one .*run:bad"):
        comparison([RunReader(single), RunReader(crossed)])
    found = comparison([RunReader(single), RunReader(crossed, "good")])
    assert [(each.second, each.paired) for each in found.differences] == [("run:good", 2)]


def test_agents_that_did_different_tasks_cannot_be_compared(shared: Path, run: Run) -> None:
    with pytest.raises(ConfigError, match=r"shared:agent and .*shared:one have no task of counter in common"):
        comparison([RunReader(shared)])
    with pytest.raises(ConfigError, match="give two runs or more"):
        comparison([RunReader(run(line("a", 0, 1.0), name="single"))])


def test_metrics_json_has_error_bars_of_each_agent(crossed: Path) -> None:
    complete_metrics(crossed)
    agents = json.loads((crossed / "metrics.json").read_text())["environments"]["counter"]["agents"]
    assert (agents["good"]["pass@2"], agents["good"]["missing"], agents["good"]["rollouts"]) == (1.0, 2, 5)
    assert agents["bad"]["mean/reward"] == 0.0


def test_the_commands_take_one_agent_of_a_run_by_name(crossed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["eval", *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert "counter, by agent" in said("metrics", str(crossed), "--tasks")
    assert "5 rollouts, 4 with a reward" in said("metrics", f"{crossed}:good").replace("5 of 6", "5")
    assert "counter a by bad: 0 of 2 tries succeed" in said("profile", str(crossed))
    assert "compared with run:bad" in said("compare", str(crossed), "--common")
    both = said("compare", str(crossed), str(crossed), "--common")
    assert "compared with the same agent of the first run" in both
