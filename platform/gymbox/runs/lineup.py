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
from gymbox.runner import Player


@dataclass(frozen=True)
class Lineup:
    """`default` is `agent` with `model`, None where named agents do all; `players` are the named ones."""

    default: Player | None
    players: Mapping[str, Player]

    @classmethod
    def of(cls, settings: Settings, plan: Plan) -> Self:
        """
        Raises:
            ConfigError: a model has the name of no agent.
        """
        agents, models = settings.agents, settings.models
        for name in models:
            if name not in agents:
                hint = nearest(name, list(agents)) if agents else "add it, or set the run's model with model="
                raise ConfigError(f"models.{name} is for an agent of that name, and there is none; {hint}")
        default = Player(settings.agent, settings.model) if plan.uses_default_agent else None
        return cls(default, {name: Player(each, models.get(name, settings.model)) for name, each in agents.items()})

    @property
    def models(self) -> list[Model]:
        """Those that anyone asks, each once."""
        everyone = [*([self.default] if self.default else []), *self.players.values()]
        return list({id(player.model): player.model for player in everyone}.values())

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

    def inputs(self) -> dict[str, Any]:
        """What the results depend on; see `RunManifest.inputs`."""
        found: dict[str, Any] = {}
        if self.default is not None:
            found |= {"agent": _agent(self.default.agent), "model": record(self.default.model)}
        if self.players:
            found["agents"] = {
                name: {"agent": _agent(player.agent), "model": record(player.model)}
                for name, player in sorted(self.players.items())
            }
        return found


def _agent(agent: Agent) -> dict[str, Any]:
    """Where its skills lie does not matter, what they are does."""
    told = record(agent)
    if "skills" in told:
        told["skills"] = {name: value for name, value in told["skills"].items() if name != "path"}
    return told
