"""Runner: several agents in one run, each with the model it asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.agents import Agent, AgentModel, Tools
from gymbox.agents.tool_loop import ToolLoop
from gymbox.environment import Environment
from gymbox.models import Call, Model
from gymbox.players import Player
from gymbox_sandbox.responses import Message, Response, ResponsesParams
from gymbox_sandbox.tasks import Task

from .conftest import CountingAgent, row
from .test_runner import Bench

Make = Callable[..., Environment]


class Adding(Agent):
    """Adds so much, and says what its model said."""

    by: int

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        await tools.call("increment", {"by": self.by})
        return await model.responses(task.responses_create_params)


class Saying(Model):
    """Says its name."""

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        return Response(output=[Message(role="assistant", content=self.name)])


def player(by: int, model: str) -> Player:
    return Player(Adding(by=by), Saying(name=model))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "run")


async def test_each_agent_asks_its_own_model_and_has_its_own_figures(bench: Bench, environment: Make) -> None:
    players = {"one": player(1, "small"), "two": player(2, "big")}
    counter = environment(row(id="a", agent_ref={"name": "lost"}), row(id="b"))

    summary = await bench.run(counter, players=players, repeats=2, cross_agents=True)

    said = {
        (line["agent_ref"]["name"], line["task_id"], line["_ng_rollout_index"]): (
            line["reward"],
            line["response"]["output"][0]["content"],
        )
        for line in bench.lines()
    }
    assert said == {
        (agent, task, repeat): outcome
        for agent, outcome in (("one", (1.0, "small")), ("two", (0.0, "big")))
        for task in "ab"
        for repeat in (0, 1)
    }
    told = {agent: score.mean_reward for agent, score in summary.agents["counter"].items()}
    assert told == {"one": 1.0, "two": 0.0}
    figures = bench.read("metrics.json")["environments"]["counter"]
    assert figures["mean/reward"] == 0.5
    assert {agent: each["mean/reward"] for agent, each in figures["agents"].items()} == told


async def test_what_no_row_names_an_agent_for_the_default_one_does(bench: Bench, environment: Make) -> None:
    counter = environment(row(id="a", agent="two"), row(id="b"))

    summary = await bench.run(counter, players={"two": player(2, "big")})

    lines = {line["task_id"]: line for line in bench.lines()}
    assert lines["a"]["agent_ref"] == {"type": "responses_api_agents", "name": "two"}
    assert lines["b"]["agent_ref"]["name"] == "agent" and lines["b"]["response"]["output"][0]["content"] != "big"
    assert {agent: score.rollouts for agent, score in summary.agents["counter"].items()} == {"two": 1, "agent": 1}


async def test_a_run_of_several_agents_is_gone_on_with_where_it_was(bench: Bench, environment: Make) -> None:
    players: dict[str, Player] = {"one": player(1, "small"), "two": Player(CountingAgent(), Saying(name="x"))}
    counter = environment(*[row(id=str(number)) for number in range(4)])
    await bench.run(counter, players=players, cross_agents=True)
    path = bench.output / "rollouts.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:3]))

    summary = await bench.run(counter, players=players, cross_agents=True, resume=True)

    assert summary.status == "finished" and path.read_bytes().startswith(b"".join(whole[:3]))
    keys = [(line["task_id"], line["agent_ref"]["name"]) for line in bench.lines()]
    assert sorted(keys) == [(str(number), agent) for number in range(4) for agent in ("one", "two")]
    assert {agent: score.rollouts for agent, score in summary.agents["counter"].items()} == {"one": 4, "two": 4}


async def test_a_line_says_which_skills_its_agent_had(bench: Bench, environment: Make, tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "adding" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: adding\ndescription: x\n---\n")
    skilled = ToolLoop(skills=tmp_path / "skills")
    players: dict[str, Player] = {
        "plain": Player(ToolLoop(), Saying(name="x")),
        "skilled": Player(skilled, Saying(name="x")),
    }

    await bench.run(environment(row()), players=players, cross_agents=True)

    refs: dict[str, Any] = {line["agent_ref"]["name"]: line.get("skills_ref") for line in bench.lines()}
    assert refs["plain"] is None and skilled.skills is not None and refs["skilled"] == skilled.skills.ref
