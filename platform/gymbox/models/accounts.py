"""Accounts: what the calls of one rollout came to: the tokens of their answers, and how the last of them failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gymbox_sandbox.responses import Usage

from gymbox.errors import ErrorKind, ModelFailure
from gymbox.models.events import TERMINAL, Event, failure_in
from gymbox.models.prices import Spent, spent_in

_NO_ANSWER = (
    ErrorKind.MODEL_UNAUTHORIZED,
    ErrorKind.MODEL_RATE_LIMITED,
    ErrorKind.MODEL_UNAVAILABLE,
    ErrorKind.MODEL_TIMED_OUT,
    ErrorKind.MODEL_BAD_RESPONSE,
)
"""Not `MODEL_REFUSED_REQUEST`: that is an answer, to what was asked, such as with a history too long; unless there
never was another."""
PROMPTLY = 1.0
"""Seconds after an event of a stream: who hangs up within them has heard enough; later, it is tired of waiting."""
PATIENCE = 10.0
"""Seconds: who gives up earlier gave the model no chance, which is the caller's doing and no failure of the model."""


class Account:
    """Of one rollout's calls of its model, whoever made them: its agent by `BoundModel`, or a client of the agent's at
    the rollout's endpoint.

    `failure` is that of a call, where none that began later was answered: what an agent that fails then stumbled over.
    Calls that were refused before they reached the model, and such as their caller gave up, change nothing in that.

    Args:
        clock: seconds, ever on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failure: ModelFailure | None = None
        self.by_endpoint = False
        """Whether calls came by the rollout's endpoint, so that the agent may not know what they took."""
        self._clock = clock
        self._begun = self._until = self._last_answered = 0
        self._answered = self._untold = 0
        self._pending: dict[int, Entry] = {}
        """Calls under way."""
        self._given_up: tuple[int, float] | None = None
        """How many had been answered when a caller gave up, and how long that had waited."""
        self._last_failed = 0
        self._spent = Spent()

    @property
    def unanswered(self) -> ModelFailure | None:
        """Why nobody knows what the model would have done: how the last call failed; or that it was given up, or is
        under way still, after `PATIENCE`. None where the last was answered."""
        failure = self.failure if self._last_failed > self._last_answered else None
        if failure is not None and (failure.rollout_kind in _NO_ANSWER or not self._answered):
            return failure
        waited = self.waited
        if waited is not None and waited >= PATIENCE:
            return ModelFailure(ErrorKind.MODEL_TIMED_OUT, f"it had none after {waited:.0f} s, when it was given up")
        return None

    @property
    def waited(self) -> float | None:
        """Seconds that the last call had waited when it was given up, or has by now; None where one was answered since
        it began."""
        found = [
            self._clock() - entry.began
            for entry in self._pending.values()
            if entry.answered_before == self._answered and not entry.has_heard_enough
        ]
        if self._given_up is not None and self._given_up[0] == self._answered:
            found.append(self._given_up[1])
        return max(found, default=None)

    @property
    def usage(self) -> Usage | None:
        """The tokens of all answers; None where there was none, or one did not tell."""
        if not self._answered or self._untold:
            return None
        spent = self._spent
        return Usage.model_validate(
            {
                "input_tokens": spent.input_tokens,
                "output_tokens": spent.output_tokens,
                "total_tokens": spent.input_tokens + spent.output_tokens,
                "input_tokens_details": {"cached_tokens": spent.cached_tokens},
                "output_tokens_details": {"reasoning_tokens": spent.reasoning_tokens},
            }
        )

    @contextmanager
    def entry(self) -> Iterator[Entry]:
        """A call as long as the block lasts; tell the entry what comes of it."""
        self._begun += 1
        number, given_up = self._begun, False
        entry = self._pending[number] = Entry(self._clock, self._answered)
        try:
            yield entry
        except ModelFailure as failure:
            entry.failure = failure
            raise
        except (asyncio.CancelledError, GeneratorExit):
            given_up = not entry.has_heard_enough
            raise
        finally:
            del self._pending[number]
            if entry.failure is not None:
                self.failure, self._until, self._last_failed = entry.failure, self._begun, number
            elif entry.is_answered:
                self._count(entry.usage)
                self._last_answered = max(self._last_answered, number)
                if number > self._until:
                    self.failure = None
            elif given_up and entry.answered_before == self._answered:
                self._given_up = self._answered, self._clock() - entry.began

    def _count(self, usage: Any) -> None:
        spent = spent_in({"usage": usage})
        self._answered += 1
        if spent is None:
            self._untold += 1
            return
        self._spent = self._spent.plus(spent)


class Entry:
    """One call of an account."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, answered_before: int = 0) -> None:
        self.began = clock()
        self.answered_before = answered_before
        """How many calls had been answered when this one began."""
        self._clock = clock
        self.failure: ModelFailure | None = None
        self.is_answered = False
        self.usage: Any = None
        """As far as it was told; a call that failed may have used some, too."""
        self._heard: float | None = None

    @property
    def has_heard_enough(self) -> bool:
        """Whether who hangs up now had what it wanted: an answer, or a part of one a moment ago."""
        return self.is_answered or (self._heard is not None and self._clock() - self._heard < PROMPTLY)

    def answered(self, usage: Any) -> None:
        """It was, with these tokens, as its dialect tells them; None where it tells none."""
        self.is_answered, self.usage = True, usage

    def saw_event(self, event: Event) -> None:
        """An event of a Responses stream went by."""
        self._heard = self._clock()
        if event["type"] in TERMINAL:
            self.answered(event["response"].get("usage"))
        if event["type"] == "response.failed":
            self.failure = failure_in(event["response"], "")

    def saw_chunk(self, chunk: Event) -> None:
        """A chunk of a Chat stream went by."""
        self._heard = self._clock()
        if chunk.get("error"):
            self.failure = failure_in(chunk, "")
        self.usage = chunk.get("usage") or self.usage
        if any(choice.get("finish_reason") for choice in chunk.get("choices") or []):
            self.is_answered = True

    def saw_message_event(self, event: Event) -> None:
        """An event of a Messages stream went by."""
        self._heard = self._clock()
        kind = event.get("type")
        told = event.get("message") if kind == "message_start" else event
        usage = told.get("usage") if isinstance(told, dict) else None
        if isinstance(usage, dict):
            # what the last event does not repeat, the first has told
            self.usage = {**(self.usage or {}), **{name: count for name, count in usage.items() if count is not None}}
        if kind == "error":
            error = event.get("error")
            code = error.get("rollout_kind") or error.get("type") if isinstance(error, dict) else None
            self.failure = failure_in({"error": {**error, "code": code} if isinstance(error, dict) else error}, "")
        elif kind == "message_stop":
            self.is_answered = True
