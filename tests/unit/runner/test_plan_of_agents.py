"""Plan: which of several agents does which rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.plan import Plan
from gymbox.runner_settings import RunnerSettings

from .conftest import row

Make = Callable[..., Environment]


def who(
    *environments: Environment, agents: str = "one two", **settings: Any
) -> list[tuple[str, int, str | None, int]]:
    """Environment, row, agent and repeat of each slot; every id is one of its own."""
    with Plan(environments, RunnerSettings(**settings), agents=agents.split()) as plan:
        slots = list(plan)
        assert len({slot.id("run") for slot in slots}) == len(slots) == len(plan) == sum(plan.sizes().values())
        return [(slot.environment.name, slot.row.index, slot.agent, slot.repeat) for slot in slots]


def refusal(*environments: Environment, agents: str = "one two", **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Plan(environments, RunnerSettings(**settings), agents=agents.split())
    return str(caught.value)


def test_a_row_says_which_agent_does_it_then_its_environment_then_the_run(environment: Make) -> None:
    nemo = {"agent_ref": {"type": "responses_api_agents", "name": "one"}}
    first = environment(row(**nemo), row(agent="two"), row(agent_ref="two", agent="one"), row(agent=3), name="first")
    second = environment(row(agent="one"), row(), name="second")

    found = who(first, second, agent_of={"second": "two"})

    assert sorted((name, index, agent or "") for name, index, agent, _ in found) == [
        *[("first", 0, "one"), ("first", 1, "two"), ("first", 2, "two"), ("first", 3, "")],
        *[("second", 0, "one"), ("second", 1, "two")],
    ]


def test_one_agent_may_do_what_nothing_else_is_said_of(environment: Make) -> None:
    first, second = environment(row(), name="first"), environment(row(), name="second")
    found = who(first, second, agent_of={"first": "one", "_default": "two"})
    assert sorted(found) == [("first", 0, "one", 0), ("second", 0, "two", 0)]


def test_each_agent_does_every_task_with_all_repeats_whatever_the_rows_say(environment: Make) -> None:
    found = who(environment(row(agent="someone"), row()), repeats=2, cross_agents=True)
    assert found == [
        ("counter", task, agent, repeat) for task in (0, 1) for agent in ("one", "two") for repeat in (0, 1)
    ]


def test_repeats_of_different_agents_are_asked_with_the_same_seeds(environment: Make) -> None:
    settings = RunnerSettings(repeats=2, cross_agents=True, seed_repeats=True, seed=7)
    with Plan([environment(row())], settings, agents=["one", "two"]) as plan:
        seeds = [slot.row.fields["responses_create_params"]["seed"] for slot in plan]
    assert seeds == [7, 8, 7, 8]


def test_ids_of_crossed_agents_name_them_and_stay_short_enough_for_a_sandbox(environment: Make) -> None:
    long = environment(row(), name="e" * 60)
    with Plan([long], RunnerSettings(cross_agents=True), agents=["a" * 50, "b" * 50]) as plan:
        ids = [slot.id("12345678") for slot in plan]
    assert len(set(ids)) == 2 and all(len(id) <= 80 for id in ids)
    with Plan([environment(row())], RunnerSettings(cross_agents=True), agents=["one"]) as plan:
        assert [slot.id("r") for slot in plan] == ["r-counter.one-0-0"]


def test_without_named_agents_what_rows_say_does_not_count(environment: Make) -> None:
    assert who(environment(row(agent_ref={"name": "nobody"})), agents="") == [("counter", 0, None, 0)]


def test_an_agent_that_the_run_does_not_have_is_a_fault_of_the_row(environment: Make) -> None:
    told = refusal(environment(row(agent="one"), row(agent="tow"), row(agent="tow"), row(agent="two")))
    assert "1 fault in the dataset, so nothing was started" in told
    assert "example.jsonl:2: agent_ref.name: this run has no agent 'tow'; 2 rows name it; did you" in told
    assert "did you mean 'two'?" in told and "runner.cross_agents=true" in told


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "agents.two has nothing to do: no row names it"),
        ({"agent_of": {"counter": "tow"}}, "runner.agent_of.counter: there is no agent 'tow'; did you mean 'two'"),
        ({"agent_of": {"conter": "two"}}, "runner.agent_of: this run has no environment 'conter'"),
        ({"agent_of": {"counter": "two"}, "cross_agents": True}, "leave runner.agent_of out"),
        ({"agents": "", "cross_agents": True}, "runner.cross_agents needs agents with names"),
        ({"agents": "", "agent_of": {"counter": "x"}}, "runner.agent_of needs agents with names"),
        ({"agents": "agent one"}, "agents.agent: choose another name"),
    ],
)
def test_a_choice_of_agents_that_cannot_be_is_refused(
    environment: Make, settings: dict[str, Any], message: str
) -> None:
    assert message in refusal(environment(row(agent="one")), **settings)


def test_whether_the_default_agent_has_anything_to_do(environment: Make) -> None:
    counter = environment(row(agent="one"), row())

    def used(agents: list[str], **settings: Any) -> bool:
        with Plan([counter], RunnerSettings(**settings), agents=agents) as plan:
            return plan.uses_default_agent

    assert used([]) and used(["one"])
    assert not used(["one"], agent_of={"_default": "one"}) and not used(["one"], cross_agents=True)


def test_what_chooses_agents_is_among_the_inputs_where_it_is_used() -> None:
    plain = RunnerSettings().inputs()
    assert {"agent_of", "cross_agents", "params_of"}.isdisjoint(plain)
    assert RunnerSettings(cross_agents=True).inputs() == plain | {"cross_agents": True}
    assert RunnerSettings(agent_of={"_default": "one"}).inputs() == plain | {"agent_of": {"_default": "one"}}
