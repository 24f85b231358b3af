"""Response store: answers kept for a while, so that a caller may go on from one by its `previous_response_id`.

For models whose back end keeps none. An entry is what went over the wire, as bytes: the request and the answer to it;
the history before it is held by the entry that it went on from, so a conversation of n turns costs n entries.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from gymbox_sandbox.responses import ResponsesParams
from pydantic import BaseModel, ConfigDict, Field

from gymbox.errors import Conflict, Invalid, NotFound
from gymbox.guard import bearer
from gymbox.models.events import TERMINAL, Event
from gymbox.models.strict_json import json_bytes

_PER_ENTRY = 1024
"""Bytes that an entry costs beside what it holds, about."""


class StoreLimits(BaseModel):
    """What a server keeps of its answers; the oldest goes first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(default=10_000, ge=0)
    """Answers at once; 0 keeps none."""
    megabytes: float = Field(default=64, ge=0)
    """Requests and answers together."""
    seconds: float = Field(default=3600, gt=0)
    """After its last use."""


@dataclass(slots=True, eq=False)
class _Entry:
    request: bytes
    answer: bytes
    before: _Entry | None
    """What it went on from; held for as long as this is."""
    used: float
    children: int = 0
    listed: bool = True
    twice: bool = False
    """Another answer of this caller has the same id, so the id names neither."""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.request) + len(self.answer) + _PER_ENTRY


@dataclass(frozen=True, slots=True)
class Continued:
    """A request that may go on from an earlier answer, and whose own answer may be gone on from."""

    store: ResponseStore
    scope: str
    given: Any
    params: ResponsesParams
    """As it is asked of the model: with the whole history, and without what only the store understands."""
    previous: str | None
    wanted: bool
    """Whether the answer is to be kept."""

    def answered(self, response: dict[str, Any]) -> dict[str, Any]:
        """The answer as the caller gets it; a whole one is kept from now on."""
        told = {**response, "previous_response_id": self.previous, "store": self.wanted}
        if self.wanted and told.get("status") in ("completed", "incomplete"):
            request = json_bytes({"input": self.given})
            self.store.keep(self.scope, str(told["id"]), request, json_bytes(told), self.previous)
        return told

    async def seen(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """A stream of events as the caller gets it; the answer that it ends with is kept."""
        async with aclosing(cast(Any, events)) as told:
            async for event in told:
                if event.get("type") in TERMINAL and isinstance(event.get("response"), dict):
                    event = {**event, "response": self.answered(event["response"])}
                yield event


class ResponseStore:
    """Answers by caller and id.

    Bounded by count, bytes and age: `keep` lets go of what was not used for longest. A `scope` names the caller and
    its rollout; what was kept under another scope is not there. Not safe across threads.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, limits: StoreLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or StoreLimits()
        self._clock = clock
        self._entries: dict[tuple[str, str], _Entry] = {}
        self.held = 0
        """Entries in memory, those that only their successors hold included."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, scope: str, identity: str, request: bytes, answer: bytes, previous: str | None = None) -> None:
        """Keep an answer.

        Args:
            identity: the answer's id.
            request: the body of the request, JSON; its `input` without what came before.
            answer: the Response, JSON.
            previous: the `previous_response_id` that the request named; kept alive with this.
        """
        now = self._clock()
        before = self._entries.get((scope, previous)) if previous is not None else None
        if previous is not None and before is None:
            return  # let go of since it was expanded: this could not be expanded again
        known = self._entries.get((scope, identity))
        if known is not None:
            known.twice = known.twice or known.answer != answer
            return
        entry = _Entry(request, answer, before, now)
        if before is not None:
            before.children += 1
        self._entries[scope, identity] = entry
        self.held += 1
        self.bytes += entry.size
        self._let_go(now)

    def answer(self, scope: str, identity: str) -> bytes:
        """The Response, JSON.

        Raises:
            NotFound: it is not kept (any more), or not this caller's.
            Conflict: several answers have this id.
        """
        return self._found(scope, identity).answer

    def items(self, scope: str, identity: str) -> list[Any]:
        """The whole history up to and including the answer, as input items.

        Raises: as `answer`.
        """
        history: list[Any] = []
        for entry in reversed(list(_chain(self._found(scope, identity)))):
            given = json.loads(entry.request).get("input")
            if isinstance(given, str):
                given = [{"type": "message", "role": "user", "content": given}]
            history += given or []
            history += json.loads(entry.answer).get("output") or []
        return history

    def forget(self, scope: str, identity: str) -> None:
        """Let go of an answer. What was answered on top of it stays whole, and holds it until that goes too.

        Raises: as `answer`, but for several answers with this id: all are let go of.
        """
        self._let_go(self._clock())
        if (scope, identity) not in self._entries:
            raise self._unknown(identity)
        self._unlist((scope, identity))

    def expanded(self, scope: str, params: ResponsesParams) -> ResponsesParams:
        """The params with the history that their `previous_response_id` stands for, and without that.

        As with the API itself, `instructions` and tools of the earlier request do not come along.

        Raises: as `answer`.
            Invalid: `previous_response_id` is no string.
        """
        identity = (params.model_extra or {}).get("previous_response_id")
        if identity is None:
            return params
        if not isinstance(identity, str):
            raise Invalid(f"previous_response_id must be a string, not {type(identity).__name__}")
        history = ResponsesParams.model_validate({"input": self.items(scope, identity)}).items
        whole = params.model_copy(update={"input": [*history, *params.items]})
        if whole.model_extra is not None:
            del whole.model_extra["previous_response_id"]
        return whole

    def continued(self, scope: str, given: Any, params: ResponsesParams) -> Continued:
        """A request of this scope, from its `input` as it came and the params that it stands in.

        Raises: as `expanded`.
            Invalid: `store` is neither true nor false.
        """
        extra = params.model_extra or {}
        store, previous = extra.get("store"), extra.get("previous_response_id")
        if not isinstance(store, bool | None):
            raise Invalid(f"store must be true or false, not {store!r:.100}")
        whole = self.expanded(scope, params)
        if "store" in extra:
            whole = whole.model_copy()
            del cast(dict[str, Any], whole.model_extra)["store"]
        return Continued(self, scope, given, whole, previous, store is not False and self.limits.count > 0)

    def _found(self, scope: str, identity: str) -> _Entry:
        now = self._clock()
        self._let_go(now)
        entry = self._entries.pop((scope, identity), None)
        if entry is None:
            raise self._unknown(identity)
        # put back at the end: the longest unused stand first
        self._entries[scope, identity] = entry
        entry.used = now
        if entry.twice:
            raise Conflict(f"several answers have the id {identity!r}, so it names none; send the history in `input`")
        return entry

    def _unknown(self, identity: str) -> NotFound:
        limits = self.limits
        return NotFound(
            f"there is no response {identity[:100]!r} here. An answer is kept for {limits.seconds:g} s after its last "
            f"use, at most {limits.count} of them and {limits.megabytes:g} MB, unless `store` is false, and for its "
            "own caller and rollout alone. Send the whole history in `input` instead",
            code="previous_response_not_found",
        )

    def _let_go(self, now: float) -> None:
        room = self.limits.megabytes * 1_000_000
        while self._entries:
            oldest = next(iter(self._entries))
            expired = now - self._entries[oldest].used > self.limits.seconds
            if not (expired or self.held > self.limits.count or self.bytes > room):
                return
            self._unlist(oldest)

    def _unlist(self, key: tuple[str, str]) -> None:
        entry: _Entry | None = self._entries.pop(key)
        assert entry is not None
        entry.listed = False
        while entry is not None and not entry.listed and not entry.children:
            self.held -= 1
            self.bytes -= entry.size
            entry = entry.before
            if entry is not None:
                entry.children -= 1


def scope_of(authorization: str, api_key: str, rollout: str) -> str:
    """The scope of a caller and its rollout.

    Args:
        authorization: the header of this name that it came with; the same token is the same caller in either header.
        api_key: its `x-api-key` header, as Anthropic's clients have it.
    """
    token = bearer(authorization.encode("utf-8", "surrogatepass")) or authorization
    return hashlib.sha256(
        "\n".join([*sorted({token, api_key} - {""}), rollout]).encode("utf-8", "surrogatepass")
    ).hexdigest()


def _chain(entry: _Entry) -> Iterator[_Entry]:
    found: _Entry | None = entry
    while found is not None:
        yield found
        found = found.before
