"""Errors: the tree every layer raises from, and what a failed rollout records.

Three lanes. To the model: a `ToolResult` with `is_error` (never an exception past the sandbox). Onto the rollout:
`RolloutError`, with a closed kind that says whether a retry can help. To the operator: `ConfigError`, before anything
has started.

    Exception
    ├── Problem            what crosses the wire (gymbox_sandbox.problems: Invalid … TimedOut)
    │   └── RolloutFailure     a Problem that already knows its rollout kind
    │       ├── SandboxEnded       the sandbox is no more; `ended` says why
    │       ├── SandboxPaused      nothing in it runs until it is unpaused
    │       ├── StartFailed        it never became ready; `ended` has its last log lines
    │       ├── ImageBuildFailed   `log` has the failing step
    │       ├── ImageNotPulled     a registry does not have it, or does not give it to us
    │       ├── RegistryAway       a registry does not answer
    │       ├── JudgeFailed        the model that a verifier asks gave no usable answer
    │       └── ModelFailure       the model did not give a usable answer
    └── ConfigError        bad configuration: one message, exit code 2
"""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from typing import Any

from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.problems import (
    AtCapacity,
    Conflict,
    Forbidden,
    Gone,
    Internal,
    Invalid,
    NotFound,
    Problem,
    TimedOut,
    ToolError,
    Unauthorized,
    Unavailable,
    from_wire,
)
from pydantic import BaseModel, ConfigDict

from gymbox.printable import printable

__all__ = [
    "AtCapacity",
    "ConfigError",
    "Conflict",
    "ErrorKind",
    "Forbidden",
    "Gone",
    "ImageBuildFailed",
    "ImageNotPulled",
    "Internal",
    "Invalid",
    "JudgeFailed",
    "ModelFailure",
    "NotFound",
    "Problem",
    "RegistryAway",
    "RolloutError",
    "RolloutFailure",
    "SandboxEnded",
    "SandboxPaused",
    "Stage",
    "StartFailed",
    "TimedOut",
    "ToolError",
    "Unauthorized",
    "Unavailable",
    "first_line",
    "from_wire",
    "log_ending",
    "nearest",
]


class Stage(StrEnum):
    """Where in its life a rollout failed."""

    PROVISION = "provision"
    RESET = "reset"
    AGENT = "agent"
    VERIFY = "verify"


class ErrorKind(StrEnum):
    """Closed list of the reasons for which a rollout has no reward."""

    SANDBOX_START_FAILED = "sandbox_start_failed"
    """Its server never answered: it raised at import, or took longer than `timeouts.start`; see `logs`."""
    IMAGE_BUILD_FAILED = "image_build_failed"
    """The environment's image did not build; `logs` end with the failing step."""
    IMAGE_NOT_FOUND = "image_not_found"
    """The registry does not have the image that the environment is based on."""
    IMAGE_NO_ACCESS = "image_no_access"
    """The registry gives that image to none without other credentials: `docker login`."""
    REGISTRY_UNAVAILABLE = "registry_unavailable"
    """The registry did not answer, three times in a row."""
    AT_CAPACITY = "at_capacity"
    """The controller had no room for a further sandbox, for longer than a rollout waits."""
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    """The Docker engine, or the controller, did not answer."""
    OOM_KILLED = "oom_killed"
    """The sandbox needed more than `limits.memory_mb`."""
    DISK_FULL = "disk_full"
    """Workspace, /tmp or the machine's disk was full."""
    SANDBOX_KILLED = "sandbox_killed"
    """Something outside killed the sandbox, such as an operator or the machine's own lack of memory."""
    SANDBOX_EXITED = "sandbox_exited"
    """The sandbox's server ended by itself; `logs` has its last lines."""
    SANDBOX_EXPIRED = "sandbox_expired"
    """Its lease ran out: nobody renewed it."""
    SANDBOX_LOST = "sandbox_lost"
    """It was deleted while the rollout ran, or is gone without a trace, as after a restart of the machine."""
    SANDBOX_UNREACHABLE = "sandbox_unreachable"
    """It lives but could not be reached through the proxy."""
    RESET_FAILED = "reset_failed"
    """The environment's `reset` raised, or refused the task."""
    MODEL_UNAUTHORIZED = "model_unauthorized"
    """The endpoint refused the key."""
    MODEL_RATE_LIMITED = "model_rate_limited"
    """The endpoint still asked for fewer calls after the last try."""
    MODEL_UNAVAILABLE = "model_unavailable"
    """No connection to the endpoint, or it said that it cannot answer now; or the last calls of a harness in the
    sandbox got no answer."""
    MODEL_TIMED_OUT = "model_timed_out"
    """The endpoint took longer than `model.timeout`."""
    MODEL_BAD_RESPONSE = "model_bad_response"
    """What came back is no usable answer: not JSON, another format, empty, or cut short."""
    MODEL_REFUSED_REQUEST = "model_refused_request"
    """The endpoint takes the request for wrong, or too long; `model=scripted`: it has no reply for it."""
    AGENT_FAILED = "agent_failed"
    """The agent raised."""
    VERIFY_FAILED = "verify_failed"
    """The environment's `verify` raised."""
    ARTIFACTS_TOO_LARGE = "artifacts_too_large"
    """What the agent left to be scored is more than the manifest's `artifact_limits` allow."""
    JUDGE_FAILED = "judge_failed"
    """The judge that `verify` asked gave no usable answer: it was not reached, refused, was garbled each time, or had
    no majority."""
    BAD_VERDICT = "bad_verdict"
    """`verify` returned what is no finite number."""
    TIMED_OUT = "timed_out"
    """The stage, or the whole rollout, took longer than `timeouts` allow."""
    CANCELLED = "cancelled"
    """Whoever asked for it did not want it any more; see the Python API."""
    INVALID_TASK = "invalid_task"
    """The row is no task that the environment takes."""
    INTERNAL = "internal"
    """A fault in gymbox itself; please report it."""


RETRYABLE = frozenset(
    {
        ErrorKind.SANDBOX_START_FAILED,
        ErrorKind.REGISTRY_UNAVAILABLE,
        ErrorKind.AT_CAPACITY,
        ErrorKind.PROVIDER_UNAVAILABLE,
        ErrorKind.SANDBOX_KILLED,
        ErrorKind.SANDBOX_EXPIRED,
        ErrorKind.SANDBOX_LOST,
        ErrorKind.SANDBOX_UNREACHABLE,
        ErrorKind.MODEL_RATE_LIMITED,
        ErrorKind.MODEL_UNAVAILABLE,
        ErrorKind.MODEL_TIMED_OUT,
        ErrorKind.MODEL_BAD_RESPONSE,
        ErrorKind.JUDGE_FAILED,
        ErrorKind.TIMED_OUT,
    }
)
"""Kinds for which the same rollout may succeed another time."""


class ConfigError(Exception):
    """Bad configuration or input: what, where, and how to mend it. Shown as it is; exit code 2."""


class RolloutFailure(Problem):
    """A failure that already knows which kind of rollout error it is, and says so on the wire too."""

    def __init__(self, kind: ErrorKind, detail: str, *, retry_after: float | None = None, **extra: Any) -> None:
        super().__init__(detail, retry_after=retry_after, **extra, rollout_kind=kind.value)
        self.rollout_kind = kind


_BY_CAUSE = {
    "oom_killed": ErrorKind.OOM_KILLED,
    "disk_full": ErrorKind.DISK_FULL,
    "killed": ErrorKind.SANDBOX_KILLED,
    "exited": ErrorKind.SANDBOX_EXITED,
    "expired": ErrorKind.SANDBOX_EXPIRED,
    "timeout": ErrorKind.TIMED_OUT,
    "failed_to_start": ErrorKind.SANDBOX_START_FAILED,
    "lost": ErrorKind.SANDBOX_LOST,
    "deleted": ErrorKind.SANDBOX_LOST,
}


class SandboxEnded(RolloutFailure, Gone):
    """The sandbox is no more; `ended` says why and has its last log lines."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(_BY_CAUSE[ended.cause], ended.detail, ended=ended.model_dump(mode="json"))
        self.ended = ended


class SandboxPaused(RolloutFailure, Conflict):
    """The sandbox is paused: nothing in it runs, so nothing in it can be called."""

    def __init__(self, id: str) -> None:
        way_on = f"`gymbox sandbox unpause {id}`, or POST /sandboxes/{id}/unpause"
        detail = f"sandbox {id} is paused: unpause it first ({way_on})"
        super().__init__(ErrorKind.SANDBOX_UNREACHABLE, detail, cause="paused")


class StartFailed(RolloutFailure, Unavailable):
    """The sandbox never became ready; `ended` has the cause and its last log lines, with which `str()` ends."""

    def __init__(self, ended: Ended) -> None:
        known = ended.cause in ("oom_killed", "disk_full")
        kind = _BY_CAUSE[ended.cause] if known else ErrorKind.SANDBOX_START_FAILED
        super().__init__(kind, ended.detail, ended=ended.model_dump(mode="json"))
        self.ended = ended

    def __str__(self) -> str:
        return f"{self.detail}{log_ending(self.ended.logs)}"


class ImageBuildFailed(RolloutFailure, Invalid):
    """An environment's image did not build; `log` ends with the failing step."""

    def __init__(self, detail: str, log: str = "") -> None:
        super().__init__(ErrorKind.IMAGE_BUILD_FAILED, detail, log=log)
        self.log = log


class ImageNotPulled(RolloutFailure, Invalid):
    """A registry does not have an image (`image_not_found`), or does not give it to us (`image_no_access`)."""


class RegistryAway(RolloutFailure, Unavailable):
    """A registry does not answer, so an image could not be pulled; another time it may."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorKind.REGISTRY_UNAVAILABLE, detail)


class ModelFailure(RolloutFailure, Unavailable):
    """The model gave no usable answer; `kind_of` is one of the `MODEL_*` kinds."""

    def __init__(self, kind_of: ErrorKind, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(kind_of, detail, retry_after=retry_after)


class JudgeFailed(RolloutFailure, Unavailable):
    """The judge gave no usable answer, so there is no score."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorKind.JUDGE_FAILED, detail)


_BY_PROBLEM: dict[type[Problem], ErrorKind] = {
    AtCapacity: ErrorKind.AT_CAPACITY,
    TimedOut: ErrorKind.TIMED_OUT,
    Gone: ErrorKind.SANDBOX_LOST,
}
_BY_STAGE: dict[Stage, ErrorKind] = {
    Stage.PROVISION: ErrorKind.INTERNAL,
    Stage.RESET: ErrorKind.RESET_FAILED,
    Stage.AGENT: ErrorKind.AGENT_FAILED,
    Stage.VERIFY: ErrorKind.VERIFY_FAILED,
}


class RolloutError(BaseModel):
    """Why a rollout has no reward: where it failed, which kind, what happened, and whether a retry can help."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: Stage
    kind: ErrorKind
    detail: str
    retryable: bool
    logs: str = ""
    """Last lines of the sandbox or of the image build, where they tell the cause."""

    @classmethod
    def at(cls, stage: Stage, error: BaseException) -> RolloutError:
        """The record of `error`, raised while the rollout was in `stage`."""
        if isinstance(error, Problem):
            kind = _kind_in_extra(error.extra) or _kind_by_type(stage, error)
        elif isinstance(error, TimeoutError):
            kind = ErrorKind.TIMED_OUT
        else:
            kind = _BY_STAGE[stage] if stage in (Stage.AGENT, Stage.VERIFY) else ErrorKind.INTERNAL
        detail = error.detail if isinstance(error, Problem) else f"{type(error).__name__}: {error}"
        return cls(stage=stage, kind=kind, detail=detail, retryable=kind in RETRYABLE, logs=_logs_of(error))


def _kind_by_type(stage: Stage, error: Problem) -> ErrorKind:
    if stage is Stage.PROVISION and isinstance(error, Unavailable):
        return ErrorKind.PROVIDER_UNAVAILABLE
    return _BY_PROBLEM.get(type(error)) or _BY_STAGE[stage]


def _kind_in_extra(extra: dict[str, Any]) -> ErrorKind | None:
    found = extra.get("rollout_kind")
    if isinstance(found, str) and found in ErrorKind:
        return ErrorKind(found)
    ended = extra.get("ended")
    if isinstance(ended, dict) and ended.get("cause") in _BY_CAUSE:
        return _BY_CAUSE[ended["cause"]]
    return None


def _logs_of(error: BaseException) -> str:
    if not isinstance(error, Problem):
        return ""
    ended = error.extra.get("ended")
    return str(error.extra.get("log") or (ended.get("logs") if isinstance(ended, dict) else "") or "")


def by_this_python(module: str) -> str:
    """The command that runs a module of gymbox; the `python` of a user's PATH may be one that has no gymbox."""
    return f"{shlex.quote(sys.executable)} -m gymbox.{module}"


LONGEST_NAME = 200
"""Characters of a mistyped name that are looked at."""


LOG_LINES_TOLD = 5
"""Last lines of a log that stand in a failure's one line, "`; its log ends with: …`"."""
LOG_TOLD = 400
"""Characters of them."""


def log_ending(logs: str) -> str:
    """What to put behind a failure for its log to be seen at once, printable and on one line; `""` of an empty log."""
    lines = [line.strip() for line in logs.splitlines() if line.strip()][-LOG_LINES_TOLD:]
    told = " | ".join(lines)
    if len(told) > LOG_TOLD:  # the end says more than the beginning
        told = f"…{told[-LOG_TOLD:]}"
    return f"; its log ends with: {printable(told, None)}" if told else ""


def first_line(error: BaseException) -> str:
    """Of what an exception says; its type where it says nothing."""
    return next((line for line in str(error).split("\n") if line.strip()), type(error).__name__)


def nearest(name: str, known: list[str]) -> str:
    """A hint for a mistyped `name`: `did you mean 'x'?`, or the list of what is known."""
    from difflib import get_close_matches

    # looking for what is near takes time by the length of the name, which may be any caller's
    close = get_close_matches(name[:LONGEST_NAME], known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known)) or 'none'}"
