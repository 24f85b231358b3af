"""Token ids: what a model sampled, kept for training on the last output item of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymbox_sandbox.responses import (
    Item,
)

from gymbox.errors import Invalid

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""All three, or none."""


def token_ids_of(item: Item) -> dict[str, Any]:
    """The three training fields of an output item; empty where it has none."""
    extra = item.model_extra or {}
    return {name: extra[name] for name in TOKEN_FIELDS if extra.get(name) is not None}


def sampled_ids(
    body: dict[str, Any],
    choice: dict[str, Any],
    message: dict[str, Any],
    usage: dict[str, Any] | None,
    *,
    wanted: bool,
) -> dict[str, Any]:
    """All three fields, from wherever the endpoint puts them, or none. The ids are the sampled ones, never made by
    tokenising text again, which can give others."""
    entries = [entry for entry in (choice.get("logprobs") or {}).get("content") or [] if isinstance(entry, dict)]
    ids = (
        message.get("generation_token_ids")
        or choice.get("token_ids")
        or [
            int(entry["token"].removeprefix("token_id:"))
            for entry in entries
            if str(entry.get("token", "")).startswith("token_id:")
        ]
    )
    found = {
        "prompt_token_ids": message.get("prompt_token_ids") or body.get("prompt_token_ids"),
        "generation_token_ids": ids or None,
        "generation_log_probs": message.get("generation_log_probs")
        or [entry.get("logprob") for entry in entries]
        or None,
    }
    missing = [name for name in TOKEN_FIELDS if not found[name]]
    if missing and not wanted:
        return {}
    if missing:
        raise Invalid(f"token ids were asked for, and the answer has no {', '.join(missing)}")
    counted = usage["output_tokens"] if usage is not None else len(ids)
    if not len(ids) == len(found["generation_log_probs"] or []) == counted:
        raise Invalid(
            f"token ids conflict: {len(ids)} ids, {len(found['generation_log_probs'] or [])} log-probs, "
            f"{counted} tokens in the usage"
        )
    return found


def prefix_is_kept(items: Sequence[Item], prompt_token_ids: list[int]) -> bool:
    """Whether a prompt begins with all that was sampled before, token by token, as training on several turns needs."""
    for item in reversed(items):
        earlier = token_ids_of(item)
        if earlier:
            seen = [*earlier["prompt_token_ids"], *earlier["generation_token_ids"]]
            return prompt_token_ids[: len(seen)] == seen
    return True
