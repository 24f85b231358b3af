"""Chat usage: token counts as Chat endpoints tell them, and as the Responses API names them.

Unknown counts (a cost, a provider's own) stay beside the known ones, both ways.
"""

from __future__ import annotations

from typing import Any

from gymbox_sandbox.responses import Usage

from gymbox.errors import Invalid
from gymbox.models.chat_messages import others

_COUNTED = frozenset(
    [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
        "cached_tokens",
        "reasoning_tokens",
        "input_tokens",
        "output_tokens",
        "input_tokens_details",
        "output_tokens_details",
    ]
)


def chat_usage(usage: Usage) -> dict[str, Any]:
    """The counts as Chat names them."""
    extra = usage.model_extra or {}
    found: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    if extra.get("input_tokens_details"):
        found["prompt_tokens_details"] = extra["input_tokens_details"]
    if extra.get("output_tokens_details"):
        found["completion_tokens_details"] = extra["output_tokens_details"]
    return found | others(extra, ("input_tokens_details", "output_tokens_details"))


def usage_from_chat(usage: Any) -> dict[str, Any] | None:
    """Counts as the Responses API names them; `prompt_cache_hit_tokens`, `cached_tokens` and `reasoning_tokens` beside
    the sums are how some providers say what others put in the details. None where there are none.

    Raises:
        Invalid: something there is no count.
    """
    if not isinstance(usage, dict):
        return None
    prompt, completion = (
        _count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        _count(usage, "completion_tokens") or _count(usage, "output_tokens"),
    )
    cached = _count(usage, "prompt_cache_hit_tokens") or _count(usage, "cached_tokens")
    return {
        **others(usage, _COUNTED),
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": _count(usage, "total_tokens") or prompt + completion,
        "input_tokens_details": {"cached_tokens": cached, **_details(usage, "prompt_tokens_details")},
        "output_tokens_details": {
            "reasoning_tokens": _count(usage, "reasoning_tokens"),
            **_details(usage, "completion_tokens_details"),
        },
    }


def _count(usage: dict[str, Any], name: str) -> int:
    count = usage.get(name)
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int | float) or count < 0 or count != int(count):
        raise Invalid(f"usage.{name} is {count!r:.50}, not a count")
    return int(count)


def _details(usage: dict[str, Any], name: str) -> dict[str, Any]:
    details = usage.get(name)
    if details is not None and not isinstance(details, dict):
        raise Invalid(f"usage.{name} is a {type(details).__name__}, not an object")
    return others(details, ())
