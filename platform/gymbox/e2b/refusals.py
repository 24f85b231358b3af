"""Refusals: how what fails is told, so that E2B's SDK raises the exception that it means.

To a REST call or one for a file, a status and `{"code", "message"}`; to an RPC, one of Connect's codes.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, NamedTuple

from gymbox.errors import (
    AtCapacity,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Problem,
    SandboxEnded,
    StartFailed,
    TimedOut,
    Unauthorized,
    Unavailable,
)

PAUSED = "it is paused; connect to it, and it goes on"


class Code(StrEnum):
    """What Connect calls its failures, as far as any is told here."""

    INVALID_ARGUMENT = "invalid_argument"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    PERMISSION_DENIED = "permission_denied"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    FAILED_PRECONDITION = "failed_precondition"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"
    DATA_LOSS = "data_loss"
    UNAUTHENTICATED = "unauthenticated"


STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}
"""Of an answer to an RPC that is not streamed."""


class Refused(Exception):
    """An RPC fails with this code."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Unserved(Exception):
    """E2B has this and gymbox has not; the text says what."""


class Away(Exception):
    """There is no such sandbox, or it does not run any more."""

    def __init__(self, id: str, why: str = "") -> None:
        # the SDK knows by the words "was not found" that it is gone, and not merely out of reach
        super().__init__(f"The sandbox {id!r:.100} was not found{f': {why}' if why else ''}")


class TooLarge(Exception):
    """The body has more bytes than it may."""


class Told(NamedTuple):
    """How an answer tells of a failure."""

    status: int
    message: str
    headers: dict[str, str]

    @property
    def body(self) -> dict[str, Any]:
        return {"code": self.status, "message": self.message}


def as_away(error: Exception, id: str) -> Exception:
    """The same, or Away where its meaning is that the sandbox does not run."""
    if isinstance(error, SandboxEnded) or (isinstance(error, Gone) and "ended" in error.extra):
        return Away(id, error.detail)
    if isinstance(error, Conflict) and error.extra.get("cause") == "paused":
        return Away(id, PAUSED)
    return error


def told(error: Exception) -> Told:
    """How a REST call or one for a file is told of it; what is no failure of ours to tell is raised again."""
    message, headers = str(error), {}
    if isinstance(error, Problem):
        message = error.detail
        if error.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(error.retry_after))
    if isinstance(error, StartFailed):
        message, headers = str(error), {"Should-Retry": "false"}
    match error:
        case Away():
            status = 502
        case Unserved():
            status = 501
        case TooLarge():
            status = 413
        case Refused():
            status = STATUS[error.code]
        case Conflict() if error.extra.get("cause") == "disk_full":
            status = 507
        case Unauthorized():
            status = 401
        case Problem():
            status = _STATUS.get(_code(error), 500)
        case _:
            raise error
    return Told(status, message, headers)


_STATUS = {**STATUS, Code.FAILED_PRECONDITION: 409}


def refused(error: Exception) -> Refused:
    """How an RPC is told of it; what is no failure of ours to tell is raised again."""
    match error:
        case Refused():
            return error
        case Away():
            return Refused(Code.UNAVAILABLE, str(error))
        case Unserved():
            return Refused(Code.UNIMPLEMENTED, str(error))
        case TooLarge():
            return Refused(Code.RESOURCE_EXHAUSTED, str(error))
        case Problem():
            return Refused(_code(error), error.detail)
        case _:
            raise error


def _code(error: Problem) -> Code:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), Code.INTERNAL)


_CODES: dict[type[Problem], Code] = {
    Invalid: Code.INVALID_ARGUMENT,
    NotFound: Code.NOT_FOUND,
    Conflict: Code.FAILED_PRECONDITION,
    Gone: Code.NOT_FOUND,
    Forbidden: Code.PERMISSION_DENIED,
    Unauthorized: Code.UNAUTHENTICATED,
    AtCapacity: Code.RESOURCE_EXHAUSTED,
    TimedOut: Code.DEADLINE_EXCEEDED,
    Unavailable: Code.UNAVAILABLE,
}
