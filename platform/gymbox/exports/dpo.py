"""DPO: pairs of rollouts of the same prompt, one better than the other, in the forms that TRL takes.

    chat      `prompt`, `chosen`, `rejected`, `tools`          conversational, as `DPOTrainer` takes it
    tokens    `prompt_ids`, `chosen_ids`, `rejected_ids`       as `DataCollatorForPreference` takes it

Beside them each row has `environment`, `task`, `chosen_rollout`, `rejected_rollout`, `score_chosen` and
`score_rejected`. The halves of a pair were asked the very same: all messages and tools, or all tokens of the prompt.

DPO's loss is on all that follows the prompt. What the model did not say, such as tool results, it cannot leave out; so
tokens are written of rollouts with a single answer only, and of conversations with tools you should know it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.exports.columns import JSON, JSONS, TOKENS
from gymbox.exports.conversations import AgentInstructions, Reasoning, conversation_of
from gymbox.exports.left_out import Reason, Unfit
from gymbox.exports.token_samples import RecordedCalls, samples_of
from gymbox.exports.training_rows import (
    Candidate,
    Exported,
    Parts,
    best_first,
    origin_of,
    refuse_masked,
    training_set,
)


class DpoForm(StrEnum):
    """What a row holds; see the module."""

    CHAT = "chat"
    TOKENS = "tokens"


class Pairing(StrEnum):
    """Which pairs of a prompt's rollouts are taken."""

    BEST_WORST = "best-worst"
    """The best and the worst."""
    ALL = "all"
    """Every two that differ enough, those that differ most first."""
    RANDOM = "random"
    """Of these, some drawn by the seed; one if no number is given."""


@dataclass(frozen=True, slots=True)
class DpoChoice:
    """Which pairs are taken, and how they are told."""

    form: DpoForm = DpoForm.CHAT
    pairs: Pairing = Pairing.BEST_WORST
    margin: float = 0.0
    """The chosen's reward is higher, and by at least this."""
    per_prompt: int | None = None
    """At most so many pairs of a prompt."""
    seed: int = 0
    cut_off: bool = False
    """Take incomplete answers, too."""
    masked: bool = False
    """Take rollouts with `mask_sample`, too, where no tokens are wanted."""
    reasoning: Reasoning = Reasoning.KEEP


def export_dpo(
    runs: Sequence[RunReader], output: Path, choice: DpoChoice | None = None, *, force: bool = False
) -> Exported:
    """Write pairs of the rollouts of some runs; the same runs and choice give the same bytes.

    Raises:
        ConfigError: there is no pair, or a run or the output is not as it should be; then nothing is written.
    """
    choice = choice or DpoChoice()
    if choice.masked and choice.form is DpoForm.TOKENS:
        raise ConfigError("tokens of masked rollouts are not to be trained on: leave --masked out, or choose chat")
    with training_set(output, force=force) as made:
        candidates = made.read(runs, lambda run: _parts(run, choice), cut_off=choice.cut_off)
        pairs = [pair for group in _groups(candidates) for pair in _pairs(group, choice)]
        used = {each.number for pair in pairs for each in pair}
        for each in candidates:
            if each.number not in used:
                made.left_out.add(each.rollout, Unfit(Reason.NOT_PAIRED))

        def rows() -> Iterator[dict[str, Any]]:
            for better, worse in pairs:
                yield _row(made.store.at(better.rows[0]), made.store.at(worse.rows[0]), choice.form)

        return made.write(rows(), _COLUMNS[choice.form] | _ORIGIN, used=len(used))


_ROUNDING = 1e-9
"""0.3 - 0.2 is a little less than 0.1."""
_ORIGIN = {
    "environment": "string",
    "task": "string",
    "chosen_rollout": "string",
    "rejected_rollout": "string",
    "score_chosen": "float64",
    "score_rejected": "float64",
}
_COLUMNS: dict[DpoForm, dict[str, str]] = {
    DpoForm.CHAT: {"prompt": JSONS, "chosen": JSONS, "rejected": JSONS, "tools": JSON},
    DpoForm.TOKENS: {"prompt_ids": TOKENS, "chosen_ids": TOKENS, "rejected_ids": TOKENS},
}


def _row(better: dict[str, Any], worse: dict[str, Any], form: DpoForm) -> dict[str, Any]:
    """The pair that two halves make, whose prompts and tools are the same."""
    suffix = "_ids" if form is DpoForm.TOKENS else ""
    return {
        f"prompt{suffix}": better["prompt"],
        f"chosen{suffix}": better["answer"],
        f"rejected{suffix}": worse["answer"],
        "tools": better.get("tools"),
        "environment": better["environment"],
        "task": better["task"],
        "chosen_rollout": better["rollout"],
        "rejected_rollout": worse["rollout"],
        "score_chosen": better["reward"],
        "score_rejected": worse["reward"],
    }


def _groups(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Those that were asked the same for the same task."""
    groups: dict[tuple[tuple[str, str], bytes], list[Candidate]] = {}
    for each in candidates:
        groups.setdefault((each.task, each.prompt), []).append(each)
    return list(groups.values())


def _pairs(group: Sequence[Candidate], choice: DpoChoice) -> list[tuple[Candidate, Candidate]]:
    """Better and worse, those that differ most first."""
    ranked = best_first(group)
    fitting = [
        (better, worse)
        for better, worse in product(ranked, reversed(ranked))
        if better.reward > worse.reward
        and better.reward - worse.reward >= choice.margin - _ROUNDING
        and better.digest != worse.digest  # one answer that was scored in two ways teaches nothing
    ]
    fitting.sort(key=lambda pair: pair[1].reward - pair[0].reward)
    if choice.pairs is Pairing.BEST_WORST:
        return fitting[:1]
    if choice.pairs is Pairing.ALL:
        return fitting[: choice.per_prompt]
    drawn = random.Random(f"{choice.seed}/{'/'.join(group[0].task)}/{group[0].prompt.hex()}")
    return drawn.sample(fitting, min(choice.per_prompt or 1, len(fitting)))


def _parts(run: RunReader, choice: DpoChoice) -> Callable[[Rollout], Parts]:
    calls = RecordedCalls(run.path) if choice.form is DpoForm.TOKENS else None
    instructions = AgentInstructions(run)

    def parts(rollout: Rollout) -> Parts:
        if calls is not None:
            [sample] = samples_of(rollout, calls.of(rollout), branches=False)
            begin = sample.mask.index(1)
            if 0 in sample.mask[begin:]:
                raise Unfit(Reason.SEVERAL_TURNS)
            prompt, answer = sample.ids[:begin], sample.ids[begin:]
            return Parts(prompt, [{"prompt": prompt, "answer": answer, **origin_of(rollout)}])
        refuse_masked(rollout, choice.masked)
        told = conversation_of(rollout, reasoning=choice.reasoning, instructions=instructions.of(rollout))
        tools = told.tools or None
        half = {"prompt": told.prompt, "answer": told.answer, "tools": tools, **origin_of(rollout)}
        return Parts([told.prompt, tools], [half])

    return parts
