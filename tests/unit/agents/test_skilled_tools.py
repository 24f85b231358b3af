"""The tool loop with skills: told by name, read with a tool of the agent's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.agents import skilled_tools
from gymbox.agents.skilled_tools import SkilledTools
from gymbox.agents.skills import Skills
from gymbox.agents.tool_loop import ToolLoop

from tests.unit.agents.test_tool_loop import ADD, MESSAGE, Fixed, Sum, answered, calls, outputs, task

BODY = "---\nname: adding\ndescription: Use it\n  to add.\n---\nAdd once."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    skill = tmp_path / "skills" / "adding"
    (skill / "references").mkdir(parents=True)
    (skill / "SKILL.md").write_text(BODY)
    (skill / "references" / "limits.md").write_text("Below 10^15.")
    (skill / "logo.png").write_bytes(b"\x89PNG\0")
    return tmp_path / "skills"


@pytest.fixture
def tools(folder: Path) -> SkilledTools:
    return SkilledTools(Sum(), Skills.load(folder))


async def test_the_model_is_told_of_skills_and_reads_them_without_the_sandbox(folder: Path) -> None:
    sandbox = Sum()
    model = Fixed(answered(calls("read_skill", name="adding")), answered(calls("add", by=2)), MESSAGE)
    agent = ToolLoop(skills=folder, instructions="Be brief.")

    response = await agent.run(task(), model, sandbox)

    asked = model.asked[0]
    assert asked.instructions is not None and asked.instructions.startswith("Be brief.\n\nYou have skills")
    assert "- adding: Use it to add." in asked.instructions and "Add once." not in asked.instructions
    assert asked.tools is not None and asked.tools[-1]["name"] == "read_skill" and len(asked.tools) == 6
    read, added = outputs(response)
    assert read == f"{BODY}\n\nFiles of this skill: logo.png, references/limits.md"
    assert added == "2" and sandbox.calls == [("add", {"by": 2})]


async def test_a_row_with_tools_of_its_own_and_one_with_instructions_keep_them(folder: Path) -> None:
    model = Fixed(MESSAGE)
    await ToolLoop(skills=folder).run(task(tools=[ADD], instructions="The row's."), model, Sum())
    [asked] = model.asked
    assert [tool["name"] for tool in asked.tools or ()] == ["add", "read_skill"]
    assert asked.instructions is not None and asked.instructions.startswith("The row's.\n\nYou have skills")


@pytest.mark.parametrize("path", ["references/limits.md", "./references/limits.md"])
async def test_a_file_of_a_skill_is_read_by_its_path(tools: SkilledTools, path: str) -> None:
    assert (await tools.call("read_skill", {"name": "adding", "path": path})).output == "Below 10^15."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "ading"}, "there is no skill 'ading'; did you mean 'adding'?"),
        ({"name": ["adding"]}, "there is no skill ['adding']"),
        ({"name": "adding", "path": "../../etc/passwd"}, "has no file '../../etc/passwd'"),
        ({"name": "adding", "path": "/etc/passwd"}, "has no file '/etc/passwd'"),
        ({"name": "adding", "path": "logo.png"}, "logo.png is no text (5 bytes)"),
        ({"path": "SKILL.md"}, "read_skill takes `name`"),
        ({"name": "adding", "more": 1}, "read_skill takes `name`"),
    ],
)
async def test_what_cannot_be_read_is_told_to_the_model(
    tools: SkilledTools, arguments: dict[str, Any], message: str
) -> None:
    result = await tools.call("read_skill", arguments)
    assert result.is_error and message in result.output


async def test_a_long_file_is_cut_off_and_says_so(tools: SkilledTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skilled_tools, "MAX_SHOWN", 5)
    result = await tools.call("read_skill", {"name": "adding", "path": "references/limits.md"})
    assert result.output == "Below\n… cut off: it has 12 characters"


async def test_an_environment_with_such_a_tool_of_its_own_takes_no_skills(folder: Path) -> None:
    sandbox = Sum()
    sandbox.definitions.append({**ADD, "name": "read_skill"})
    with pytest.raises(ValueError, match="has a tool 'read_skill' of its own"):
        await ToolLoop(skills=folder).run(task(), Fixed(MESSAGE), sandbox)


def test_the_definition_is_json(tools: SkilledTools) -> None:
    assert json.loads(json.dumps(tools.definition))["parameters"]["required"] == ["name"]
