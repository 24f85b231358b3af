"""Lineup: who does a run's tasks: its agents, and the model that each asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from gymbox.agents import Agent
from gymbox.config import Settings, record
from gymbox.errors import ConfigError, nearest
from gymbox.models import Model
from gymbox.plan import Plan
from gymbox.players import Player, Players


@dataclass(frozen=True)
class Lineup:
    """Under None stands `agent` with `model`, where named agents do not do all."""

    players: Players
    inputs: Mapping[str, Any]
    """What the results depend on; see `RunManifest.inputs`."""

    @classmethod
    def of(cls, settings: Settings, plan: Plan, model: Model | None = None) -> Self:
        """
        Args:
            model: what stands before the settings' `model` and answers for it.

        Raises:
            ConfigError: a model has the name of no agent.
        """
        agents, models = settings.agents, settings.models
        for name in models:
            if name not in agents:
                hint = nearest(name, list(agents)) if agents else "add it, or set the run's model with model="
                raise ConfigError(f"models.{name} is for an agent of that name, and there is none; {hint}")
        model = model or settings.model
        players: dict[str | None, Player] = {
            name: Player(each, models.get(name, model)) for name, each in agents.items()
        }
        if plan.uses_default_agent:
            players[None] = Player(settings.agent, model)
        return cls(players, _inputs(settings, plan.uses_default_agent))

    @property
    def models(self) -> list[Model]:
        """Those that anyone asks, each once."""
        return list({id(player.model): player.model for player in self.players.values()}.values())

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """With every model open that anyone asks.

        Raises:
            ConfigError: see `Model.open`.
        """
        async with AsyncExitStack() as stack:
            for model in self.models:
                stack.push_async_callback(model.close)
                await model.open()
            yield


def _inputs(settings: Settings, with_default: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if with_default:
        found |= {"agent": _agent(settings.agent), "model": record(settings.model)}
    if settings.agents:
        found["agents"] = {
            name: {"agent": _agent(agent), "model": record(settings.models.get(name, settings.model))}
            for name, agent in sorted(settings.agents.items())
        }
    return found


def _agent(agent: Agent) -> dict[str, Any]:
    """Where its skills lie does not matter, what they are does."""
    told = record(agent)
    if "skills" in told:
        told["skills"] = {name: value for name, value in told["skills"].items() if name != "path"}
    return told
