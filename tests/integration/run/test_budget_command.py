"""Budgets of `gymbox run` as users have them: exit codes, the way on, a kill in the midst, judges."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import Any

from .conftest import Gymbox

USAGE = "model.usage={input: 90, output: 10}"
RUN = ("environment=counter", "model=scripted", "provider=process", "agent=single_turn", "runner.output=out")


async def test_a_run_ends_with_3_at_its_budget_and_prints_the_command_that_goes_on(gymbox: Gymbox) -> None:
    ended = await gymbox.run(*RUN, USAGE, "runner.concurrency=1", "runner.limit=9", "runner.budget.tokens=250")

    assert ended.code == 3, ended.err
    assert "stopped: runner.budget.tokens: 300 of 250 used" in ended.out
    assert "300/250 tokens of the budget" in ended.err
    manifest = gymbox.read("out", "manifest.json")
    assert manifest["status"] == "stopped" and manifest["stopped_by"] == {
        "limit": "tokens",
        "allowed": 250.0,
        "used": 300.0,
    }

    refused = await gymbox.run(*RUN, USAGE, "runner.limit=9", "runner.resume=true", "runner.budget.tokens=250")
    assert refused.code == 2 and "budget is used up" in refused.err

    onward = re.search(r"^go on +(.+)$", ended.out, re.MULTILINE)
    assert onward is not None and onward[1].endswith("runner.budget.tokens=550")
    assert await gymbox.shell(onward[1]) == 3
    assert len(gymbox.lines("out")) == 6
    last = await gymbox.run(*RUN, USAGE, "runner.limit=9", "runner.resume=true", "--json")
    assert last.code == 0 and json.loads(last.out)["stopped_by"] is None
    assert gymbox.read("out", "manifest.json")["used"]["calls"] == 9


async def test_what_was_used_outlives_a_kill(gymbox: Gymbox) -> None:
    slow = (*RUN, USAGE, "model.latency=1", "runner.concurrency=2")
    command = await gymbox.start(*slow, "runner.budget={tokens: 100000, seconds: 3000}")
    manifest: dict[str, Any] = {}
    await command.until("24 rollouts")
    while not manifest.get("used", {}).get("calls"):
        await asyncio.sleep(0.1)
        manifest = gymbox.read("out", "manifest.json")
    command.tell(signal.SIGKILL)
    assert (await command.ended()).code == -signal.SIGKILL
    manifest = gymbox.read("out", "manifest.json")
    assert manifest["status"] == "running" and manifest["used"]["seconds"] > 0

    ended = await gymbox.run(*slow, "runner.resume=true", "runner.budget.tokens=100")
    assert ended.code == 2 and f"{manifest['used']['calls'] * 100} of 100 used" in ended.err


async def test_a_cost_needs_a_price_of_every_model(gymbox: Gymbox) -> None:
    ended = await gymbox.run(*RUN, "runner.budget.cost=1")
    assert ended.code == 2 and "the model has no price" in ended.err

    judged = ("environment=short_answers", "model=scripted", "judge=scripted", "provider=process")
    price = "model.price={input: 1, output: 2}"
    ended = await gymbox.run(*judged, price, "runner.budget.cost=1")
    assert ended.code == 2 and "the judge has no price" in ended.err


async def test_what_the_judge_uses_counts(gymbox: Gymbox) -> None:
    ended = await gymbox.run(
        *("environment=short_answers", "model=scripted", "judge=scripted", "provider=process"),
        *("judge.usage={input: 500, output: 5}", "judge.price={input: 1, output: 1}"),
        *("model.usage={input: 10, output: 1}", "model.price={input: 1, output: 1}"),
        *("runner.concurrency=1", "runner.budget.cost=0.001", "runner.output=out"),
    )
    assert ended.code == 3, ended.err
    used = gymbox.read("out", "manifest.json")["used"]
    assert used["cost"] >= 0.001 and used["input_tokens"] >= 500 and used["calls_without_price"] == 0


async def test_a_model_that_tells_no_usage_ends_the_run_and_says_why(gymbox: Gymbox) -> None:
    ended = await gymbox.run(*RUN, "runner.concurrency=1", "runner.budget.tokens=1000")
    assert ended.code == 1 and "does not tell what its answers used" in ended.out
    assert gymbox.read("out", "manifest.json")["status"] == "failed"


async def test_a_wrong_budget_is_refused(gymbox: Gymbox) -> None:
    ended = await gymbox.run(*RUN, "runner.budget.token=10")
    assert ended.code == 2 and "budget" in ended.err and "did you mean" in ended.err


async def test_ctrl_c_goes_before_the_budget(gymbox: Gymbox) -> None:
    command = await gymbox.start(*RUN, USAGE, "model.latency=60", "runner.budget.seconds=3000", "runner.grace=0.1")
    await command.until(r"running \(")
    command.tell(signal.SIGINT)
    assert (await command.ended()).code == 130
    assert gymbox.read("out", "manifest.json")["status"] == "interrupted"
