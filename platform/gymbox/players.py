"""Players: who does a run's rollouts, each an agent and the model that it asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gymbox.agents import Agent
from gymbox.budget import Meter
from gymbox.http import HttpClient
from gymbox.models import Model
from gymbox.models.capture import Capture
from gymbox.models.metered import MeteredModel
from gymbox.models.recorded import RecordedModel
from gymbox.models.rollout_endpoints import RolloutEndpoints


@dataclass(frozen=True, slots=True)
class Player:
    """An agent, and the model that it asks."""

    agent: Agent
    model: Model


Players = Mapping[str | None, Player]
"""By the agent's name; None is the one that has no name."""


@dataclass(frozen=True, slots=True)
class Member:
    """A player whose calls are counted, and have an address for agents that bring a client of their own."""

    agent: Agent
    model: Model
    """Metered, and recorded where the run's calls are."""
    endpoints: RolloutEndpoints


def members_of(players: Players, http: HttpClient, meter: Meter, capture: Capture | None) -> dict[str | None, Member]:
    """By the name of the agent; those who ask the same model share its endpoints."""
    endpoints: dict[int, tuple[Model, RolloutEndpoints]] = {}
    for player in players.values():
        if id(player.model) not in endpoints:
            model: Model = MeteredModel.of(player.model, meter)
            model = model if capture is None else RecordedModel.of(model, capture)
            endpoints[id(player.model)] = model, RolloutEndpoints(model, http)
    return {name: Member(player.agent, *endpoints[id(player.model)]) for name, player in players.items()}
