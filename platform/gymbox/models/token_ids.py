"""Token ids: what a model sampled, kept for training on the last output item of an answer.

All three fields or none: `prompt_token_ids`, `generation_token_ids`, `generation_log_probs`. They are the ids that the
engine itself tells of. No text is turned into tokens again, which can give others, so they are complete whatever a
parser of reasoning or tool calls hides. Understood are the answers, whole or streamed, of

- vLLM: `prompt_token_ids` and `choices[].token_ids` (`return_token_ids`), or log-probs whose tokens read `token_id:N`
- SGLang: both on the choice, or `meta_info.output_token_logprobs`, a list of (log-prob, id, text)
- llama.cpp: log-probs with an `id`; the prompt as `local` gets it
- NeMo Gym and gymbox: all three on the message
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gymbox_sandbox.responses import FunctionCall, Item, Message, Reasoning, Response

from gymbox.errors import Invalid

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""All three, or none."""
ROUTED_EXPERTS = "routed_experts"
"""Beside them, where a server tells which experts of its model each token went to (NeMo Gym's name)."""
MASK_FIELDS = ("mask_sample", "mask_reason")
"""On an item and on a rollout's record: not to be trained on, and why."""
TRAINING_FIELDS = (*TOKEN_FIELDS, ROUTED_EXPERTS, *MASK_FIELDS)
"""Of an item: what only training needs."""
PREFIX_FAULT = "the prompt does not begin with what was sampled before"
"""How the `mask_reason` of an item begins whose answer belongs to another branch than what stands before it."""
_TOKEN_ID = "token_id:"


def token_ids_of(item: Item) -> dict[str, Any]:
    """The three training fields of an output item; empty where it has none."""
    extra = item.model_extra or {}
    return {name: extra[name] for name in TOKEN_FIELDS if extra.get(name) is not None}


def experts_of(item: Item) -> dict[str, Any]:
    """The experts that an output item tells of; empty where it tells of none."""
    return experts_in(item.model_extra or {})


def experts_in(*places: dict[str, Any]) -> dict[str, Any]:
    """The experts that the first of these tells of; empty where none does."""
    return next(({ROUTED_EXPERTS: each[ROUTED_EXPERTS]} for each in places if each.get(ROUTED_EXPERTS)), {})


def sampled_ids(
    body: dict[str, Any],
    choice: dict[str, Any],
    message: dict[str, Any],
    usage: dict[str, Any] | None,
    *,
    wanted: bool,
) -> dict[str, Any]:
    """All three fields of a Chat answer, from wherever the endpoint puts them, or none.

    Args:
        usage: of the Responses format; its `output_tokens` must be the number of ids.
        wanted: an answer without them is not usable.

    Raises:
        Invalid: they are wanted and missing; or two places disagree, or their numbers do.
    """
    entries = [entry for entry in _list_in(choice.get("logprobs"), "content") if isinstance(entry, dict)]
    told = [
        entry
        for entry in _list_in(choice.get("meta_info"), "output_token_logprobs")
        if isinstance(entry, list) and len(entry) > 1
    ]
    found = {
        "prompt_token_ids": _agreed(
            "prompt_token_ids",
            [each.get("prompt_token_ids") for each in (message, choice, body)],
        ),
        "generation_token_ids": _agreed(
            "token ids",
            [
                message.get("generation_token_ids"),
                choice.get("token_ids"),
                [each[1] for each in told],
                _ids_in(entries),
            ],
        ),
        # the same figure may be rounded differently in each place: the first counts
        "generation_log_probs": _list_in(message, "generation_log_probs")
        or [each[0] for each in told]
        or [entry.get("logprob") for entry in entries]
        or None,
    }
    missing = [name for name in TOKEN_FIELDS if not found[name]]
    if missing and not wanted:
        return {}
    if missing:
        raise Invalid(f"token ids were asked for, and the answer has no {', '.join(missing)}")
    ids, log_probs = found["generation_token_ids"] or [], found["generation_log_probs"] or []
    counted = usage["output_tokens"] if usage is not None else len(ids)
    if not len(ids) == len(log_probs) == counted:
        raise Invalid(f"token ids conflict: {len(ids)} ids, {len(log_probs)} log-probs, {counted} tokens in the usage")
    return found


def _list_in(value: Any, name: str) -> list[Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _ids_in(entries: list[dict[str, Any]]) -> list[int]:
    ids = [entry.get("id") if (found := _numbered(entry.get("token"))) is None else found for entry in entries]
    return [id for id in ids if isinstance(id, int)] if all(isinstance(id, int) for id in ids) else []


def _numbered(token: Any) -> int | None:
    number = token.removeprefix(_TOKEN_ID) if isinstance(token, str) and token.startswith(_TOKEN_ID) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) < 20 else None


def _agreed(what: str, sources: list[Any]) -> list[int] | None:
    given = [source for source in sources if source and isinstance(source, list)]
    if any(source != given[0] for source in given):
        raise Invalid(f"token ids conflict: the answer gives two lists of {what} that differ")
    return given[0] if given else None


def echo_token_ids(messages: list[dict[str, Any]], items: Sequence[Item]) -> list[dict[str, Any]]:
    """Chat messages of which the last that was sampled brings its ids back, so that a server which takes them (NeMo
    RL's, say) can go on from exactly these tokens; other servers ignore the fields.

    Args:
        items: what the messages were made of.
    """
    turns = _turns(items)
    places = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    if len(turns) != len(places):
        return messages
    for turn, place in reversed(list(zip(turns, places, strict=True))):
        if turn:
            return [*messages[:place], {**messages[place], **turn}, *messages[place + 1 :]]
    return messages


def _turns(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The token ids of each assistant's turn in a history."""
    turns: list[dict[str, Any]] = []
    speaking = False
    for item in items:
        spoken = isinstance(item, FunctionCall | Reasoning) or (isinstance(item, Message) and item.role == "assistant")
        if spoken and not speaking:
            turns.append({})
        if spoken:
            turns[-1] = token_ids_of(item) or turns[-1]
        speaking = spoken
    return turns


def prefix_fault(items: Sequence[Item], prompt: list[int]) -> str | None:
    """Where a prompt does not begin with all that was sampled before, token by token, as training on several turns
    needs; None where it does."""
    for item in reversed(items):
        earlier = token_ids_of(item)
        if earlier:
            seen = [*earlier["prompt_token_ids"], *earlier["generation_token_ids"]]
            if prompt[: len(seen)] == seen:
                return None
            pairs = zip(prompt, seen, strict=False)
            place = next((index for index, (new, old) in enumerate(pairs) if new != old), min(len(prompt), len(seen)))
            return f"{PREFIX_FAULT}: it differs at token {place}"
    return None


def with_prefix_mark(items: Sequence[Item], response: Response) -> Response:
    """The response, whose last item is marked (`mask_sample`, `mask_reason`) where its prompt does not begin with what
    was sampled before: do not train across it.

    Args:
        items: the history that was asked with.
    """
    found = token_ids_of(response.output[-1]) if response.output else {}
    fault = prefix_fault(items, found["prompt_token_ids"]) if found else None
    if fault is None:
        return response
    marked = response.output[-1].model_copy(update={"mask_sample": True, "mask_reason": fault})
    return response.model_copy(update={"output": [*response.output[:-1], marked]})


def mask_reason(items: Iterable[Item]) -> str | None:
    """Why what these items tell of is not to be trained on; None where nothing speaks against it."""
    for item in items:
        extra = item.model_extra or {}
        if extra.get("mask_sample"):
            return str(extra.get("mask_reason") or "an item is marked mask_sample")
    return None
