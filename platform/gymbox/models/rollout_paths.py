"""Rollout paths: addresses that say which rollout a call is for, where a caller can set a base URL and no header.

/rollouts/{id}/v1/…
/ng-rollout/{id}/v1/…                          as NeMo Gym has it
/ng-rollout/{id}/training-token-capture/v1/…   as NeMo Gym has it; the same here
"""

from __future__ import annotations

import re

from gymbox_sandbox.lifecycle import ROLLOUT_HEADER
from starlette.types import ASGIApp, Receive, Scope, Send

_ID = r"[A-Za-z0-9._~-]{1,128}"
_PREFIX = re.compile(rf"/(?:rollouts|ng-rollout)/({_ID})(?:/training-token-capture)?(?=/)")
_FIT = re.compile(_ID)
_HEADER = ROLLOUT_HEADER.lower().encode()
_BOUND = "gymbox.rollout_path"
"""Key of a scope whose prefix is gone already: who was let in as one rollout must not be taken for another, whose
prefix stands behind the first."""


class RolloutPaths:
    """An ASGI app whose paths may begin with a rollout: what is behind it sees the rest of the path, and the rollout
    in the header `X-Gymbox-Rollout`, which the path overrules."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PREFIX.match(scope["path"]) if scope["type"] == "http" and _BOUND not in scope else None
        if found is None:
            await self.app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != _HEADER]
        bound = {**scope, "path": scope["path"][found.end() :], "headers": [*headers, (_HEADER, found[1].encode())]}
        bound[_BOUND] = True
        if scope.get("raw_path"):
            # the prefix consists of characters that are never escaped, unless a caller likes to
            raw = _PREFIX.match(scope["raw_path"].decode("latin-1"))
            bound["raw_path"] = scope["raw_path"][raw.end() :] if raw else bound["path"].encode()
        await self.app(bound, receive, send)


def rollout_in(path: str) -> str | None:
    """The rollout that a path begins with, if one."""
    found = _PREFIX.match(path)
    return found[1] if found else None


def is_rollout(id: str) -> bool:
    """Whether a path can name this rollout; a header may name no other, since ids stand in logs, records and paths."""
    return _FIT.fullmatch(id) is not None


def rollout_path(id: str) -> str:
    """What stands before `/v1` in the base URL of a rollout."""
    return f"/rollouts/{id}"
