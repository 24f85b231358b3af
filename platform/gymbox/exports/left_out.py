"""Left out: why rollouts have no row in a training set, counted, so that none is dropped in silence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Why a rollout is in no row."""

    ERROR = "error"
    """It ended in an error, so nobody knows what it is worth."""
    NO_REWARD = "no_reward"
    """It has no reward, and no error that says why."""
    BELOW_MIN_REWARD = "below_min_reward"
    MASKED = "masked"
    """`mask_sample`: it is not to be trained on; `mask_reason` says why."""
    CUT_OFF = "cut_off"
    """The answer is incomplete: a limit of tokens, steps or tool calls ended it."""
    NO_ANSWER = "no_answer"
    """There is no response, or the model says nothing in it."""
    NOT_CHAT = "not_chat"
    """The Chat format has no place for something in it, such as a call without a result."""
    SKILLS = "skills"
    """The agent's skills stood in its prompt, and the record does not have that text; recorded tokens do."""
    NOT_TEXT = "not_text"
    """It has images, files or audio."""
    NO_TOKEN_IDS = "no_token_ids"
    """The model told no token ids, or not of every answer."""
    UNSURE = "unsure"
    """Recorded calls are missing, or nothing tells which of two answers counted."""
    SEVERAL_BRANCHES = "several_branches"
    """Its history was rewritten or forked, so that it is no single sequence."""
    SEVERAL_TURNS = "several_turns"
    """Between what was sampled stand tool results, which DPO's loss could not leave out."""
    DUPLICATE = "duplicate"
    """An earlier rollout gives the same row."""
    BEYOND_PER_TASK = "beyond_per_task"
    """Its task has as many others as are wanted."""
    NOT_PAIRED = "not_paired"
    """No other rollout of the same prompt has a reward that differs enough, or no further pair was wanted."""


class Unfit(Exception):
    """A rollout that cannot be a row."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason, self.detail = reason, detail


@dataclass
class LeftOut:
    """How many rollouts are in no row, by reason, with the first of each that had more to say."""

    counts: Counter[Reason] = field(default_factory=Counter)
    examples: dict[Reason, str] = field(default_factory=dict)

    def add(self, rollout: str, why: Unfit) -> None:
        self.counts[why.reason] += 1
        if why.detail:
            self.examples.setdefault(why.reason, f"{rollout}: {why.detail}")

    def __str__(self) -> str:
        return ", ".join(f"{reason.value} {count}" for reason, count in self.counts.most_common())
