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
from typing import TYPE_CHECKING, Any, Self

from gymbox_sandbox.generator import call_item, message_item
from gymbox_sandbox.problems import ToolError
from gymbox_sandbox.resources import ResourcesServer, Runs
from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import HIDDEN, Task, Verdict

if TYPE_CHECKING:
    from gymbox_sandbox.judge import Asks, Judge


class Trial:
    """One task on one instance; `output` is the trajectory so far."""

    def __init__(self, instance: ResourcesServer, row: dict[str, Any]) -> None:
        self.instance = instance
        self.row = row
        self.output: list[dict[str, Any]] = []
        self._judge: Asks | None = None

    @classmethod
    async def begin(
        cls,
        server: str | Path,
        row: dict[str, Any],
        *,
        hidden: Iterable[str] = (),
        commands: Runs | None = None,
        judge: Asks | None = None,
    ) -> Self:
        """A new instance of the ResourcesServer in a file, reset for `row`.

        Args:
            server: `file.py` or `file.py:Class`.
            hidden: The manifest's `hidden_fields`.
            commands: What `exec` of the instance goes to; without it, `exec` raises.
            judge: What `self.judge` asks; by default it answers as the row's `gold_judgements` say.

        Raises:
            Invalid: the file cannot be loaded.
        """
        from gymbox_sandbox.serve import load

        instance = load(str(server))()
        instance._runs = commands
        left_out = {*HIDDEN, *hidden}
        public = {name: value for name, value in row.items() if name not in left_out}
        await instance._finish(instance.reset, Task.model_validate(public))
        trial = cls(instance, row)
        trial._judge = judge
        return trial

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """What the tool returns; a ToolError comes back as its text."""
        call_id = f"call_{len(self.output)}"
        try:
            result = await self.instance.call_tool(name, arguments)
        except ToolError as error:
            result = str(error)
        said = {"type": "function_call_output", "call_id": call_id, "output": str(result)}
        self.output += [call_item(call_id, name, arguments), said]
        return result

    def say(self, text: str) -> None:
        """Add a message of the model."""
        self.output.append(message_item(text))

    async def gold(self) -> None:
        """Do what the row's gold replies do."""
        for item in [item for turn in self.row["gold_replies"] for item in turn]:
            if item["type"] == "function_call":
                await self.call(item["name"], **json.loads(item["arguments"]))
            else:
                self.output.append(item)

    async def verdict(self) -> Verdict:
        """What `verify` makes of it.

        Raises:
            JudgeFailed: its judge gave no usable answer.
            Exception: what the environment's `verify` raises.
        """
        from gymbox_sandbox.scoring import verdict_of

        task, response = Task.model_validate(self.row), Response.model_validate({"output": self.output})
        judges: list[Judge] = []

        def judge() -> Judge:
            from gymbox_sandbox.judge import Judge

            judges.append(Judge(self._judge or _Gold(self.row.get("gold_judgements", []))))
            return judges[0]

        self.instance._opens_judge = judge
        try:
            verdict = verdict_of(await self.instance._finish(self.instance.verify, task, response))
        finally:
            self.instance._opens_judge = None
            vars(self.instance).pop("judge", None)  # the next verdict has one of its own
        for each in judges:
            if each.failed is not None:
                raise each.failed
        return verdict

    async def reward(self) -> float:
        """The verdict's reward."""
        return (await self.verdict()).reward


class _Gold:
    """Answers a question as the first gold judgement does of which it has the words."""

    def __init__(self, judgements: list[dict[str, Any]]) -> None:
        self._judgements = judgements

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        from gymbox_sandbox.judge import JudgeFailed

        asked = json.dumps(question["params"].get("input"), ensure_ascii=False)
        for judgement in self._judgements:
            if json.dumps(judgement["contains"], ensure_ascii=False)[1:-1] in asked:
                says = judgement["says"]
                text = says if isinstance(says, str) else json.dumps(says)
                return {"text": text, "value": says, "tokens": 0}
        raise JudgeFailed("the row has no gold judgement for this question")
