"""Trial: play a task on an environment's server inside a test's own process.

    trial = await Trial.begin("environments/counter/server.py", row)
    await trial.call("increment_counter", count=2)
    assert await trial.reward() == 1.0

No sandbox is started, so nothing is isolated: never run a model's code in one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from gymbox_sandbox.problems import ToolError
from gymbox_sandbox.resources import ResourcesServer, Runs
from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import HIDDEN, Task, Verdict


class Trial:
    """One task on one instance; `output` is the trajectory so far."""

    def __init__(self, instance: ResourcesServer, row: dict[str, Any]) -> None:
        self.instance = instance
        self.row = row
        self.output: list[dict[str, Any]] = []

    @classmethod
    async def begin(
        cls, server: str | Path, row: dict[str, Any], *, hidden: Iterable[str] = (), commands: Runs | None = None
    ) -> Self:
        """A new instance of the ResourcesServer in a file, reset for `row`.

        Args:
            server: `file.py` or `file.py:Class`.
            hidden: The manifest's `hidden_fields`.
            commands: What `exec` of the instance goes to; without it, `exec` raises.

        Raises:
            Invalid: the file cannot be loaded.
        """
        from gymbox_sandbox.serve import load

        instance = load(str(server))()
        instance._runs = commands
        left_out = {*HIDDEN, *hidden}
        public = {name: value for name, value in row.items() if name not in left_out}
        await instance._finish(instance.reset, Task.model_validate(public))
        return cls(instance, row)

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """What the tool returns; a ToolError comes back as its text."""
        call_id = f"call_{len(self.output)}"
        try:
            result = await self.instance.call_tool(name, arguments)
        except ToolError as error:
            result = str(error)
        self.output += [
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)},
            {"type": "function_call_output", "call_id": call_id, "output": str(result)},
        ]
        return result

    def say(self, text: str) -> None:
        """Add a message of the model."""
        content = [{"type": "output_text", "text": text, "annotations": []}]
        self.output.append({"type": "message", "role": "assistant", "content": content})

    async def gold(self) -> None:
        """Do what the row's gold replies do."""
        for item in [item for turn in self.row["gold_replies"] for item in turn]:
            if item["type"] == "function_call":
                await self.call(item["name"], **json.loads(item["arguments"]))
            else:
                self.output.append(item)

    async def verdict(self) -> Verdict:
        """What `verify` makes of it."""
        from gymbox_sandbox.sessions import verdict_of

        task, response = Task.model_validate(self.row), Response.model_validate({"output": self.output})
        return verdict_of(await self.instance._finish(self.instance.verify, task, response))

    async def reward(self) -> float:
        """The verdict's reward."""
        return (await self.verdict()).reward
