"""Runs with several agents, prompts made by a template, and skills: the real command, real sandboxes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Gymbox
from .test_run_command import copy_of_counter

GYMBOX = Path(sys.executable).with_name("gymbox")
PROCESS = ("model=scripted", "provider=process")
SKILL = "---\nname: adding\ndescription: How to add.\nversion: '1.0'\n---\nAdd once.\n"


def call(tool: str, number: int, /, **arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": tool, "arguments": json.dumps(arguments)}


def row(number: int, /, **fields: Any) -> dict[str, Any]:
    """Its gold replies read a skill, then add; without the skill's tool the first call fails, and nothing else."""
    done = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    first, second = call("read_skill", 1, name="adding"), call("increment_counter", 2, count=number)
    return {
        "id": f"add-{number}",
        "initial_count": 0,
        "expected_count": number,
        "responses_create_params": {"input": f"Add {number}."},
        "gold_replies": [[first], [second], [done]],
        **fields,
    }


def environment(folder: Path, *rows: dict[str, Any]) -> str:
    return f"environment={copy_of_counter(folder, rows=[json.dumps(row) for row in rows])}"


def write_skills(folder: Path, text: str = SKILL) -> None:
    skill = folder / "skills" / "adding"
    (skill / "references").mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(text)
    (skill / "references" / "more.md").write_text("More.")


def outputs(line: dict[str, Any]) -> list[str]:
    return [item["output"] for item in line["response"]["output"] if item["type"] == "function_call_output"]


async def gymbox_says(folder: Path, *arguments: str) -> Any:
    """The JSON that a command prints."""
    process = await asyncio.create_subprocess_exec(
        str(GYMBOX), *arguments, "--json", cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


async def test_agents_with_and_without_skills_are_compared_in_one_run(gymbox: Gymbox) -> None:
    write_skills(gymbox.folder)
    mine = environment(gymbox.folder, row(1), row(2), row(3))
    agents = ("agents.plain=tool_loop", "agents.skilled=tool_loop", "agents.skilled.skills=skills")
    settings = ("runner.cross_agents=true", "runner.repeats=2", "runner.output=out", "runner.layout=nemo")
    command = (mine, *PROCESS, *agents, *settings)

    ended = await gymbox.run(*command)

    assert ended.code == 0, ended.err
    lines = {
        (line["agent_ref"]["name"], line["task_id"], line["_ng_rollout_index"]): line for line in gymbox.lines("out")
    }
    assert len(lines) == 12 and {line["reward"] for line in lines.values()} == {1.0}
    skilled, plain = lines["skilled", "add-2", 1], lines["plain", "add-2", 1]
    assert outputs(skilled)[0] == f"{SKILL}\n\nFiles of this skill: references/more.md"
    assert outputs(plain)[0].startswith("error: there is no tool 'read_skill'")
    head = {"name": "adding", "description": "How to add.", "version": "1.0"}
    assert skilled["skills_ref"]["path"] == "skills" and skilled["skills_ref"]["skills"] == [head]
    assert "skills_ref" not in plain and "skilled" in ended.out
    told = await gymbox_says(gymbox.folder, "eval", "compare", "out")
    assert [(each["first"], each["second"], each["paired"]) for each in told["differences"]] == [
        ("out:plain", "out:skilled", 3)
    ]
    inputs = (gymbox.folder / "out" / "nemo_gym" / "rollouts_materialized_inputs.jsonl").read_text().splitlines()
    numbers = [(row["agent_ref"]["name"], row["_ng_task_index"]) for row in map(json.loads, inputs)]
    assert sorted(numbers) == sorted(
        2 * [("plain", 0), ("plain", 1), ("plain", 2), ("skilled", 3), ("skilled", 4), ("skilled", 5)]
    )
    assert (await gymbox_says(gymbox.folder, "eval", "metrics", "out/nemo_gym"))["total"]["missing"] == 0

    write_skills(gymbox.folder, SKILL + "Twice.\n")
    refused = await gymbox.run(*command, "runner.resume=true")
    assert refused.code == 2 and "agents.skilled.agent.skills.hash: was" in refused.err
    assert "agents.plain" not in refused.err


async def test_rows_choose_their_agents_and_each_agent_its_model(gymbox: Gymbox) -> None:
    mine = environment(gymbox.folder, row(1, agent_ref={"name": "one"}), row(2, agent="two"), row(3))
    agents = ("agents.one=tool_loop", "agents.two=tool_loop", "models.two=scripted", "models.two.name=second")

    ended = await gymbox.run(mine, *PROCESS, *agents, "runner.capture=on", "runner.output=out")

    assert ended.code == 0, ended.err
    lines = {line["agent_ref"]["name"]: line for line in gymbox.lines("out")}
    assert {name: line["task_id"] for name, line in lines.items()} == {
        "one": "add-1",
        "two": "add-2",
        "agent": "add-3",
    }
    assert {name: line["response"]["model"] for name, line in lines.items()} == {
        "one": "scripted",
        "two": "second",
        "agent": "scripted",
    }
    assert all(line["calls"]["count"] == len(line["response"]["output"]) // 2 + 1 for line in lines.values())
    assert set(gymbox.read("out", "metrics.json")["environments"]["mine"]["agents"]) == {"one", "two", "agent"}


async def test_an_agent_that_is_not_there_is_found_before_anything_starts(gymbox: Gymbox) -> None:
    mine = environment(gymbox.folder, row(1, agent="one"), row(2, agent="oen"))

    ended = await gymbox.run(mine, *PROCESS, "agents.one=tool_loop", "runner.output=out")

    assert ended.code == 2 and not (gymbox.folder / "out").exists()
    assert "example.jsonl:2: agent_ref.name: this run has no agent 'oen'; did you mean 'one'?" in ended.err


async def test_shards_of_a_run_with_several_agents_make_the_whole(gymbox: Gymbox) -> None:
    mine = environment(gymbox.folder, row(1), row(2), row(3))
    agents = ("agents.loop=tool_loop", "agents.once=single_turn", "runner.cross_agents=true")
    for part in (1, 2):
        ended = await gymbox.run(mine, *PROCESS, *agents, f"runner.shard={part}/2", f"runner.output=part{part}")
        assert ended.code == 0, ended.err

    assert await gymbox.shell(f"{GYMBOX} merge part1 part2 -o whole") == 0

    figures = (await gymbox_says(gymbox.folder, "eval", "metrics", "whole"))["agents"]["mine"]
    assert {agent: (each["planned"], each["mean"]) for agent, each in figures.items()} == {
        "loop": (3, 1.0),
        "once": (3, 0.0),
    }
    agents_told = gymbox.read("whole", "metrics.json")["environments"]["mine"]["agents"]
    assert {agent: each["rollouts"] for agent, each in agents_told.items()} == {"loop": 3, "once": 3}


async def test_a_recorded_run_of_several_agents_is_replayed_for_each(gymbox: Gymbox) -> None:
    mine = environment(gymbox.folder, row(1), row(2))
    agents = ("agents.loop=tool_loop", "agents.once=single_turn", "runner.cross_agents=true", "provider=process")
    first = await gymbox.run(mine, *agents, "model=scripted", "runner.capture=on", "runner.output=recorded")
    again = await gymbox.run(mine, *agents, "model=replay", "model.cassette=recorded", "runner.output=replayed")

    assert (first.code, again.code) == (0, 0), again.err
    rewards = [
        {(line["agent_ref"]["name"], line["task_id"]): line["reward"] for line in gymbox.lines(output)}
        for output in ("recorded", "replayed")
    ]
    assert rewards[0] == rewards[1] and set(rewards[0].values()) == {0.0, 1.0}


async def test_inputs_are_made_by_a_template_which_a_resume_must_not_change(gymbox: Gymbox) -> None:
    rows = [{**row(number), "responses_create_params": {}, "number": number} for number in (1, 2)]
    template = gymbox.folder / "prompt.yaml"
    template.write_text("system: Use tools.\nuser: 'Add {number}, {{please}}.'\n")
    command = (environment(gymbox.folder, *rows), *PROCESS, "runner.prompt=prompt.yaml", "runner.output=out")

    ended = await gymbox.run(*command)

    assert ended.code == 0, ended.err
    asked = {line["task_id"]: line["responses_create_params"]["input"] for line in gymbox.lines("out")}
    assert asked["add-2"] == [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Add 2, {please}."},
    ]
    assert gymbox.read("out", "manifest.json")["settings"]["runner"]["prompt"] == "prompt.yaml"
    template.write_text("user: 'Do add {number}.'\n")
    refused = await gymbox.run(*command, "runner.resume=true")
    assert refused.code == 2 and "environments.mine.prompt: was" in refused.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user: 'Add {nubmer}.'", "example.jsonl:1: nubmer: the template names it, the row has no such field"),
        ("user: 'Add {number}.'", "example.jsonl:1: responses_create_params.input: is there already"),
        ("user: 'Reach {expected_count}.'", "{expected_count} is hidden from the agent"),
        ("usr: x", "prompt.yaml is wrong"),
    ],
)
async def test_a_template_that_does_not_fit_stops_the_run_before_it_starts(
    gymbox: Gymbox, text: str, message: str
) -> None:
    (gymbox.folder / "prompt.yaml").write_text(text)
    mine, replaced = environment(gymbox.folder, row(1, number=1)), "already" not in message

    ended = await gymbox.run(
        mine, *PROCESS, "runner.prompt=prompt.yaml", f"runner.replace_input={replaced}", "runner.output=out"
    )

    assert ended.code == 2 and message in ended.err and not (gymbox.folder / "out").exists()


async def test_an_agent_that_takes_no_skills_is_refused_before_anything_starts(gymbox: Gymbox) -> None:
    write_skills(gymbox.folder)
    mine = environment(gymbox.folder, row(1))
    ended = await gymbox.run(mine, *PROCESS, "agent=single_turn", "agent.skills=skills", "runner.output=out")
    assert ended.code == 2 and "SingleTurn takes no skills" in ended.err and not (gymbox.folder / "out").exists()
