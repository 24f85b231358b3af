"""Scoring: an instance's `verify`, and what it asks a judge on the way to its verdict."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from gymbox_sandbox.author import deadline, failing_as, task_of
from gymbox_sandbox.problems import Conflict, Internal, Problem, TimedOut
from gymbox_sandbox.resources import ResourcesServer
from gymbox_sandbox.tasks import LARGEST, Verdict
from gymbox_sandbox.wire import VerifyRequest

if TYPE_CHECKING:
    from gymbox_sandbox.judge import Judge, Line


class Scoring:
    """Of one instance, once; its verdict, or its failure, stays.

    Args:
        timeout: seconds that it may take.
    """

    def __init__(self, instance: ResourcesServer, timeout: float) -> None:
        self._instance = instance
        self._timeout = timeout
        self._verdict: asyncio.Task[Verdict] | None = None
        self._judge: Judge | None = None
        self._line: Line | None = None

    @property
    def has_begun(self) -> bool:
        return self._verdict is not None

    def attend(self) -> None:
        """From now on there is someone who takes questions for a judge."""
        self._open_line().attend()

    def begin(self, request: VerifyRequest, begun: float) -> None:
        """Score; the seconds began then, on the loop's clock."""
        self._verdict = asyncio.create_task(self._score(request, begun))

    def outcome(self, *, can_ask: bool) -> Awaitable[Verdict | list[dict[str, Any]]]:
        """The verdict; or, to a caller that `can_ask` a judge, the questions for it that have no answer yet. It has
        begun.

        Raises:
            Internal: `verify` raised (`rollout_kind` is verify_failed) or gave no finite number (bad_verdict).
            TimedOut: it took longer than it may.
        """
        assert self._verdict is not None
        # shielded: a caller that hangs up must not end what the next one will ask for
        return self._asked(self._verdict) if can_ask else asyncio.shield(self._verdict)

    def answered(self, answers: bytes | bytearray) -> Awaitable[Verdict | list[dict[str, Any]]]:
        """As `outcome`, once it has what it asked; see `judge.Line`.

        Raises:
            Conflict: it has not begun.
            Invalid: these are no answers.
        """
        if self._verdict is None:
            raise Conflict("verify has not begun: there is nothing to answer")
        self._open_line().take(answers)
        return self._asked(self._verdict)

    async def _asked(self, verdict: asyncio.Task[Verdict]) -> Verdict | list[dict[str, Any]]:
        if questions := await self._open_line().until_asked(verdict):
            return questions
        return await asyncio.shield(verdict)

    def _open_line(self) -> Line:
        from gymbox_sandbox.judge import Line  # which few sandboxes need

        self._line = self._line or Line()
        return self._line

    def _open_judge(self) -> Judge:
        from gymbox_sandbox.judge import Judge

        self._judge = self._judge or Judge(self._open_line())
        return self._judge

    async def _score(self, request: VerifyRequest, begun: float) -> Verdict:
        task = task_of(request.task)
        self._instance._opens_judge = self._open_judge
        try:
            async with deadline(self._timeout, "verify", begun):
                async with failing_as("verify_failed", "verify"):
                    found = verdict_of(await self._instance._finish(self._instance.verify, task, request.response))
        except Exception as error:
            failure = self._failure_of_judge(error)
            if failure is None or failure is error:
                raise
            raise failure from error
        finally:
            self._instance._opens_judge = None
        if self._judge is None:
            return found
        if failure := self._failure_of_judge(None):
            raise failure  # caught by verify, which cannot know what the answer would have been
        return found.model_copy(update={"metrics": {**self._judge.metrics(), **found.metrics}})

    def _failure_of_judge(self, error: Exception | None) -> Problem | None:
        """What the judge has to do with how verify ended: it failed, or was still being waited for."""
        if self._judge is None:
            return None
        if self._judge.failed is None and isinstance(error, TimedOut):
            from gymbox_sandbox.judge import JudgeFailed

            return JudgeFailed(f"{error.detail}, and waited for its judge") if self._judge.interrupted else None
        return self._judge.failed


def verdict_of(found: Any) -> Verdict:
    """The verdict that `verify` means.

    Raises:
        Internal: it is no finite number, nor a Verdict (`rollout_kind` is bad_verdict).
    """
    if isinstance(found, Verdict):
        return found
    try:
        reward = float(found) if hasattr(type(found), "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not abs(reward) <= LARGEST:
        raise Internal(
            f"verify gave {found!r:.200}, which is no finite number (of at most {LARGEST:g})",
            rollout_kind="bad_verdict",
        )
    return Verdict(reward=reward)
