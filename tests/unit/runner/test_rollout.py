"""Rollout: what it records when the end of a sandbox goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from gymbox.environment import Environment, Timeouts
from gymbox.errors import Unavailable
from gymbox.http import HttpClient
from gymbox.rollout import run_rollout

from .conftest import CounterSandbox, CountingAgent, SilentModel, row


class Unheard:
    """A controller of sandboxes whose last two model calls got no answer."""

    @asynccontextmanager
    async def sandbox(self, environment: Environment, *, id: str | None = None) -> AsyncIterator[CounterSandbox]:
        yield CounterSandbox(str(id), unanswered=2)


class LeavingBadly:
    """A controller whose sandboxes are left by `leave`."""

    def __init__(self, leave: Callable[[], object]) -> None:
        self._leave = leave

    @asynccontextmanager
    async def sandbox(self, environment: Environment, *, id: str | None = None) -> AsyncIterator[CounterSandbox]:
        yield CounterSandbox(str(id))
        await self._leave()  # type: ignore[misc]


async def never() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise Unavailable("the engine is away")


@pytest.mark.parametrize("leave", [never, fails])
async def test_a_verdict_stands_whatever_becomes_of_the_sandbox_afterwards(environment, leave) -> None:
    made = environment(row())
    hasty = made.manifest.model_copy(update={"timeouts": Timeouts(rollout=0.2)})
    async with HttpClient() as http:
        result = await run_rollout(
            row(), Environment(made.folder, hasty), CountingAgent(), SilentModel(), LeavingBadly(leave), http, "r1"
        )

    assert (result.reward, result.error) == (1.0, None)


async def test_what_a_harness_did_without_a_models_answer_has_no_reward(environment) -> None:
    made = environment(row())
    asked = Environment(made.folder, made.manifest.model_copy(update={"network": "models"}))
    async with HttpClient() as http:
        result = await run_rollout(row(), asked, CountingAgent(), SilentModel(), Unheard(), http, "r1")
        other = await run_rollout(row(), made, CountingAgent(), SilentModel(), Unheard(), http, "r2")
    assert result.reward is None and result.error is not None
    assert (result.error.kind, result.error.stage, result.error.retryable) == ("model_unavailable", "agent", True)
    assert result.error.detail == "the last 2 model calls of the harness in the sandbox got no answer"
    assert (other.reward, other.error) == (1.0, None)  # nothing in it can call a model
