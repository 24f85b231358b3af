"""Skilled tools: a sandbox's tools and one more, with which the model reads an agent's skills.

The agent answers it itself, from what it has read of the skills; no sandbox takes part. So any environment's tasks can
be done with skills, and what is in them never lies where `verify` looks.
"""

from __future__ import annotations

from typing import Any

from gymbox_sandbox.wire import ToolResult

from gymbox.agents import Tools
from gymbox.agents.skills import SKILL, Skill, Skills
from gymbox.errors import nearest

READ_SKILL = "read_skill"
MAX_SHOWN = 256 * 1024
"""Characters of a file that the model is shown."""
_DEFINITION = {
    "type": "function",
    "name": READ_SKILL,
    "description": "Read the instructions of a skill, or one of the files that these name.",
    "parameters": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The skill's name."},
            "path": {"type": "string", "description": f"A file of the skill; by default {SKILL}, its instructions."},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "strict": False,
}


class SkilledTools:
    """`tools`, and `read_skill` beside them."""

    def __init__(self, tools: Tools, skills: Skills) -> None:
        """
        Raises:
            ValueError: the environment has a tool of that name.
        """
        if any(each.get("name") == READ_SKILL for each in tools.definitions):
            raise ValueError(f"the environment has a tool {READ_SKILL!r} of its own, so its tasks take no skills")
        self._tools = tools
        self._skills = skills
        self.definition: dict[str, Any] = _DEFINITION

    @property
    def definitions(self) -> list[dict[str, Any]]:
        return [*self._tools.definitions, self.definition]

    @property
    def instructions(self) -> str:
        """What the system prompt says of the skills: their names, and what each is for."""
        listed = "\n".join(
            f"- {skill.name}: {' '.join(skill.head.description.split())}" for skill in self._skills.skills.values()
        )
        return (
            "You have skills: instructions for certain kinds of tasks. When a task fits the description of one, first "
            f"read it with the tool {READ_SKILL}, then follow it.\n\n{listed}"
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name != READ_SKILL:
            return await self._tools.call(name, arguments)
        try:
            return ToolResult(output=self._read(**arguments))
        except (LookupError, ValueError) as error:
            return ToolResult(output=str(error.args[0]), is_error=True)
        except TypeError:
            return ToolResult(output=f"{READ_SKILL} takes `name` and, if you like, `path`", is_error=True)

    def _read(self, name: str, path: str | None = None) -> str:
        skills = self._skills.skills
        if not isinstance(name, str) or name not in skills:
            raise LookupError(f"there is no skill {name!r}; {nearest(str(name), list(skills))}")
        skill, path = skills[name], _plain(SKILL if path is None else path)
        if path not in skill.files:
            raise LookupError(f"skill {name!r} has no file {path!r}; {nearest(path, list(skill.files))}")
        file = skill.files[path]
        if file.text is None:
            raise ValueError(f"{path} is no text ({len(file.content)} bytes), so it cannot be shown")
        text = file.text
        if len(text) > MAX_SHOWN:
            text = f"{text[:MAX_SHOWN]}\n… cut off: it has {len(text)} characters"
        return text + _others(skill) if path == SKILL else text


def _plain(path: object) -> str:
    """The path as a skill names its files, without a leading `./`; one like `references/../x.md` is none of these."""
    return str(path).removeprefix("./")


def _others(skill: Skill) -> str:
    """The files beside the instructions."""
    names = [name for name in skill.files if name != SKILL]
    return "\n\nFiles of this skill: " + ", ".join(names) if names else ""
