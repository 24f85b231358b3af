"""SFT: rollouts that went well as a set to fine-tune on, in the forms that TRL's `SFTTrainer` takes.

    messages      `messages`, `tools`               conversational language modelling
    completion    `prompt`, `completion`, `tools`   conversational prompt and completion
    tokens        `input_ids`, `labels`             tokenised already: -100 for all that was not sampled

Beside them each row has `environment`, `task`, `rollout` and `reward`. With `messages` and `completion` the trainer's
chat template makes the tokens; the loss is on all of them (of the completion), tool results too, unless it is told
`assistant_only_loss`. With `tokens` they are those that the model sampled, and the loss is on these alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.exports.columns import JSON, JSONS, TOKENS
from gymbox.exports.conversations import AgentInstructions, Reasoning, conversation_of
from gymbox.exports.left_out import Reason, Unfit
from gymbox.exports.token_samples import RecordedCalls, TokenSample, samples_of
from gymbox.exports.training_rows import (
    Candidate,
    Exported,
    Parts,
    best_first,
    by_task,
    origin_of,
    refuse_masked,
    training_set,
)

UNLEARNT = -100
"""Label of a token that is not learnt from."""


class SftForm(StrEnum):
    """What a row holds; see the module."""

    MESSAGES = "messages"
    COMPLETION = "completion"
    TOKENS = "tokens"


class Choose(StrEnum):
    """Which of a task's rollouts are taken where there are more than wanted."""

    BEST = "best"
    """Those of the highest reward; among equals the first."""
    FIRST = "first"
    RANDOM = "random"
    """Drawn by the seed."""


@dataclass(frozen=True, slots=True)
class SftChoice:
    """Which rollouts are taken, and how they are told."""

    form: SftForm = SftForm.MESSAGES
    min_reward: float = 1.0
    per_task: int | None = None
    """At most so many rollouts of a task; None: all."""
    choose: Choose = Choose.BEST
    seed: int = 0
    dedup: bool = False
    """Leave out a rollout that gives the same rows as an earlier one."""
    cut_off: bool = False
    """Take incomplete answers, too."""
    masked: bool = False
    """Take rollouts with `mask_sample`, too, where no tokens are wanted."""
    branches: bool = True
    """Of tokens: a row for each branch of a history that was rewritten or forked."""
    reasoning: Reasoning = Reasoning.KEEP


def export_sft(
    runs: Sequence[RunReader], output: Path, choice: SftChoice | None = None, *, force: bool = False
) -> Exported:
    """Write a set of the rollouts of some runs; the same runs and choice give the same bytes.

    Raises:
        ConfigError: no rollout is left, or a run or the output is not as it should be; then nothing is written.
    """
    choice = choice or SftChoice()
    if choice.masked and choice.form is SftForm.TOKENS:
        raise ConfigError("tokens of masked rollouts are not to be trained on: leave --masked out, or choose messages")
    origin = {"environment": "string", "task": "string", "rollout": "string", "reward": "float64"}
    with training_set(output, force=force) as made:
        candidates = made.read(runs, lambda run: _parts(run, choice), cut_off=choice.cut_off)
        kept = []
        seen: set[bytes] = set()
        for each in candidates:
            if choice.dedup and each.digest in seen:
                made.left_out.add(each.rollout, Unfit(Reason.DUPLICATE))
                continue
            seen.add(each.digest)
            kept.append(each)
        taken = _taken(kept, choice)
        for each in kept:
            if each.number not in taken:
                made.left_out.add(each.rollout, Unfit(Reason.BEYOND_PER_TASK))
        rows = (made.store.at(place) for each in kept if each.number in taken for place in each.rows)
        return made.write(rows, _COLUMNS[choice.form] | origin, used=len(taken))


_COLUMNS: dict[SftForm, dict[str, str]] = {
    SftForm.MESSAGES: {"messages": JSONS, "tools": JSON},
    SftForm.COMPLETION: {"prompt": JSONS, "completion": JSONS, "tools": JSON},
    SftForm.TOKENS: {"input_ids": TOKENS, "labels": TOKENS},
}


def _taken(candidates: Sequence[Candidate], choice: SftChoice) -> set[int]:
    """Their numbers."""
    if choice.per_task is None:
        return {each.number for each in candidates}
    taken: set[int] = set()
    for task, of_task in by_task(candidates).items():
        wanted = min(choice.per_task, len(of_task))
        if choice.choose is Choose.BEST:
            of_task = best_first(of_task)
        elif choice.choose is Choose.RANDOM:
            # by task, so that what one task gets does not hang on the others
            of_task = random.Random(f"{choice.seed}/{'/'.join(task)}").sample(of_task, wanted)
        taken |= {each.number for each in of_task[:wanted]}
    return taken


def _parts(run: RunReader, choice: SftChoice) -> Callable[[Rollout], Parts]:
    calls = RecordedCalls(run.path) if choice.form is SftForm.TOKENS else None
    instructions = AgentInstructions(run)

    def parts(rollout: Rollout) -> Parts:
        assert rollout.reward is not None
        if rollout.reward < choice.min_reward:
            raise Unfit(Reason.BELOW_MIN_REWARD)
        origin = origin_of(rollout)
        if calls is not None:
            samples = samples_of(rollout, calls.of(rollout), branches=choice.branches)
            return Parts(None, [{"input_ids": each.ids, "labels": _labels(each), **origin} for each in samples])
        refuse_masked(rollout, choice.masked)
        told = conversation_of(rollout, reasoning=choice.reasoning, instructions=instructions.of(rollout))
        tools = told.tools or None
        if choice.form is SftForm.MESSAGES:
            return Parts(None, [{"messages": [*told.prompt, *told.answer], "tools": tools, **origin}])
        return Parts(None, [{"prompt": told.prompt, "completion": told.answer, "tools": tools, **origin}])

    return parts


def _labels(sample: TokenSample) -> list[int]:
    return [id if sampled else UNLEARNT for id, sampled in zip(sample.ids, sample.mask, strict=True)]
