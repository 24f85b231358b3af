"""Problems: the few kinds of failure that cross the wire, named for what the caller should do.

Every gymbox server answers a failure as ``application/problem+json`` (RFC 9457) with a ``kind`` from the closed
table below, and every gymbox client turns that answer back into the same exception.

    Problem
    ├── Invalid       422   the request is wrong: mend it
    ├── Unauthorized  401   no token, or not a valid one
    ├── Forbidden     403   a valid token without this right
    ├── NotFound      404   there is no such thing
    ├── Conflict      409   it exists, or is in a state that forbids this
    ├── Gone          410   it existed and has ended (`cause` says why)
    ├── AtCapacity    429   come back after `retry_after` seconds
    ├── Internal      500   a bug on the other side
    ├── Unavailable   503   not now: try again
    └── TimedOut      504   it did not answer in time
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """A failure with a kind, a sentence that says the fact, and optional machine-readable `extra` fields."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, retry_after: float | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after
        self.extra = extra

    def to_wire(self) -> dict[str, Any]:
        """The body of the answer: `{title, status, kind, detail, retry_after?, …extra}`."""
        body: dict[str, Any] = {"title": type(self).__name__, "status": self.status, "kind": self.kind}
        body["detail"] = self.detail
        if self.retry_after is not None:
            body["retry_after"] = self.retry_after
        return {**self.extra, **body}


class Invalid(Problem):
    status, kind = 422, "invalid"


class Unauthorized(Problem):
    status, kind = 401, "unauthorized"


class Forbidden(Problem):
    status, kind = 403, "forbidden"


class NotFound(Problem):
    status, kind = 404, "not_found"


class Conflict(Problem):
    status, kind = 409, "conflict"


class Gone(Problem):
    status, kind = 410, "gone"


class AtCapacity(Problem):
    status, kind = 429, "at_capacity"


class Internal(Problem):
    status, kind = 500, "internal"


class Unavailable(Problem):
    status, kind = 503, "unavailable"


class TimedOut(Problem):
    status, kind = 504, "timed_out"


KINDS: dict[str, type[Problem]] = {
    problem.kind: problem
    for problem in (
        Invalid,
        Unauthorized,
        Forbidden,
        NotFound,
        Conflict,
        Gone,
        AtCapacity,
        Internal,
        Unavailable,
        TimedOut,
    )
}
_BY_STATUS: dict[int, type[Problem]] = {problem.status: problem for problem in KINDS.values()} | {
    400: Invalid,
    405: Invalid,
    413: Invalid,
    502: Unavailable,
}


def of_status(status: int) -> type[Problem]:
    """The kind of problem that an HTTP status of 400 or more means."""
    return _BY_STATUS.get(status) or (Invalid if status < 500 else Internal)


def faults(error: ValidationError) -> str:
    """What is wrong where, in one line."""
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in found)


def from_wire(status: int, body: Any, *, where: str) -> Problem:
    """The problem that an answer with `status` and decoded `body` describes; `where` names the call in the text.

    An answer that is no problem document (HTML, a list, nothing) still maps by its status, so a caller can act on it.
    """
    fields = dict(body) if isinstance(body, dict) else {}
    kind = fields.pop("kind", None)
    found = KINDS.get(kind) if isinstance(kind, str) else None
    found = found or (of_status(status) if status >= 400 else Internal)
    detail = fields.pop("detail", None)
    retry_after = fields.pop("retry_after", None)
    for reserved in ("title", "status", "type"):
        fields.pop(reserved, None)
    return found(
        detail if isinstance(detail, str) else f"{where} answered {status}: {detail or body!r:.300}",
        retry_after=float(retry_after) if isinstance(retry_after, int | float) else None,
        **{name: value for name, value in fields.items() if isinstance(name, str) and name.isidentifier()},
    )


class ToolError(Exception):
    """Raised by a tool for the model to read: the rollout goes on and the model sees the text as a failed result."""
