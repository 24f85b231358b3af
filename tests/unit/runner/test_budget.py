"""Budgets: what counts, when a run stops for it, and how it is gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox import budget as module
from gymbox.agents import Agent, AgentModel, Tools
from gymbox.budget import Budget, Meter, Reached, Used
from gymbox.environment import Environment
from gymbox.errors import ConfigError, ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models.prices import Price, Spent
from gymbox.models.scripted import ScriptedModel, Tokens
from gymbox.plan import Plan
from gymbox.players import Player
from gymbox.results import RunFolder
from gymbox.run_control import RunControl
from gymbox.run_manifest import manifest_in
from gymbox.runner import Summary, run
from gymbox.runner_settings import RunnerSettings
from gymbox.runs.job import check_left
from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Task
from pydantic import PrivateAttr, ValidationError

from .conftest import MemoryController, row

Make = Callable[..., Environment]
REPLIES: list[Any] = [[{"content": "done"}]]
HUNDRED = Tokens(input=90, output=10)


class AskingAgent(Agent):
    """Asks once; the first attempts of a run fail after they were answered, `failures` of them."""

    failures: int = 0
    _asked: int = PrivateAttr(0)

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        response = await model.responses(task.responses_create_params)
        self._asked += 1
        if self._asked <= self.failures:
            raise ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, "it gave nonsense")
        return response


async def start(
    output: Path, environment: Environment, agent: Agent, model: ScriptedModel | None = None, **settings: Any
) -> Summary:
    chosen = RunnerSettings(**settings)
    async with HttpClient() as http:
        with Plan([environment], chosen) as plan:
            folder = RunFolder.open(output, inputs=plan.inputs(), settings={}, planned=len(plan), resume=chosen.resume)
            model = model or ScriptedModel(replies=REPLIES, usage=HUNDRED)
            return await run(plan, {None: Player(agent, model)}, MemoryController(), http, folder, retry_pause=0.001)


def used_in(output: Path) -> Used:
    manifest = manifest_in(output)
    assert manifest is not None
    return manifest.used


async def test_a_run_stops_at_its_tokens_and_says_which_limit_it_came_to(tmp_path: Path, environment: Make) -> None:
    made = environment(*[row()] * 10)
    summary = await start(tmp_path / "run", made, AskingAgent(), concurrency=1, budget={"tokens": 250})

    assert (summary.status, summary.done, summary.planned) == ("stopped", 3, 10)
    assert summary.stopped_by == Reached(limit="tokens", allowed=250, used=300)
    manifest = manifest_in(tmp_path / "run")
    assert manifest is not None and manifest.status == "stopped" and manifest.stopped_by == summary.stopped_by
    assert (manifest.used.calls, manifest.used.tokens, manifest.used.cost) == (3, 300, None)


async def test_a_resume_counts_what_was_used_before(tmp_path: Path, environment: Make) -> None:
    made = environment(*[row()] * 10)
    await start(tmp_path / "run", made, AskingAgent(), concurrency=1, budget={"tokens": 250})
    again = await start(tmp_path / "run", made, AskingAgent(), concurrency=1, budget={"tokens": 550}, resume=True)
    assert (again.status, again.done, used_in(tmp_path / "run").tokens) == ("stopped", 6, 600)

    last = await start(tmp_path / "run", made, AskingAgent(), resume=True)
    manifest = manifest_in(tmp_path / "run")
    assert last.complete and manifest is not None
    assert manifest.status == "finished" and manifest.stopped_by is None and manifest.used.tokens == 1000


async def test_attempts_that_failed_count_as_well(tmp_path: Path, environment: Make) -> None:
    summary = await start(tmp_path / "run", environment(row(), row()), AskingAgent(failures=2), attempts=3)
    assert summary.complete
    assert used_in(tmp_path / "run").calls == 4 and used_in(tmp_path / "run").tokens == 400


async def test_a_run_stops_at_its_cost(tmp_path: Path, environment: Make) -> None:
    model = ScriptedModel(replies=REPLIES, usage=HUNDRED, price=Price(input=1000, output=10_000))
    settings = {"concurrency": 1, "budget": {"cost": 0.3}}
    summary = await start(tmp_path / "run", environment(*[row()] * 10), AskingAgent(), model, **settings)
    assert (summary.status, summary.done) == ("stopped", 2)
    assert used_in(tmp_path / "run").cost == pytest.approx(0.38)


async def test_a_run_stops_at_its_seconds_and_drops_what_does_not_end_within_grace(
    tmp_path: Path, environment: Make
) -> None:
    model = ScriptedModel(replies=REPLIES, latency=60)
    settings: dict[str, Any] = {"budget": {"seconds": 0.05}, "grace": 0.01}
    async with asyncio.timeout(30):
        summary = await start(tmp_path / "run", environment(*[row()] * 3), AskingAgent(), model, **settings)
    assert summary.stopped_by is not None and summary.stopped_by.limit == "seconds"
    assert (summary.status, summary.done) == ("stopped", 0)
    used = used_in(tmp_path / "run")
    assert used.seconds >= 0.05 and used.calls_without_usage == 3


async def test_what_is_reached_with_the_last_rollout_stops_nothing(tmp_path: Path, environment: Make) -> None:
    summary = await start(tmp_path / "run", environment(row(), row()), AskingAgent(), budget={"tokens": 200})
    assert summary.status == "finished" and summary.stopped_by is None


async def test_a_limit_that_cannot_be_counted_ends_the_run_with_the_reason(tmp_path: Path, environment: Make) -> None:
    silent = ScriptedModel(replies=REPLIES)
    settings = {"concurrency": 1, "budget": {"output_tokens": 100}}
    summary = await start(tmp_path / "run", environment(*[row()] * 5), AskingAgent(), silent, **settings)
    assert (summary.status, summary.done) == ("failed", 1)
    assert "'scripted' does not tell what its answers used" in summary.gave_up


async def test_seconds_need_no_usage(tmp_path: Path, environment: Make) -> None:
    silent = ScriptedModel(replies=REPLIES)
    summary = await start(tmp_path / "run", environment(row()), AskingAgent(), silent, budget={"seconds": 60})
    assert summary.complete and used_in(tmp_path / "run").calls_without_usage == 1


async def test_what_is_used_is_on_disk_while_the_run_goes_on(
    tmp_path: Path, environment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVED_EVERY", 0.01)
    model = ScriptedModel(replies=REPLIES, usage=HUNDRED, latency=0.05)
    going = asyncio.create_task(
        start(tmp_path / "run", environment(*[row()] * 100), AskingAgent(), model, concurrency=1)
    )
    async with asyncio.timeout(30):
        await asyncio.sleep(0.2)
        while not used_in(tmp_path / "run").tokens:  # noqa: ASYNC110 - a file tells nobody that it changed
            await asyncio.sleep(0.01)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "running"
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going


async def test_a_manifest_that_cannot_be_written_now_fails_no_rollout(
    tmp_path: Path, environment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    made = environment(row())
    with Plan([made], RunnerSettings()) as plan:
        folder = RunFolder.open(tmp_path / "run", inputs=plan.inputs(), settings={}, planned=1, resume=False)
    (tmp_path / "run" / "manifest.json").unlink()
    (tmp_path / "run" / "manifest.json").mkdir()
    await folder.save()
    assert "could not write the manifest" in caplog.text
    (tmp_path / "run" / "manifest.json").rmdir()
    await folder.close("interrupted")


async def test_a_run_that_was_stopped_for_another_reason_has_not_come_to_its_limit() -> None:
    control = RunControl()
    meter = Meter(Budget(tokens=10), Used())

    async def save() -> None:
        """Nothing to write."""

    async with meter.running(control.stop, control.stopped.is_set, save):
        control.stop()
        meter.count("m", Spent(input_tokens=50), None, answered=True)
    assert meter.reached is None and meter.used.tokens == 50


@pytest.mark.parametrize(
    ("limits", "used", "limit"),
    [
        ({"tokens": 10}, Used(input_tokens=6, output_tokens=4), "tokens"),
        ({"input_tokens": 10}, Used(input_tokens=9, output_tokens=90), None),
        ({"output_tokens": 10}, Used(output_tokens=10), "output_tokens"),
        ({"cost": 1}, Used(), None),
        ({"cost": 1}, Used(cost=1.5), "cost"),
        ({"seconds": 5}, Used(seconds=5), "seconds"),
        ({}, Used(input_tokens=10**9, seconds=10**9), None),
    ],
)
def test_a_limit_is_reached_when_as_much_is_used(limits: dict[str, Any], used: Used, limit: str | None) -> None:
    reached = Budget(**limits).reached(used)
    assert (reached and reached.limit) == limit


@pytest.mark.parametrize("limits", [{"tokens": 0}, {"cost": -1}, {"seconds": float("inf")}, {"dollars": 3}])
def test_a_budget_that_makes_no_sense_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Budget(**limits)


def test_a_run_whose_budget_is_used_up_is_not_gone_on_with(tmp_path: Path, environment: Make) -> None:
    with Plan([environment(row())], RunnerSettings()) as plan:
        folder = RunFolder.open(tmp_path / "run", inputs=plan.inputs(), settings={}, planned=1, resume=False)
    manifest = folder.manifest.model_copy(update={"used": Used(input_tokens=700), "status": "stopped"})
    check_left(None, RunnerSettings(budget=Budget(tokens=500)))
    check_left(manifest, RunnerSettings(budget=Budget(tokens=900)))
    finished = manifest.model_copy(update={"status": "finished"})
    check_left(finished, RunnerSettings(budget=Budget(tokens=500)))
    with pytest.raises(ConfigError, match=r"700 of 500 used.*runner.budget.tokens=1200"):
        check_left(manifest, RunnerSettings(budget=Budget(tokens=500)))
    with pytest.raises(ConfigError, match="is used up"):
        check_left(finished, RunnerSettings(budget=Budget(tokens=500), retry_failed=True, resume=True))


def test_what_two_runs_used_adds_up_and_an_unknown_cost_stays_unknown() -> None:
    one, two = Used(calls=1, input_tokens=5, seconds=1), Used(calls=2, output_tokens=3, cost=0.5)
    assert one.plus(two) == Used(calls=3, input_tokens=5, output_tokens=3, cost=0.5, seconds=1)
    assert one.plus(one).cost is None


def test_numbers_are_shown_short() -> None:
    told = Budget(tokens=2_000_000, cost=5, seconds=3600).told(Used(input_tokens=45_600, cost=0.00421, seconds=12.345))
    assert told == ["45.6k/2M tokens of the budget", "0.00421/5 of the budget spent", "12.35/3600 s of the budget"]
    assert str(Reached(limit="cost", allowed=5, used=5.25)) == "runner.budget.cost: 5.25 of 5 used"
    assert Reached(limit="cost", allowed=0.5, used=0.62).more == "1.12"
