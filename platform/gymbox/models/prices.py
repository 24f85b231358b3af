"""Prices: what a model's tokens cost, and what a call has used of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Spent:
    """The tokens of a call, whatever the dialect that told of them."""

    input_tokens: int = 0
    """All of the prompt, cached or not."""
    cached_tokens: int = 0
    output_tokens: int = 0
    """Reasoning included."""
    reasoning_tokens: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


class Price(BaseModel):
    """What a million tokens cost, in whatever currency the owner of the model counts in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0)
    cached: float | None = Field(None, ge=0)
    """Of input tokens that came from the prompt cache; by default as `input`."""
    output: float = Field(ge=0)

    def cost(self, spent: Spent) -> float:
        """What these tokens cost."""
        cached = self.input if self.cached is None else self.cached
        fresh = spent.input_tokens - spent.cached_tokens
        total = fresh * self.input + spent.cached_tokens * cached + spent.output_tokens * self.output
        return round(total / _MILLION, 12)


def spent_in(answer: dict[str, Any] | None) -> Spent | None:
    """The tokens that an answer in any dialect says it has used; None where it says nothing."""
    usage = (answer or {}).get("usage")
    if not isinstance(usage, dict):
        return None
    if "prompt_tokens" in usage:
        return Spent(
            input_tokens=_count(usage, "prompt_tokens"),
            cached_tokens=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            reasoning_tokens=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
        )
    # Messages count what was read from the cache and what was written to it beside the input
    cached = _count(usage, "cache_read_input_tokens")
    beside = cached + _count(usage, "cache_creation_input_tokens")
    return Spent(
        input_tokens=_count(usage, "input_tokens") + beside,
        cached_tokens=cached or _count(usage.get("input_tokens_details"), "cached_tokens"),
        output_tokens=_count(usage, "output_tokens"),
        reasoning_tokens=_count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )


def _count(usage: Any, name: str) -> int:
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if isinstance(found, int) else 0
