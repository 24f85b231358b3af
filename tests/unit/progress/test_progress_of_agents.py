"""Progress and the table at the end, where a run has several agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.plan import Plan
from gymbox.progress import Progress, show
from gymbox.results import RunFolder
from gymbox.rollout import RolloutResult
from gymbox.runner import Summary
from gymbox.runner_settings import RunnerSettings
from gymbox.scores import Score

from tests.unit.progress.test_progress import console, text


@pytest.fixture
def counter(tmp_path: Path) -> Environment:
    folder = tmp_path / "counter"
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text("description: x")
    row = '{"agent": "one", "responses_create_params": {"input": "x"}}\n'
    (folder / "data" / "example.jsonl").write_text(row * 2 + '{"responses_create_params": {"input": "x"}}\n')
    return Environment.load(folder)


def record(agent: str, repeat: int) -> dict[str, Any]:
    told = {"rollout_id": f"{agent}{repeat}", "environment": "counter", "agent_ref": {"name": agent}, "task_id": "t"}
    return {**told, "reward": 1.0, "error": None, "timings": {"total": 1.0}}


async def shown(tmp_path: Path, plan: Plan, agents: list[str], before: str | None = None) -> str:
    """The last of what a terminal is shown, after the first rollout has ended."""
    player = {"agent": {"_target_": "a.Agent"}, "model": {"_target_": "a.Model", "name": "m"}}
    inputs = {"agents": dict.fromkeys(agents, player)}
    folder = RunFolder.open(tmp_path / "run", inputs=inputs, settings={}, planned=len(plan), resume=False)
    if before:
        await folder.add(record(before, 0))
    out = console(terminal=True)
    with Progress(out, plan, folder) as progress:
        slot = next(iter(plan))
        progress.started(slot)
        progress.ended(slot, RolloutResult(rollout_id="r", task_id="t", environment="counter", reward=1.0))
    await folder.close("finished")
    return text(out)


async def test_agents_that_do_every_task_have_their_share_of_them(tmp_path: Path, counter: Environment) -> None:
    with Plan([counter], RunnerSettings(cross_agents=True), agents=["one", "two"]) as plan:
        found = await shown(tmp_path, plan, ["one", "two"], before="two")
    assert "counter" in found and "2/6" in found
    [one] = [each for each in found.splitlines() if each.startswith("  one")][-1:]
    [two] = [each for each in found.splitlines() if each.startswith("  two")][-1:]
    assert "1/3" in one and "1/3" in two


async def test_of_agents_that_rows_choose_it_shows_what_is_done(tmp_path: Path, counter: Environment) -> None:
    with Plan([counter], RunnerSettings(), agents=["one"]) as plan:
        found = await shown(tmp_path, plan, ["one"], before="agent")
    rows = {each.split()[0]: each.split() for each in found.splitlines() if each.startswith("  ")}
    assert rows["one"][1] == "1" and rows["agent"][1] == "1"


def test_the_table_at_the_end_has_a_line_for_each_agent(tmp_path: Path) -> None:
    one, two = Score(rollouts=2, scored=2, reward_sum=2), Score(rollouts=2, scored=2)
    both = Score(rollouts=4, scored=4, reward_sum=2)
    summary = Summary(
        run="r",
        folder=tmp_path,
        status="finished",
        planned=8,
        done=8,
        total=Score(rollouts=8, scored=8, reward_sum=4),
        environments={"counter": both, "weather": both},
        agents={"counter": {"two": two, "one": one}, "weather": {"one": one}},
    )
    out = console(terminal=False)
    show(summary, out, program="gymbox", resume="x", onward="y")
    names = [each.split()[0] for each in text(out).splitlines() if each.startswith("  ") and each.strip()]
    assert names[-7:] == ["environment", "counter", "one", "two", "weather", "one", "(all)"]
