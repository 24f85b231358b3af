"""Profile: which tasks of a run teach nothing, and which seem to be broken."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gymbox.errors import ErrorKind
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import SUCCESS, TaskFigures, summary
from gymbox.evaluation.tallies import Missing

Kind = Literal["too_easy", "too_hard", "unstable", "useful", "broken", "unknown"]
TOLD: dict[str, str] = {
    "too_easy": "nearly every try succeeds",
    "too_hard": "nearly no try succeeds",
    "unstable": "its rewards differ most between tries",
    "useful": "some tries succeed",
    "broken": "tries end in errors of its sandbox or its verify",
    "unknown": "too few tries have a reward",
}
ITS_OWN = frozenset(
    kind.value
    for kind in (
        ErrorKind.SANDBOX_START_FAILED,
        ErrorKind.IMAGE_BUILD_FAILED,
        ErrorKind.OOM_KILLED,
        ErrorKind.DISK_FULL,
        ErrorKind.SANDBOX_EXITED,
        ErrorKind.RESET_FAILED,
        ErrorKind.VERIFY_FAILED,
    )
)
"""Errors for which neither model nor agent nor machine is to blame, as far as one can tell."""


class Profiled(BaseModel):
    """One task, and what to think of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    why: str
    figures: TaskFigures


class Profile(BaseModel):
    """Of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    missing_policy: Missing
    success: float
    easy: float
    hard: float
    unstable: float
    tries: int
    counts: dict[Kind, int]
    tasks: list[Profiled]


def profile(
    reader: RunReader,
    *,
    success: float = SUCCESS,
    easy: float = 0.9,
    hard: float = 0.1,
    unstable: float = 0.4,
    broken: float = 0.5,
    tries: int = 2,
    missing: Missing = "excluded",
) -> Profile:
    """Each task of a run, sorted into kinds.

    Args:
        easy: a part of successes from which on a task is too easy.
        hard: a part of successes up to which a task is too hard.
        unstable: a standard deviation of rewards from which on a task between the two is unstable.
        broken: a part of tries that ended in errors of the sandbox or of `verify` from which on a task is broken.
        tries: rewards below which nothing is said of a task.

    Raises:
        ConfigError: a line is damaged.
    """
    found = summary(reader, success=success, missing=missing, tasks=True)
    tasks = [_profiled(task, easy, hard, unstable, broken, tries) for task in found.tasks]
    return Profile(
        run=found.run,
        missing_policy=missing,
        success=success,
        easy=easy,
        hard=hard,
        unstable=unstable,
        tries=tries,
        counts=dict(Counter(task.kind for task in tasks)),
        tasks=tasks,
    )


def _profiled(task: TaskFigures, easy: float, hard: float, unstable: float, broken: float, tries: int) -> Profiled:
    its_own = {kind: count for kind, count in task.errors.items() if kind in ITS_OWN}
    solved = f"{task.c} of {task.n} tries succeed"
    if its_own and sum(its_own.values()) >= broken * task.lines:
        told = ", ".join(f"{kind} {count} of {task.lines}" for kind, count in its_own.items())
        return Profiled(kind="broken", why=told, figures=task)
    if task.n < tries:
        return Profiled(kind="unknown", why=f"{task.n} of the {tries} rewards it takes", figures=task)
    if task.c >= easy * task.n:
        return Profiled(kind="too_easy", why=solved, figures=task)
    if task.c <= hard * task.n and (task.mean or 0) <= hard:
        return Profiled(kind="too_hard", why=solved, figures=task)
    if task.deviation is not None and task.deviation >= unstable:
        return Profiled(kind="unstable", why=f"{solved}; deviation {task.deviation:.2f}", figures=task)
    return Profiled(kind="useful", why=solved, figures=task)
