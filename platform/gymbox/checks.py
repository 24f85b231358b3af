"""Checks: what every environment must hold, tried in real sandboxes. `gymbox env test` shows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

from gymbox_sandbox.responses import Message, Response
from gymbox_sandbox.tasks import Task

from gymbox.agents.tool_loop import ToolLoop
from gymbox.dataset import Row
from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed, Problem, RolloutError, Stage, StartFailed, log_ending
from gymbox.http import HttpClient
from gymbox.models.scripted import ScriptedModel
from gymbox.rollout import RolloutController, RolloutResult, run_rollout
from gymbox.row_check import TOOL_NAME

SHOWN = 3
"""Faults of a check that are shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and how it came out; `faults` has a line for each thing that is wrong."""

    check: str
    tried: int
    faults: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def detail(self) -> str:
        """The first faults, in one line."""
        more = f"; and {len(self.faults) - SHOWN} more" if len(self.faults) > SHOWN else ""
        return "; ".join(self.faults[:SHOWN]) + more


class Checks:
    """The checks of one environment on one controller; `rows` are the tasks they use."""

    def __init__(
        self,
        environment: Environment,
        rows: Sequence[Row],
        controller: RolloutController,
        http: HttpClient,
        *,
        concurrency: int = 4,
    ) -> None:
        self._environment = environment
        self._rows = rows
        self._controller = controller
        self._http = http
        self._agent, self._model = ToolLoop(), ScriptedModel()
        self._free = asyncio.Semaphore(concurrency)

    async def run(self) -> AsyncIterator[Finding]:
        """Every check in turn; a fault of one does not end the others, unless no sandbox starts to try them in."""
        try:
            yield await self._tools()
        except (StartFailed, ImageBuildFailed) as failure:
            log = failure.ended.logs if isinstance(failure, StartFailed) else failure.log
            yield Finding("a sandbox starts", 1, (f"{failure.detail}{log_ending(log)}",))
            return
        left: dict[int, bytes] = {}
        first = await self._rollouts(left)
        yield self._gold(first)
        yield await self._empty()
        yield await self._echo()
        yield self._same("the same run gets the same reward", first, await self._rollouts({}))
        if self._environment.manifest.reverify != "no":
            yield self._same("what is kept gets the same reward", first, await self._scored_again(first, left))

    async def _tools(self) -> Finding:
        """The tools that the first row's sandbox offers have valid definitions.

        Raises:
            StartFailed, ImageBuildFailed: there is no sandbox.
        """
        row = self._rows[0].fields
        try:
            async with self._controller.sandbox(self._environment) as sandbox:
                await sandbox.reset(self._environment.public(row))
                definitions = sandbox.tools.definitions
        except (StartFailed, ImageBuildFailed):
            raise
        except Problem as problem:
            return Finding("tools are well defined", 1, (problem.detail,))
        faults = [fault for definition in definitions for fault in tool_faults(definition)]
        return Finding("tools are well defined", len(definitions), tuple(faults))

    async def _empty(self) -> Finding:
        """Doing nothing never scores."""
        return await self._never_scores("doing nothing does not score", lambda row: Response())

    async def _echo(self) -> Finding:
        """Saying the task's own words back never scores."""
        return await self._never_scores("repeating the task does not score", echoed)

    async def _rollouts(self, left: dict[int, bytes]) -> list[RolloutResult]:
        """One run of each row's gold replies, in order; what it leaves to be scored again goes to `left`, by row."""

        async def rollout(row: Row) -> RolloutResult:
            async def keep(file: IO[bytes]) -> None:
                left[row.index] = file.read()

            async with self._free:
                return await run_rollout(
                    row.fields,
                    self._environment,
                    self._agent,
                    self._model,
                    self._controller,
                    self._http,
                    rollout_id(),
                    keep=keep,
                )

        return await asyncio.gather(*map(rollout, self._rows))

    async def _scored_again(self, results: list[RolloutResult], left: dict[int, bytes]) -> list[RolloutResult]:
        """The verdicts on what the manifest's `reverify` says is enough for one, in sandboxes without an agent."""

        async def scored(row: Row, result: RolloutResult) -> RolloutResult:
            found = RolloutResult(rollout_id="", task_id=result.task_id, environment=result.environment)
            if result.response is None:
                return found.model_copy(update={"error": result.error})
            task = self._environment.for_verify(row.fields)
            try:
                async with self._free, self._controller.sandbox(self._environment) as sandbox:
                    await sandbox.reset(self._environment.public(row.fields))
                    if row.index in left:
                        verdict = await sandbox.verify(task, result.response, artifacts=BytesIO(left[row.index]))
                    else:
                        verdict = await sandbox.verify(task, result.response)
            except Problem as problem:
                return found.model_copy(update={"error": RolloutError.at(Stage.VERIFY, problem)})
            return found.model_copy(update=verdict.model_dump())

        return await asyncio.gather(*map(scored, self._rows, results))

    def _gold(self, results: list[RolloutResult]) -> Finding:
        faults = [f"{result.task_id}: {outcome(result)}" for result in results if result.reward != 1.0]
        return Finding("gold replies score 1.0", len(results), tuple(faults))

    def _same(self, name: str, first: list[RolloutResult], second: list[RolloutResult]) -> Finding:
        faults = [
            f"{one.task_id}: {outcome(one)}, then {outcome(other)}"
            for one, other in zip(first, second, strict=True)
            if one.error is not None  # of two that failed, nothing can be said
            or (one.reward, one.metrics, one.reward_components)
            != (other.reward, other.metrics, other.reward_components)
        ]
        return Finding(name, len(first), tuple(faults))

    async def _never_scores(self, name: str, response: Callable[[Row], Response]) -> Finding:
        async def fault(row: Row) -> str | None:
            try:
                async with self._free, self._controller.sandbox(self._environment) as sandbox:
                    await sandbox.reset(self._environment.public(row.fields))
                    verdict = await sandbox.verify(self._environment.for_verify(row.fields), response(row))
            except Problem as problem:
                return f"{row.id}: {problem.detail}"
            return f"{row.id}: got {verdict.reward:g}" if verdict.reward > 0 else None

        faults = await asyncio.gather(*map(fault, self._rows))
        return Finding(name, len(self._rows), tuple(found for found in faults if found))


def rollout_id() -> str:
    """An id that no other rollout has."""
    from uuid import uuid4

    return f"check-{uuid4().hex[:16]}"


def outcome(result: RolloutResult) -> str:
    """The reward, or the error that stands for it."""
    if result.error is None:
        return f"got {result.reward:g}"
    return f"{result.error.kind}: {result.error.detail}{log_ending(result.error.logs)}"


def echoed(row: Row) -> Response:
    """A model that answers with every word it was told."""
    params = Task.model_validate(row.fields).responses_create_params
    said = [item.text for item in params.items if isinstance(item, Message)]
    content = [{"type": "output_text", "text": "\n".join([params.instructions or "", *said]), "annotations": []}]
    return Response(output=[Message(type="message", role="assistant", content=content)])


def tool_faults(definition: dict[str, Any]) -> list[str]:
    """What model providers would refuse in a function tool's definition."""
    name = definition.get("name")
    faults = []
    if definition.get("type") != "function":
        faults.append(f"{name}: its type is {definition.get('type')!r}, not 'function'")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        faults.append(f"{name!r} is no tool name: 1 to 64 of letters, digits, _ and -")
    if not definition.get("description"):
        faults.append(f"{name}: it has no description; write a docstring")
    parameters = definition.get("parameters")
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        return [*faults, f"{name}: its parameters are no object schema"]
    properties = parameters.get("properties", {})
    if unknown := set(parameters.get("required", [])) - set(properties):
        faults.append(f"{name}: it requires {', '.join(sorted(unknown))}, which is no parameter")
    if definition.get("strict") and (
        parameters.get("additionalProperties") is not False or set(parameters.get("required", [])) != set(properties)
    ):
        faults.append(f"{name}: strict, but with optional or additional parameters")
    return faults
