"""Lineup: which agents a run has, and which model each asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymbox.agents.single_turn import SingleTurn
from gymbox.config import compose
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.models import Call, Model
from gymbox.plan import Plan
from gymbox.runs.job import check_prices
from gymbox.runs.lineup import Lineup
from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

TWO = ("agents.one=tool_loop", "agents.two=single_turn", "runner.cross_agents=true")


@pytest.fixture
def counter(tmp_path: Path) -> Environment:
    folder = tmp_path / "counter"
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text("description: x")
    (folder / "data" / "example.jsonl").write_text('{"responses_create_params": {"input": "x"}}\n')
    return Environment.load(folder)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    (tmp_path / "skills" / "adding").mkdir(parents=True)
    (tmp_path / "skills" / "adding" / "SKILL.md").write_text("---\nname: adding\ndescription: x\n---\n")
    return tmp_path / "skills"


def lineup(environment: Environment, *overrides: str) -> Lineup:
    settings = compose(["environment=counter", "model=scripted", *overrides])
    with Plan([environment], settings.runner, agents=settings.agents) as plan:
        return Lineup.of(settings, plan)


def test_a_named_agent_asks_the_model_of_its_name_or_else_the_runs(counter: Environment) -> None:
    found = lineup(counter, *TWO, "models.two=scripted", "models.two.name=big")
    assert {name: player.model.name for name, player in found.players.items()} == {"one": "scripted", "two": "big"}
    assert isinstance(found.players["two"].agent, SingleTurn)


def test_the_agent_without_a_name_plays_where_it_has_tasks_and_asks_what_stands_before_its_model(
    counter: Environment,
) -> None:
    settings, policy = compose(["environment=counter", "model=scripted"]), Opening(name="policy")
    with Plan([counter], settings.runner) as plan:
        assert Lineup.of(settings, plan, policy).players[None].model is policy
    assert None not in lineup(counter, *TWO).players


def test_a_model_for_an_agent_that_is_not_there_is_refused(counter: Environment) -> None:
    with pytest.raises(ConfigError, match=r"models.tow is for an agent of that name, and there is none; did you mean"):
        lineup(counter, *TWO, "models.tow=scripted")
    with pytest.raises(ConfigError, match=r"set the run's model with model="):
        lineup(counter, "models.x=scripted")


def test_a_budget_for_costs_needs_the_price_of_every_model_that_is_asked_and_of_no_other(counter: Environment) -> None:
    priced, own = "models.{0}.price={{input: 1, output: 2}}", ("models.one=scripted", "models.two=scripted")

    def check(*overrides: str) -> None:
        settings = compose(["environment=counter", "model=scripted", "runner.budget.cost=5", *overrides])
        with Plan([counter], settings.runner, agents=settings.agents) as plan:
            check_prices([counter], settings, Lineup.of(settings, plan))

    check(*TWO, *own, priced.format("one"), priced.format("two"))  # nobody asks `model`
    with pytest.raises(
        ConfigError, match=r"the models\.two has no price; .* models\.two\.price='\{input: 2, output: 8\}'"
    ):
        check(*TWO, *own, priced.format("one"))
    with pytest.raises(ConfigError, match=r"the model has no price"):
        check(*TWO, own[0], priced.format("one"))
    with pytest.raises(ConfigError, match=r"the model has no price"):
        check()


def test_only_who_has_something_to_do_is_among_the_inputs(counter: Environment) -> None:
    assert set(lineup(counter).inputs) == {"agent", "model"}
    assert set(lineup(counter, *TWO).inputs) == {"agents"}
    mixed = lineup(counter, *TWO[:1], "runner.agent_of._default=one")
    assert set(mixed.inputs) == {"agents"}
    assert set(mixed.inputs["agents"]["one"]) == {"agent", "model"}


def test_what_skills_are_is_an_input_and_where_they_lie_is_not(
    counter: Environment, skills: Path, tmp_path: Path
) -> None:
    before = lineup(counter, f"agent.skills={skills}").inputs
    skills.rename(tmp_path / "elsewhere")
    assert lineup(counter, f"agent.skills={tmp_path / 'elsewhere'}").inputs == before
    (tmp_path / "elsewhere" / "adding" / "more.md").write_text("x")
    after = lineup(counter, f"agent.skills={tmp_path / 'elsewhere'}").inputs
    assert after["agent"]["skills"]["hash"] != before["agent"]["skills"]["hash"]


class Opening(Model):
    """Counts how often it is open."""

    _open: int = PrivateAttr(0)

    async def open(self) -> None:
        self._open += 1

    async def close(self) -> None:
        self._open -= 1

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        raise AssertionError("nobody asks it")


async def test_only_models_that_someone_asks_are_opened_and_each_once(counter: Environment) -> None:
    settings = compose(["environment=counter", "model=scripted", *TWO])
    unused, shared, own = (Opening(name=name) for name in ("unused", "shared", "own"))

    def opened(**models: Any) -> Lineup:
        changed = settings.model_copy(update=models)
        with Plan([counter], changed.runner, agents=changed.agents) as plan:
            return Lineup.of(changed, plan)

    async with opened(model=unused, models={"one": own, "two": own}).opened():
        assert (unused._open, own._open) == (0, 1)
    async with opened(model=shared, models={"two": own}).opened():
        assert (shared._open, own._open) == (1, 1)
    assert (shared._open, own._open) == (0, 0)
